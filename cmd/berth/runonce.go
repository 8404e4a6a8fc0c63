package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
	"berth/internal/explain"
	"berth/internal/pod/lifecycle"
	"berth/internal/source/manifest"
)

// errEnded is the result of --once if the agent exits for another reason.
var errEnded = errors.New("ended before all pods were ready")

// awaitReady returns nil when all pods are ready, or why they will not be or are not in time.
func awaitReady(ctx context.Context, h server.Handlers, timeout time.Duration) error {
	changed, cancel := h.Pods.Subscribe()
	defer cancel()
	late := time.NewTimer(timeout)
	defer late.Stop()
	for {
		ready, err := computeVerdict(h.Pods.List(), h.Explain.Problems())
		if ready || err != nil {
			return err
		}
		select {
		case <-changed.Wake():
			changed.Take()
		case <-late.C:
			return fmt.Errorf("not all pods are ready after %v:\n%s", timeout, strings.Join(describeUnready(h.Pods.List(), h.Explain.Problems()), "\n"))
		case <-ctx.Done():
			return errEnded
		}
	}
}

// computeVerdict reports whether all pods are ready or have succeeded. The error is why that cannot
// happen.
func computeVerdict(pods []*v1.Pod, problems []manifest.Problem) (ready bool, err error) {
	var errs []error
	for _, p := range problems {
		if p.Severity == manifest.SeverityError {
			errs = append(errs, errors.New(problemLine(p)))
		}
	}
	ready = len(pods) > 0
	for _, p := range pods {
		if p.Status.Phase == v1.PodFailed {
			errs = append(errs, errors.New(describePod(p)))
		}
		ready = ready && isSettled(p)
	}
	if err := errors.Join(errs...); err != nil {
		return false, err
	}
	return ready, nil
}

// isSettled reports whether the pod is ready or has succeeded.
func isSettled(p *v1.Pod) bool {
	return p.Status.Phase == v1.PodSucceeded || p.DeletionTimestamp == nil && lifecycle.IsTrue(p, v1.PodReady)
}

// describeUnready describes what each unready pod waits for, and the problems of manifests.
func describeUnready(pods []*v1.Pod, problems []manifest.Problem) []string {
	var lines []string
	for _, p := range problems {
		lines = append(lines, problemLine(p))
	}
	if len(pods) == 0 {
		lines = append(lines, "there are no pods")
	}
	for _, p := range pods {
		if !isSettled(p) {
			lines = append(lines, describePod(p))
		}
	}
	return lines
}

// describePod describes the pod's state in one line, with the runtime's messages on its containers.
func describePod(p *v1.Pod) string {
	s := lifecycle.Summarize(p)
	line := fmt.Sprintf("pod %s/%s: %s, %d of %d containers ready", p.Namespace, p.Name, statusOf(s), s.Ready, s.Total)
	if p.Status.Message != "" {
		line += ": " + explain.OneLine(p.Status.Message)
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		said := ""
		if w := c.State.Waiting; w != nil {
			said = cmp.Or(w.Message, w.Reason)
		} else if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			said = fmt.Sprintf("exit code %d %s", t.ExitCode, t.Message)
		}
		if said != "" {
			line += fmt.Sprintf("; container %q: %s", c.Name, explain.OneLine(said))
		}
	}
	return line
}
