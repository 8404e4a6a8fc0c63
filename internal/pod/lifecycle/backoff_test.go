package lifecycle

import (
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func crashTarget() (*v1.Pod, *v1.Container) {
	p := testPod(v1.RestartPolicyAlways)
	p.Spec.Containers[0].Image = "app:v1"
	return p, &p.Spec.Containers[0]
}

var node = NodeBackOff(0)

// delays lets a container crash n times, each time after it ran for the given time, and returns how
// long it was held back.
func delays(b BackOff, n int, ran time.Duration) []time.Duration {
	l, k := NewCrashLoop(), CrashKey(crashTarget())
	now := epoch
	var out []time.Duration
	for range n {
		finished := now.Add(ran)
		now = finished
		announced := l.After(k, b, finished, now)
		if h, held := l.Held(k, b, finished, now); held {
			now = h.Until
		}
		if _, held := l.Held(k, b, finished, now); held {
			panic("a back-off does not end at its end")
		}
		out = append(out, now.Sub(finished))
		l.Next(k, b, finished, now)
		if h, _ := l.Held(k, b, now, now); h.Delay != announced {
			panic("After told another delay than Next made")
		}
	}
	return out
}

func TestCrashLoopDelays(t *testing.T) {
	const s = time.Second
	for _, tt := range []struct {
		name string
		law  BackOff
		ran  time.Duration
		want []time.Duration
	}{
		{"default", node, s, []time.Duration{0, 10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 300 * s, 300 * s}},
		{"long runs that are not long enough", node, 10 * time.Minute, []time.Duration{0, 10 * s, 20 * s, 40 * s}},
		{"runs that are forgiven", node, 10*time.Minute + 1, []time.Duration{0, 0, 0}},
		{"node's maximum", NodeBackOff(25 * s), s, []time.Duration{0, 10 * s, 20 * s, 25 * s, 25 * s}},
		{"node's maximum below the initial delay", NodeBackOff(s), s, []time.Duration{0, s, s, s}},
		{"the pod's own", BackOff{Initial: s, Maximum: 30 * s, Factor: 3}, s, []time.Duration{0, s, 3 * s, 9 * s, 27 * s, 30 * s, 30 * s}},
		{"constant", BackOff{Initial: 5 * s, Maximum: 30 * s, Factor: 1}, s, []time.Duration{0, 5 * s, 5 * s, 5 * s}},
		{"broken factor", BackOff{Initial: 2 * s, Maximum: 30 * s, Factor: 1.5}, s, []time.Duration{0, 2 * s, 3 * s, 4500 * time.Millisecond}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := delays(tt.law, len(tt.want), tt.ran); !slices.Equal(got, tt.want) {
				t.Errorf("held back for %v, want %v", got, tt.want)
			}
		})
	}
}

// delayOf returns the container's delay if it ended at its last restart.
func delayOf(l *CrashLoop, k CrashLoopKey) time.Duration {
	h, _ := l.Held(k, node, epoch, epoch)
	return h.Delay
}

func TestCrashLoopForgivesAtFinish(t *testing.T) {
	l, k := NewCrashLoop(), CrashKey(crashTarget())
	for range 7 {
		l.Next(k, node, epoch, epoch)
	}
	// It ran for 9 minutes and is held back for 5: what counts is the time of its end, not of the
	// question.
	finished := epoch.Add(9 * time.Minute)
	now := finished.Add(4 * time.Minute)
	h, held := l.Held(k, node, finished, now)
	if want := finished.Add(CrashMaximum); !held || !h.Until.Equal(want) {
		t.Errorf("until %v, held %v; want %v", h.Until, held, want)
	}
	if got := l.After(k, node, finished, h.Until); got != CrashMaximum {
		t.Errorf("next delay is %v, want %v", got, CrashMaximum)
	}
}

func TestCrashLoopFollowsLowerMaximum(t *testing.T) {
	l, k := NewCrashLoop(), CrashKey(crashTarget())
	for range 7 {
		l.Next(k, node, epoch, epoch)
	}
	low := BackOff{Initial: time.Second, Maximum: 30 * time.Second, Factor: 2}
	if h, _ := l.Held(k, low, epoch, epoch); h.Delay != low.Maximum {
		t.Errorf("delay is %v, want %v: the pod was given a lower maximum", h.Delay, low.Maximum)
	}
}

func TestCrashLoopOfFirstStarts(t *testing.T) {
	l, k := NewCrashLoop(), CrashKey(crashTarget())
	l.Next(k, node, time.Time{}, epoch)
	if d := l.After(k, node, time.Time{}, epoch); d != 0 {
		t.Errorf("a container that never ended will be held back for %v", d)
	}
	if _, held := l.Held(k, node, time.Time{}, epoch); held {
		t.Error("a container that never ended is held back")
	}
}

func TestCrashLoopOfRemoved(t *testing.T) {
	l, k := NewCrashLoop(), CrashKey(crashTarget())
	at := epoch
	for _, want := range []time.Duration{0, 10 * time.Second, 20 * time.Second} {
		at = at.Add(time.Minute)
		l.Removed(k, at, at)
		h, held := l.Held(k, node, time.Time{}, at)
		if h.Delay != want || held != (want > 0) {
			t.Errorf("a container that was removed after its end has the delay %v, want %v", h.Delay, want)
		}
		at = at.Add(want)
		l.Next(k, node, time.Time{}, at)
		if _, held := l.Held(k, node, time.Time{}, at); held {
			t.Error("the end of an incarnation that was restarted since still counts")
		}
	}
}

