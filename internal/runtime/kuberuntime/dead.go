package kuberuntime

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

// computeRemains selects everything of a terminated pod except what was running when last observed.
func computeRemains(s *pod.Status) garbage {
	var g garbage
	runs := map[pod.SandboxID]bool{}
	for i := range s.Containers {
		cs := &s.Containers[i]
		if cs.State == pod.StateRunning {
			runs[cs.SandboxID] = true
			continue
		}
		g.Containers = append(g.Containers, cs)
	}
	for i := range s.Sandboxes {
		if sb := &s.Sandboxes[i]; !sb.Ready && !runs[sb.ID] {
			g.Sandboxes = append(g.Sandboxes, sb.ID)
		}
	}
	return g
}

// computeSpare selects what a running pod does not need: every terminated incarnation that has a
// newer one, although the container loses its last state, and dead sandboxes without other
// containers.
func computeSpare(s *pod.Status) garbage {
	var g garbage
	newer := map[string]bool{}
	used := map[pod.SandboxID]bool{}
	for i := range s.Containers {
		cs := &s.Containers[i]
		if newer[cs.Name] && cs.State != pod.StateRunning {
			g.Containers = append(g.Containers, cs)
			continue
		}
		newer[cs.Name] = true
		used[cs.SandboxID] = true
	}
	for i := range s.Sandboxes {
		if sb := &s.Sandboxes[i]; i > 0 && !sb.Ready && !used[sb.ID] {
			g.Sandboxes = append(g.Sandboxes, sb.ID)
		}
	}
	return g
}

// removeDead implements Runtime.RemoveDead.
func (c *collector) removeDead(ctx context.Context) error {
	var errs []error
	for _, s := range c.pods() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := c.removeDeadOf(ctx, s); err != nil {
			errs = append(errs, fmt.Errorf("pod %s/%s: %w", s.Namespace, s.Name, err))
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(errs) > 0 && !c.failed {
		c.events.NodeEvent(v1.EventTypeWarning, "ContainerGCFailed", errs[0].Error())
	}
	c.failed = len(errs) > 0
	return errors.Join(errs...)
}

// removeDeadOf removes dead containers and sandboxes of one pod, and records it in the pod's
// journal. A sandbox is removed after its containers.
func (c *collector) removeDeadOf(ctx context.Context, s *pod.Status) error {
	g := computeSpare(s)
	if c.hasEnded(s.UID) {
		g = computeRemains(s)
	}
	removed := 0
	var errs []error
	for _, cs := range g.Containers {
		err := c.remover.removeContainer(ctx, s, cs, WithLogs)
		if err == nil {
			removed++
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err == nil {
		for _, id := range g.Sandboxes {
			errs = append(errs, c.remover.removeSandbox(ctx, id))
		}
	}
	if removed > 0 {
		c.journal.Record(journal.Entry{
			Subject:   journal.Subject{UID: s.UID, Namespace: s.Namespace, Name: s.Name},
			Component: "runtime", Decision: fmt.Sprintf("remove ended containers with their logs: %d", removed), Why: "the node runs out of disk",
		})
	}
	return errors.Join(errs...)
}
