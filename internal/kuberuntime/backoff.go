package kuberuntime

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/lifecycle"
	"berth/internal/pod"
)

// restartDelayAnnotation is on containers that were restarted: how long their next restart is held back. By it a later agent goes on
// with the back-off where this one was.
const restartDelayAnnotation = "berth.dev/restart-delay"

// backOffOf returns the back-off of the pod's containers. A bad annotation was told of by checkBackOff.
func (r *Runtime) backOffOf(p *v1.Pod) lifecycle.BackOff {
	b, _ := lifecycle.PodBackOff(p, r.nodeBackOff)
	return b
}

// checkBackOff tells once of a pod's back-off that cannot be understood, and that the node's is used.
func (r *Runtime) checkBackOff(p *v1.Pod) {
	text := p.Annotations[lifecycle.BackOffAnnotation]
	r.mu.Lock()
	old := r.backOffs[p.UID]
	if text == "" {
		delete(r.backOffs, p.UID)
	} else {
		r.backOffs[p.UID] = text
	}
	r.mu.Unlock()
	if text == old {
		return
	}
	if b, err := lifecycle.PodBackOff(p, r.nodeBackOff); err != nil {
		r.Recorder.Event(p, "", v1.EventTypeWarning, "InvalidBackOff", fmt.Sprintf("%v; the node's back-off is used: %s", err, b))
	}
}

// holds returns the back-offs of the pod's containers that last.
func (r *Runtime) holds(p *v1.Pod, s *pod.Status, now time.Time) map[string]lifecycle.Hold {
	law := r.backOffOf(p)
	out := map[string]lifecycle.Hold{}
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			key := lifecycle.CrashKey(p, c)
			if newest := s.FindContainer(c.Name); newest != nil && newest.Hash == lifecycle.ContainerHash(c) {
				if d, err := time.ParseDuration(newest.Annotations[restartDelayAnnotation]); err == nil && d > 0 {
					r.crash.Resume(key, d, newest.CreatedAt, now)
				}
			}
			if h, held := r.crash.Held(key, law, lastEnd(s, c.Name), now); held {
				out[c.Name] = h
			}
		}
	}
	return out
}

// annotateBackOff notes on a container that is about to be created how long its next restart will be held back.
func (r *Runtime) annotateBackOff(cfg *runtimeapi.ContainerConfig, p *v1.Pod, c *v1.Container, s *pod.Status) {
	if d := r.crash.After(lifecycle.CrashKey(p, c), r.backOffOf(p), lastEnd(s, c.Name), time.Now()); d > 0 {
		if cfg.Annotations == nil {
			cfg.Annotations = map[string]string{}
		}
		cfg.Annotations[restartDelayAnnotation] = d.String()
	}
}

// noteRestart lets the container's back-off grow, if what was created is a restart.
func (r *Runtime) noteRestart(p *v1.Pod, c *v1.Container, s *pod.Status) {
	r.crash.Next(lifecycle.CrashKey(p, c), r.backOffOf(p), lastEnd(s, c.Name), time.Now())
}

// lastEnd returns when the newest incarnation of a container that has ended did so, or zero. One that was created and never started
// failed at its creation: it must back off like one that crashed.
func lastEnd(s *pod.Status, name string) time.Time {
	for i := range s.Containers {
		switch cs := &s.Containers[i]; {
		case cs.Name != name:
		case cs.State == pod.StateExited && !cs.FinishedAt.IsZero():
			return cs.FinishedAt
		case cs.State == pod.StateExited, cs.State == pod.StateCreated:
			return cs.CreatedAt
		}
	}
	return time.Time{}
}

// waitFor tells of the starts that are held back.
func (r *Runtime) waitFor(p *v1.Pod, waits []waitAction, res *Result) {
	for _, w := range waits {
		r.Recorder.Event(p, w.Name, v1.EventTypeWarning, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s", w.Name, pod.Describe(p)))
		res.failed(w.Name, lifecycle.StartError{
			Reason:       lifecycle.CrashLoopBackOff,
			Message:      fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", w.Hold.Delay, w.Name, pod.Describe(p)),
			BackOffUntil: w.Hold.Until,
		})
	}
}
