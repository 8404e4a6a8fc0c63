package podsync

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/observe/status"
	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/kuberuntime"
)

// finality reports whether the pod's containers have all exited permanently.
type finality int

const (
	stillRunning finality = iota
	ended
)

// report generates the pod's status from the observed state and hands it to the status manager. It
// reports whether the phase is terminal.
func (p *pass) report(ctx context.Context, f finality) (terminal bool) {
	p.recordObserved(ctx)
	s := p.syncer
	old, known := s.Status.Get(p.UID)
	if !known {
		old = p.Pod.Status
		if n := len(p.Observed.Sandboxes); old.StartTime == nil && n > 0 {
			// An earlier run of the agent started it.
			old.StartTime = &metav1.Time{Time: p.Observed.Sandboxes[n-1].CreatedAt}
		}
	}
	st := status.Generate(status.Input{
		Pod: p.Pod, Observed: *s.WithTerminationMessages(ctx, p.Observed), Old: old, Terminal: f == ended,
		StartErrors: s.startErrors(p.UID), RuntimeName: s.RuntimeName(), HostIPs: s.HostIPs(), Now: time.Now(), Began: s.Status.Began(p.UID),
		Actuated: s.Allocations.Actuated(p.Pod), Resize: s.Allocations.Resize(p.UID), Probes: p.verdicts,
		ResourceHealth: s.Resources.Health(p.Pod),
		// Existing containers imply that the volumes were mounted.
		MountsMissing: !s.isMounted(p.UID) && len(p.Observed.Containers) == 0,
	})
	if st.Reason == lifecycle.DeadlineExceeded && !pod.IsTerminal(old.Phase) {
		p.event(v1.EventTypeNormal, st.Reason, st.Message)
	}
	if mismatch := status.FamilyMismatch(p.Pod, &st); mismatch != "" && status.FamilyMismatch(p.Pod, &old) == "" {
		p.event(v1.EventTypeWarning, "HostIPsIPFamilyMismatch", mismatch)
	}
	p.reportResized(old.Conditions, st.Conditions)
	if p.StatusFunc != nil {
		p.StatusFunc(&st)
	}
	s.Status.Set(p.Pod, st)
	if st.Reason != "" {
		p.result.Why = "it has failed: " + st.Reason
	}
	return pod.IsTerminal(st.Phase)
}

// deadlineOf returns when the pod's activeDeadlineSeconds expire, or zero.
func deadlineOf(p *v1.Pod, m *status.Manager) time.Time {
	if p.Spec.ActiveDeadlineSeconds == nil {
		return time.Time{}
	}
	began := m.Began(p.UID)
	if began.IsZero() {
		return time.Time{}
	}
	return began.Add(time.Duration(*p.Spec.ActiveDeadlineSeconds) * time.Second)
}

// startErrors returns a copy of the last start error of each container.
func (s *Syncer) startErrors(uid pod.UID) map[string]lifecycle.StartError {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.errors[uid])
}

// updateStartErrors stores the start errors of r and drops those of containers that started. It
// reports whether anything changed.
func (s *Syncer) updateStartErrors(uid pod.UID, r kuberuntime.Result) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.errors[uid]
	for name, e := range r.StartErrors {
		if known == nil {
			known = map[string]lifecycle.StartError{}
			s.errors[uid] = known
		}
		changed = changed || known[name] != e
		known[name] = e
	}
	for _, name := range r.Started {
		if _, ok := known[name]; ok {
			delete(known, name)
			changed = true
		}
	}
	return changed
}

func describe(m map[string]lifecycle.StartError) string {
	parts := make([]string, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("container %q: %s: %s", name, m[name].Reason, m[name].Message))
	}
	return strings.Join(parts, "; ")
}
