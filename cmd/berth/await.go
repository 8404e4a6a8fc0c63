package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
)

// addRunningTimeout adds --pod-running-timeout.
func addRunningTimeout(fl *pflag.FlagSet, timeout *time.Duration) {
	fl.DurationVar(timeout, "pod-running-timeout", 0, "wait at most so long for the pod to be there and to run, for example 1m; 0: do not wait")
}

var errRuns = errors.New("the pod runs")

// awaitRunning waits until the pod that the argument names runs, or has ended, for at most so long;
// 0 is not at all.
func awaitRunning(ctx context.Context, c *client, arg, namespace string, limit time.Duration) error {
	if limit < 0 {
		return fmt.Errorf("--pod-running-timeout %v: must be positive", limit)
	}
	if limit == 0 {
		return nil
	}
	ref, err := parsePodRef(arg, namespace)
	if err != nil {
		return err
	}
	watching, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	phase := v1.PodPhase("")
	err = c.watch(watching, func(e server.WatchEvent) error {
		if p := e.Object; e.Type != server.Bookmark && ref.matches(p.Namespace, p.Name) {
			phase = p.Status.Phase
			if e.Type != server.Deleted && phase != "" && phase != v1.PodPending {
				return errRuns
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, errRuns):
		return nil
	case err != nil && watching.Err() == nil:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case phase == "":
		return fmt.Errorf("pod %q is not there after %v", ref, limit)
	}
	return fmt.Errorf("pod %q does not run after %v: it is %s", ref, limit, phase)
}