func TestCrashLoopResumes(t *testing.T) {
	l, k := NewCrashLoop(), CrashKey(crashTarget())
	l.Resume(k, 40*time.Second, epoch, epoch.Add(time.Minute))
	finished := epoch.Add(30 * time.Second)
	if h, held := l.Held(k, node, finished, finished); !held || h.Delay != 40*time.Second {
		t.Errorf("got %+v, held %v; want the delay of the earlier agent", h, held)
	}
	l.Next(k, node, finished, finished)
	l.Resume(k, 10*time.Second, epoch, finished)
	if got := l.After(k, node, finished, finished); got != 160*time.Second {
		t.Errorf("next delay is %v, want 2m40s: what is known already stays", got)
	}
	if _, held := l.Held(k, node, finished.Add(11*time.Minute), finished.Add(11*time.Minute)); held {
		t.Error("a long run is not forgiven")
	}
}

func TestCrashLoopKey(t *testing.T) {
	l := NewCrashLoop()
	p, c := crashTarget()
	l.Next(CrashKey(p, c), node, epoch, epoch)
	if got := delayOf(l, CrashKey(p, c)); got != CrashInitial {
		t.Fatalf("delay is %v, want %v", got, CrashInitial)
	}
	for name, change := range map[string]func(p *v1.Pod, c *v1.Container){
		"image":     func(_ *v1.Pod, c *v1.Container) { c.Image = "app:v2" },
		"container": func(_ *v1.Pod, c *v1.Container) { c.Name = "other" },
		"pod":       func(p *v1.Pod, _ *v1.Container) { p.UID = "u2" },
		"resources": func(_ *v1.Pod, c *v1.Container) {
			c.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}
		},
	} {
		p, c := crashTarget()
		change(p, c)
		if got := delayOf(l, CrashKey(p, c)); got != 0 {
			t.Errorf("with another %s the back-off is %v, want none", name, got)
		}
	}
	p, c = crashTarget()
	c.Env = []v1.EnvVar{{Name: "A"}}
	if got := delayOf(l, CrashKey(p, c)); got != CrashInitial {
		t.Errorf("with another environment the back-off is %v, want %v", got, CrashInitial)
	}
}

func TestCrashLoopClockSteps(t *testing.T) {
	t.Run("finish time in the future", func(t *testing.T) {
		l, k := NewCrashLoop(), CrashKey(crashTarget())
		l.Next(k, node, epoch, epoch)
		finished := epoch.Add(24 * time.Hour) // the clock was a day ahead when the container ended
		first := epoch.Add(time.Minute)
		want := first.Add(CrashInitial)
		for _, later := range []time.Duration{0, 3 * time.Second, 9 * time.Second} {
			h, held := l.Held(k, node, finished, first.Add(later))
			if !held || !h.Until.Equal(want) {
				t.Errorf("%v later: until %v, held %v; want %v, so that the wait ends", later, h.Until, held, want)
			}
		}
		if _, held := l.Held(k, node, finished, want); held {
			t.Error("the back-off does not end")
		}
		if got := l.After(k, node, finished, want); got != 2*CrashInitial {
			t.Errorf("next delay is %v, want %v: a finish time in the future is no long run", got, 2*CrashInitial)
		}
	})
	t.Run("clock set back while it is held back", func(t *testing.T) {
		l, k := NewCrashLoop(), CrashKey(crashTarget())
		l.Next(k, node, epoch, epoch)
		finished := epoch.Add(time.Hour)
		l.Held(k, node, finished, epoch.Add(time.Minute))
		back := epoch.Add(-24 * time.Hour)
		h, _ := l.Held(k, node, finished, back)
		if want := back.Add(CrashInitial); !h.Until.Equal(want) {
			t.Errorf("until %v, want %v", h.Until, want)
		}
	})
}

func TestCrashLoopGC(t *testing.T) {
	l, k := NewCrashLoop(), CrashKey(crashTarget())
	l.Next(k, node, epoch, epoch)
	l.GC(epoch.Add(CrashReset))
	if delayOf(l, k) == 0 {
		t.Fatal("forgotten too early")
	}
	// A container that waits is in use, however long ago its last restart is.
	asked := epoch.Add(9 * time.Minute)
	l.Held(k, node, asked, asked)
	l.GC(epoch.Add(CrashReset + time.Minute))
	if delayOf(l, k) == 0 {
		t.Fatal("forgotten while it waits")
	}
	l.GC(asked.Add(CrashReset + 1))
	if delayOf(l, k) != 0 {
		t.Error("never forgotten")
	}

	l.Next(k, node, epoch, epoch)
	back := epoch.Add(-24 * time.Hour)
	l.GC(back)
	l.GC(back.Add(CrashReset + 1))
	if delayOf(l, k) != 0 {
		t.Error("not forgotten after the clock was set back")
	}
}
