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

// report generates the pod's status from the observed state and hands it to the status manager.
func (s *Syncer) report(ctx context.Context, r *Request, verdicts pod.ProbeVerdicts, f finality) v1.PodStatus {
	recordObserved(ctx, s.Journal, r)
	p := r.Pod
	old, known := s.Status.Get(r.UID)
	if !known {
		old = p.Status
		if n := len(r.Observed.Sandboxes); old.StartTime == nil && n > 0 {
			// An earlier run of the agent started it.
			old.StartTime = &metav1.Time{Time: r.Observed.Sandboxes[n-1].CreatedAt}
		}
	}
	st := status.Generate(status.Input{
		Pod: p, Observed: *s.WithTerminationMessages(ctx, r.Observed), Old: old, Terminal: f == ended,
		StartErrors: s.state.startErrorsOf(r.UID), RuntimeName: s.RuntimeName(), HostIPs: s.HostIPs(), Now: time.Now(), Began: s.Status.Began(r.UID),
		Actuated: s.Allocations.Actuated(p), Resize: s.Allocations.Resize(r.UID), Probes: verdicts,
		ResourceHealth: s.Resources.Health(p),
		// Existing containers imply that the volumes were mounted.
		MountsMissing: !s.state.isMounted(r.UID) && len(r.Observed.Containers) == 0,
	})
	if st.Reason == lifecycle.DeadlineExceeded && !pod.IsTerminal(old.Phase) {
		s.Event(p, "", v1.EventTypeNormal, st.Reason, st.Message)
	}
	if mismatch := status.FamilyMismatch(p, &st); mismatch != "" && status.FamilyMismatch(p, &old) == "" {
		s.Event(p, "", v1.EventTypeWarning, "HostIPsIPFamilyMismatch", mismatch)
	}
	s.reportResized(p, old.Conditions, st.Conditions)
	if r.StatusFunc != nil {
		r.StatusFunc(&st)
	}
	s.Status.Set(p, st)
	return st
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

// startErrorsOf returns a copy of the last start error of each container.
func (s *podState) startErrorsOf(uid pod.UID) map[string]lifecycle.StartError {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.startErrors[uid])
}

// updateStartErrors stores the start errors of r and drops those of containers that started. It
// reports whether anything changed.
func (s *podState) updateStartErrors(uid pod.UID, r kuberuntime.Result) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.startErrors[uid]
	for name, e := range r.StartErrors {
		if known == nil {
			known = map[string]lifecycle.StartError{}
			s.startErrors[uid] = known
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
