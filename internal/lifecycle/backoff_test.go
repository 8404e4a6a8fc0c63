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

// delays lets a container crash n times, each time after it ran for the given time, and returns how long it was held back.
func delays(l *CrashLoop, k CrashLoopKey, n int, ran time.Duration) []time.Duration {
	now := epoch
	var out []time.Duration
	for range n {
		finished := now.Add(ran)
		now = finished
		if until, wait := l.Until(k, finished, now); wait {
			now = until
		}
		if _, wait := l.Until(k, finished, now); wait {
			panic("a back-off does not end at its end")
		}
		out = append(out, now.Sub(finished))
		l.Next(k, finished, now)
	}
	return out
}

func TestCrashLoopDelays(t *testing.T) {
	const s = time.Second
	for _, tt := range []struct {
		name string
		loop *CrashLoop
		ran  time.Duration
		want []time.Duration
	}{
		{"default", NewCrashLoop(), s, []time.Duration{0, 10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 300 * s, 300 * s}},
		{"long runs that are not long enough", NewCrashLoop(), 10 * time.Minute, []time.Duration{0, 10 * s, 20 * s, 40 * s}},
		{"runs that are forgiven", NewCrashLoop(), 10*time.Minute + 1, []time.Duration{0, 0, 0}},
		{"cap", NewCappedCrashLoop(25 * s), s, []time.Duration{0, 10 * s, 20 * s, 25 * s, 25 * s}},
		{"cap below the base", NewCappedCrashLoop(s), s, []time.Duration{0, s, s, s}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := CrashKey(crashTarget())
			if got := delays(tt.loop, k, len(tt.want), tt.ran); !slices.Equal(got, tt.want) {
				t.Errorf("held back for %v, want %v", got, tt.want)
			}
		})
	}
}

func TestCrashLoopForgivesAtFinish(t *testing.T) {
	l, k := NewCrashLoop(), CrashKey(crashTarget())
	for range 7 {
		l.Next(k, epoch, epoch)
	}
	// It ran for 9 minutes and is held back for 5: what counts is the time of its end, not of the question.
	finished := epoch.Add(9 * time.Minute)
	now := finished.Add(4 * time.Minute)
	until, wait := l.Until(k, finished, now)
	if want := finished.Add(CrashCap); !wait || !until.Equal(want) {
		t.Errorf("until %v, wait %v; want %v", until, wait, want)
	}
	l.Next(k, finished, until)
	if got := l.Delay(k); got != CrashCap {
		t.Errorf("delay is %v, want %v", got, CrashCap)
	}
}

func TestCrashLoopKey(t *testing.T) {
	l := NewCrashLoop()
	p, c := crashTarget()
	l.Next(CrashKey(p, c), epoch, epoch)
	if got := l.Delay(CrashKey(p, c)); got != CrashBase {
		t.Fatalf("delay is %v, want %v", got, CrashBase)
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
		if got := l.Delay(CrashKey(p, c)); got != 0 {
			t.Errorf("with another %s the back-off is %v, want none", name, got)
		}
	}
	p, c = crashTarget()
	c.Env = []v1.EnvVar{{Name: "A"}}
	if got := l.Delay(CrashKey(p, c)); got != CrashBase {
		t.Errorf("with another environment the back-off is %v, want %v", got, CrashBase)
	}
}

func TestCrashLoopClockSteps(t *testing.T) {
	t.Run("finish time in the future", func(t *testing.T) {
		l, k := NewCrashLoop(), CrashKey(crashTarget())
		l.Next(k, epoch, epoch)
		finished := epoch.Add(24 * time.Hour) // the clock was a day ahead when the container ended
		first := epoch.Add(time.Minute)
		want := first.Add(CrashBase)
		for _, later := range []time.Duration{0, 3 * time.Second, 9 * time.Second} {
			until, wait := l.Until(k, finished, first.Add(later))
			if !wait || !until.Equal(want) {
				t.Errorf("%v later: until %v, wait %v; want %v, so that the wait ends", later, until, wait, want)
			}
		}
		if _, wait := l.Until(k, finished, want); wait {
			t.Error("the back-off does not end")
		}
		l.Next(k, finished, want)
		if got := l.Delay(k); got != 2*CrashBase {
			t.Errorf("next delay is %v, want %v: a finish time in the future is no long run", got, 2*CrashBase)
		}
	})
	t.Run("clock set back while it is held back", func(t *testing.T) {
		l, k := NewCrashLoop(), CrashKey(crashTarget())
		l.Next(k, epoch, epoch)
		finished := epoch.Add(time.Hour)
		l.Until(k, finished, epoch.Add(time.Minute))
		back := epoch.Add(-24 * time.Hour)
		until, _ := l.Until(k, finished, back)
		if want := back.Add(CrashBase); !until.Equal(want) {
			t.Errorf("until %v, want %v", until, want)
		}
	})
}

func TestCrashLoopGC(t *testing.T) {
	l, k := NewCrashLoop(), CrashKey(crashTarget())
	l.Next(k, epoch, epoch)
	l.GC(epoch.Add(CrashReset))
	if l.Delay(k) == 0 {
		t.Fatal("forgotten too early")
	}
	// A container that waits is in use, however long ago its last restart is.
	asked := epoch.Add(9 * time.Minute)
	l.Until(k, asked, asked)
	l.GC(epoch.Add(CrashReset + time.Minute))
	if l.Delay(k) == 0 {
		t.Fatal("forgotten while it waits")
	}
	l.GC(asked.Add(CrashReset + 1))
	if l.Delay(k) != 0 {
		t.Error("never forgotten")
	}

	l.Next(k, epoch, epoch)
	back := epoch.Add(-24 * time.Hour)
	l.GC(back)
	l.GC(back.Add(CrashReset + 1))
	if l.Delay(k) != 0 {
		t.Error("not forgotten after the clock was set back")
	}
}
