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

// restartDelayAnnotation is on containers that were restarted: how long their next restart is held
// back. By it a later agent goes on with the back-off where this one was.
const restartDelayAnnotation = "berth.dev/restart-delay"

// backOffs holds the starts of containers back that end again and again.
type backOffs struct {
	events Recorder
	crash  *lifecycle.CrashLoop
	node   lifecycle.BackOff
	failed failedCreations
	began  time.Time // when the agent did

	mu    sync.Mutex
	texts map[pod.UID]string // guarded by mu; the back-off annotations that were checked
}

func newBackOffs(events Recorder, longest time.Duration) *backOffs {
	return &backOffs{
		events: events, crash: lifecycle.NewCrashLoop(), node: lifecycle.NodeBackOff(longest), began: time.Now(), texts: map[pod.UID]string{},
	}
}

// of returns the back-off of the pod's containers. A bad annotation gets its event from check.
func (b *backOffs) of(p *v1.Pod) lifecycle.BackOff {
	law, _ := lifecycle.PodBackOff(p, b.node)
	return law
}

// check records an event, once, about a pod's back-off that cannot be understood, and that the
// node's is used.
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
	if law, err := lifecycle.PodBackOff(p, b.node); err != nil {
		b.events.Event(p, "", v1.EventTypeWarning, "InvalidBackOff", fmt.Sprintf("%v; the node's back-off is used: %s", err, law))
	}
}

// removed remembers the crash of a container that is removed and will run anew.
func (b *backOffs) removed(p *v1.Pod, cs *pod.ContainerStatus) {
	b.crash.Removed(lifecycle.CrashKey(p, findSpec(p, cs.Name)), cs.FinishedAt, time.Now())
}

// forget drops what is known of a pod that is removed.
func (b *backOffs) forget(uid pod.UID) {
	b.crash.Forget(uid)
	b.crash.GC(time.Now())
	b.failed.forget(uid)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.texts, uid)
}

// holds returns the back-offs of the pod's containers that last.
func (b *backOffs) holds(p *v1.Pod, s *pod.Status, now time.Time) map[string]lifecycle.Hold {
	law := b.of(p)
	out := map[string]lifecycle.Hold{}
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			key := lifecycle.CrashKey(p, c)
			if newest := s.FindContainer(c.Name); newest != nil && newest.Hash == lifecycle.ContainerHash(c) {
				if d := b.restartDelay(newest, law); d > 0 {
					b.crash.Resume(key, d, newest.CreatedAt, now)
				}
			}
			if h, held := b.crash.Held(key, law, lastEnd(s, c.Name), now); held {
				out[c.Name] = h
			}
		}
	}
	return out
}

// restartDelay returns how long the next restart of an incarnation is held back, by what an earlier
// agent noted on it; a kubelet notes nothing. There it goes by the restarts, as if all had been for
// crashes.
// Differs from the kubelet, which begins anew when it is started again.
func (b *backOffs) restartDelay(cs *pod.ContainerStatus, law lifecycle.BackOff) time.Duration {
	if text := cs.Annotations[restartDelayAnnotation]; text != "" {
		d, _ := time.ParseDuration(text) // 0 if somebody else wrote it
		return d
	}
	if !cs.CreatedAt.Before(b.began) {
		return 0 // it is this agent's
	}
	return law.AfterRestarts(cs.Attempt)
}

// annotate notes on a container that is about to be created how long its next restart will be held
// back.
func (b *backOffs) annotate(cfg *runtimeapi.ContainerConfig, p *v1.Pod, c *v1.Container, s *pod.Status) {
	if d := b.crash.After(lifecycle.CrashKey(p, c), b.of(p), lastEnd(s, c.Name), time.Now()); d > 0 {
		if cfg.Annotations == nil {
			cfg.Annotations = map[string]string{}
		}
		cfg.Annotations[restartDelayAnnotation] = d.String()
	}
}

// restarted lets the container's back-off grow, if what was created is a restart.
func (b *backOffs) restarted(p *v1.Pod, c *v1.Container, s *pod.Status) {
	b.crash.Next(lifecycle.CrashKey(p, c), b.of(p), lastEnd(s, c.Name), time.Now())
}

// lastEnd returns when the newest incarnation of a container that has ended did so, or zero. One
// that was created and never started failed at its creation: it must back off like one that
// crashed.
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

// waitFor puts the starts that are held back into the result, and records an event about each that
// is for a crash.
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
