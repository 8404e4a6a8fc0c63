package kuberuntime

import (
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// restartDelayAnnotation is set on restarted containers: the delay before their next restart. A
// restarted agent continues the back-off from it.
const restartDelayAnnotation = "berth.dev/restart-delay"

// backOffs delays the restarts of containers in a crash loop.
type backOffs struct {
	events Recorder
	crash  *lifecycle.CrashLoop
	node   lifecycle.BackOff
	failed failedCreations
	began  time.Time // start of the agent

	mu    sync.Mutex
	texts map[pod.UID]string // guarded by mu; the back-off annotations that were validated
}

func newBackOffs(events Recorder, longest time.Duration) *backOffs {
	return &backOffs{
		events: events, crash: lifecycle.NewCrashLoop(), node: lifecycle.NodeBackOff(longest), began: time.Now(), texts: map[pod.UID]string{},
	}
}

// of returns the back-off of the pod's containers. check records the event for an invalid
// annotation.
func (b *backOffs) of(p *v1.Pod) lifecycle.BackOff {
	backOff, _ := lifecycle.PodBackOff(p, b.node)
	return backOff
}

// check records an event, once, if a pod's back-off annotation is invalid and the node's back-off
// is used.
func (b *backOffs) check(p *v1.Pod) {
	text := p.Annotations[lifecycle.BackOffAnnotation]
	b.mu.Lock()
	old := b.texts[p.UID]
	if text == "" {
		delete(b.texts, p.UID)
	} else {
		b.texts[p.UID] = text
	}
	b.mu.Unlock()
	if text == old {
		return
	}
	if backOff, err := lifecycle.PodBackOff(p, b.node); err != nil {
		b.events.Event(p, "", v1.EventTypeWarning, "InvalidBackOff", fmt.Sprintf("%v; the node's back-off is used: %s", err, backOff))
	}
}

// removed records the crash of a container that is removed and will be restarted.
func (b *backOffs) removed(p *v1.Pod, cs *pod.ContainerStatus) {
	b.crash.Removed(lifecycle.CrashKey(p, findSpec(p, cs.Name)), cs.FinishedAt, time.Now())
}

// forget drops the state of a removed pod.
func (b *backOffs) forget(uid pod.UID) {
	b.crash.Forget(uid)
	b.crash.GC(time.Now())
	b.failed.forget(uid)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.texts, uid)
}

// holds returns the active back-offs of the pod's containers.
func (b *backOffs) holds(p *v1.Pod, s *pod.Status, now time.Time) map[string]lifecycle.Hold {
	backOff := b.of(p)
	out := map[string]lifecycle.Hold{}
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			key := lifecycle.CrashKey(p, c)
			if newest := s.FindContainer(c.Name); newest != nil && newest.Hash == lifecycle.ContainerHash(c) {
				if d := b.restartDelay(newest, backOff); d > 0 {
					b.crash.Resume(key, d, newest.CreatedAt, now)
				}
			}
			if h, held := b.crash.Held(key, backOff, lastEnd(s, c.Name), now); held {
				out[c.Name] = h
			}
		}
	}
	return out
}

// restartDelay returns the back-off before the next restart of an incarnation, from the annotation
// of an earlier agent. A container that a kubelet created has none: its delay follows from the
// restart count, as if each restart was for a crash. Differs from the kubelet, which resets the
// back-off when it restarts.
func (b *backOffs) restartDelay(cs *pod.ContainerStatus, backOff lifecycle.BackOff) time.Duration {
	if text := cs.Annotations[restartDelayAnnotation]; text != "" {
		d, _ := time.ParseDuration(text) // 0 if another program wrote it
		return d
	}
	if !cs.CreatedAt.Before(b.began) {
		return 0 // created by this agent
	}
	return backOff.AfterRestarts(cs.Attempt)
}

// annotate sets the back-off before the next restart on a container that is about to be created.
func (b *backOffs) annotate(cfg *runtimeapi.ContainerConfig, p *v1.Pod, c *v1.Container, s *pod.Status) {
	if d := b.crash.After(lifecycle.CrashKey(p, c), b.of(p), lastEnd(s, c.Name), time.Now()); d > 0 {
		if cfg.Annotations == nil {
			cfg.Annotations = map[string]string{}
		}
		cfg.Annotations[restartDelayAnnotation] = d.String()
	}
}

// restarted increases the container's back-off if the created container is a restart.
func (b *backOffs) restarted(p *v1.Pod, c *v1.Container, s *pod.Status) {
	b.crash.Next(lifecycle.CrashKey(p, c), b.of(p), lastEnd(s, c.Name), time.Now())
}

// lastEnd returns when the newest terminated incarnation of a container exited, or zero. For a
// container that was created and never started it is the creation time: it must back off like one
// that crashed.
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

// waitFor adds the delayed starts to the result, and records an event for each crash-loop back-off.
func (b *backOffs) waitFor(p *v1.Pod, waits []waitAction, res *Result) {
	for _, w := range waits {
		if w.Failed != nil {
			res.failed(w.Name, w.Failed.Start)
			continue
		}
		until := w.Hold.Until
		if w.Ends { // it has just been stopped
			until = time.Now().Add(w.Hold.Delay)
		}
		b.events.Event(p, w.Name, v1.EventTypeWarning, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s", w.Name, pod.Describe(p)))
		res.failed(w.Name, lifecycle.StartError{
			Reason:       lifecycle.CrashLoopBackOff,
			Message:      fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", w.Hold.Delay, w.Name, pod.Describe(p)),
			BackOffUntil: until,
		})
	}
}
