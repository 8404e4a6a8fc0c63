package main

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
)

// watchPods prints the pods, then every change until the user interrupts or the agent ends.
func watchPods(ctx context.Context, c *client, filter podFilter, out podPrinter) error {
	var first []*v1.Pod
	listed := false
	return c.watch(ctx, func(e server.WatchEvent) error {
		switch {
		case e.Type == server.Bookmark:
			problems, err := c.problems(ctx)
			if err != nil {
				return err
			}
			chosen, chosenProblems, missing := filter.apply(first, problems)
			if listed {
				return out.problems(chosenProblems)
			}
			listed = true
			if missing != nil {
				return missing
			}
			return out.list(podList{chosen, chosenProblems, len(filter.refs) == 1}, time.Now())
		case !listed:
			first = append(first, e.Object)
			return nil
		case filter.wants(e.Object):
			return out.change(e.Object, time.Now())
		default:
			return nil
		}
	})
}
