package dra_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/pod"
	"berth/internal/resources/dra/dratest"
)

// A new agent knows what containers get, asks drivers again before a new sandbox, and takes back
// what pods held that are gone.
func TestRestart(t *testing.T) {
	inBubble(t, func(w *world) {
		one, two := w.driver("one.example.com"), w.driver("two.example.com")
		a := w.start(one, two)
		w.claim("a", []*driver{one}, "p", "q")
		w.claim("b", []*driver{two}, "gone")
		p := newPod("p", "a")
		w.prepare(a, p)
		w.prepare(a, newPod("q", "a"))
		w.prepare(a, newPod("gone", "b"))
		a.stop()

		a = w.start(one)
		devices, err := a.CDIDevices(p, &p.Spec.Containers[0])
		w.want("devices", devices, "[one.example.com/device=a-device]")
		w.want("error", err, nil)
		if err := dratest.SetDevices(one.Dir, "a", dratest.Device{Name: "other"}); err != nil {
			w.Fatal(err)
		}
		w.prepare(a, p)
		w.want("calls", one.calls(), "[prepare a prepare a]")
		devices, _ = a.CDIDevices(p, &p.Spec.Containers[0])
		w.want("devices, which were not added to those of before", devices, "[one.example.com/device=a-other]")

		w.claim("c", []*driver{one}, "new")
		w.prepare(a, newPod("new", "c")) // came after it was asked who is wanted
		a.Retain(map[pod.UID]bool{"p": true})
		pass(10 * time.Second)
		w.want("calls", one.calls(), "[prepare a prepare a prepare c]") // p uses a
		w.want("prepared", two.prepared(), "[b]")
		w.register(a, two)
		pass(time.Second)
		w.want("prepared", two.prepared(), "[]")
		w.unprepare(a, "p")
		w.unprepare(a, "new")
		w.want("prepared", one.prepared(), "[]")
		a.stop()
		if content, err := os.ReadFile(w.state()); err != nil || !strings.Contains(string(content), `ClaimInfoStateList\":[]`) {
			w.Errorf("file: %s, %v", content, err)
		}
	})
}

// A pod that is deleted by force leaves its claim in use until its containers have ended. Until
// then nobody else gets the claim of that name, or devices of its old allocation; then they do at
// once.
func TestForcedDeletion(t *testing.T) {
	for name, test := range map[string]struct{ uid, want string }{
		"new claim":      {"other", "old ResourceClaim with same name a and different UID a still exists (previous pod force-deleted?!)"},
		"new allocation": {"a", "ResourceClaim a: reallocated while a pod of its old allocation still exists (previous pod force-deleted?!)"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				d := w.driver("one.example.com")
				a := w.start(d)
				w.claim("a", []*driver{d}, "p")
				w.prepare(a, newPod("p", "a"))
				c := w.claim("a", []*driver{d}, "q")
				c.UID, c.Status.Allocation.Devices.Results[0].Device = "", "another"
				if test.uid == "other" {
					kubetest.Remove[*resourcev1.ResourceClaim](w.API, "default", "a")
					c.UID = "other"
				}
				kubetest.Put(w.API, c)
				w.fails(a.Prepare(w.Context(), newPod("q", "a")), "prepare dynamic resources: "+test.want)
				a.woken()
				w.unprepare(a, "p")
				w.want("woken", a.woken(), "[q]")
				w.prepare(a, newPod("q", "a"))
				w.want("prepared", d.prepared(), "["+test.uid+"]")
			})
		})
	}
}

// Pods are woken 1 s after a failure, then after twice as long each time, up to 1 min, until they
// come through; and those of earlier agents are tried again in the same way.
func TestBackOff(t *testing.T) {
	inBubble(t, func(w *world) {
		d := w.driver("one.example.com")
		a := w.start(d)
		w.claim("a", []*driver{d})
		p := newPod("p", "a")
		for _, seconds := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
			if err := a.Prepare(w.Context(), p); err == nil {
				w.Fatal("prepared")
			}
			pass(time.Duration(seconds)*time.Second - time.Millisecond)
			w.want(fmt.Sprintf("woken before %d s", seconds), a.woken(), "[]")
			pass(time.Millisecond)
			w.want(fmt.Sprintf("woken after %d s", seconds), a.woken(), "[p]")
		}
		pass(time.Hour)
		w.want("woken before it tries", a.woken(), "[]")
		w.claim("a", []*driver{d}, "p")
		w.prepare(a, p)
		if err := dratest.Break(d.Dir, dratest.Unprepare, dratest.Fail, codes.Internal); err != nil {
			w.Fatal(err)
		}
		w.fails(a.Unprepare(w.Context(), "p"), "unprepare dynamic resources: DRA driver one.example.com: NodeUnprepareResources: rpc error: code = Internal desc = as the test wants it")
		pass(time.Second)
		w.want("woken to be taken back", a.woken(), "[p]")
		a.stop()

		a = w.start(d)
		for range 3 {
			if err := dratest.Break(d.Dir, dratest.Unprepare, dratest.Refuse, 0); err != nil {
				w.Fatal(err)
			}
			a.Retain(nil)
			synctest.Wait()
		}
		if err := dratest.Break(d.Dir, dratest.Unprepare, dratest.Hang, 0); err != nil {
			w.Fatal(err)
		}
		pass(time.Second)
		w.want("prepared while the driver hangs", d.prepared(), "[a]")
		pass(45*time.Second + 2*time.Second)
		w.want("prepared", d.prepared(), "[]")
		w.want("woken", a.woken(), "[]")
	})
}

// On a disk that takes nothing, no driver is asked for anything that nobody would take back.
func TestDiskThatTakesNothing(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		inBubble(t, func(w *world) {
			d := w.driver("one.example.com")
			a := w.start(d)
			w.claim("a", []*driver{d}, "p")
			mend := fail(w.root)
			err := a.Prepare(w.Context(), newPod("p", "a"))
			if err == nil || !strings.HasPrefix(err.Error(), "prepare dynamic resources: keep which pods use which claims: write "+w.state()) {
				w.Errorf("error = %v", err)
			}
			w.want("calls", d.calls(), "[]")
			mend()
			w.prepare(a, newPod("p", "a"))
			mend = fail(w.root)
			if err := a.Unprepare(w.Context(), "p"); err == nil {
				w.Error("the claim is taken back, and the file says that it is not")
			}
			mend()
			w.unprepare(a, "p")
			w.want("calls", d.calls(), "[prepare a unprepare a]")
			if content, err := os.ReadFile(w.state()); err != nil || !strings.Contains(string(content), `ClaimInfoStateList\":[]`) {
				w.Errorf("file: %s, %v", content, err)
			}
		})
	})
}

// life is a pod's on a machine whose agent is killed somewhere: two drivers, one claim of both, and
// one that another pod shares.
type life struct {
	*world
	one, two *driver
	a        *agent
	killAt   int // of the steps of drivers, from 1; 0 is never
	steps    int
	killed   string
	mend     func()
}

// struck counts a step, and kills the agent at it if it is time: it sees no answer, and writes
// nothing any more.
func (l *life) struck(what string) error {
	l.steps++
	if l.steps != l.killAt {
		return nil
	}
	l.killed = what
	l.mend = checkpointtest.ReadOnly(l.T, l.root)
	l.a.leave()
	return errors.New("the agent is gone")
}

func (l *life) listen(d *driver) {
	d.intercept = func(_ context.Context, method string, carryOut func() error) error {
		if err := l.struck("before " + method + " of " + d.Name); err != nil {
			return err
		}
		if err := carryOut(); err != nil {
			return err
		}
		return l.struck("after " + method + " of " + d.Name)
	}
}

// try does something until it works, with a new agent after a kill. The new agent is asked for the
// same again by its pod workers, or finds that the pod is gone.
func (l *life) try(do func() error) {
	l.Helper()
	for range 3 {
		err := do()
		if err == nil {
			return
		}
		if l.killed == "" || l.a.ctx.Err() == nil {
			l.Fatalf("killed %q: %v", l.killed, err)
		}
		<-l.a.done
		l.mend()
		l.a = l.start(l.one, l.two)
		l.a.Retain(map[pod.UID]bool{"p": true, "q": true})
	}
	l.Fatal("it does not work")
}

// An agent that is killed before or after any call of a driver has the next one end up the same.
func TestAgentKilledAtEachStep(t *testing.T) {
	steps := 1
	for at := 0; at <= steps; at++ {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			inBubble(t, func(w *world) {
				l := &life{world: w, one: w.driver("one.example.com"), two: w.driver("two.example.com"), killAt: at}
				l.listen(l.one)
				l.listen(l.two)
				l.a = w.start(l.one, l.two)
				w.claim("a", []*driver{l.one, l.two}, "p")
				w.claim("b", []*driver{l.one}, "p", "q")
				p, q := newPod("p", "a", "b"), newPod("q", "b")
				l.try(func() error { return l.a.Prepare(l.a.ctx, p) })
				l.try(func() error { return l.a.Prepare(l.a.ctx, q) })
				w.want("prepared by one", l.one.prepared(), "[a b]")
				w.want("prepared by two", l.two.prepared(), "[a]")
				for want, p := range map[string]*v1.Pod{"[one.example.com/device=a-device two.example.com/device=a-device one.example.com/device=b-device]": p, "[one.example.com/device=b-device]": q} {
					devices, err := l.a.CDIDevices(p, &p.Spec.Containers[0])
					w.want("devices", devices, want)
					w.want("error", err, nil)
				}
				l.try(func() error { return l.a.Unprepare(l.a.ctx, "p") })
				w.want("prepared by one when p is gone", l.one.prepared(), "[b]")
				w.want("prepared by two when p is gone", l.two.prepared(), "[]")
				l.try(func() error { return l.a.Unprepare(l.a.ctx, "q") })
				w.want("prepared by one at the end", l.one.prepared(), "[]")
				if content, err := os.ReadFile(w.state()); err != nil || !strings.Contains(string(content), `ClaimInfoStateList\":[]`) {
					w.Errorf("file: %s, %v", content, err)
				}
				if at == 0 {
					steps = l.steps
				} else if l.killed == "" {
					w.Error("the agent was not killed")
				}
			})
		})
	}
	if steps < 10 {
		t.Errorf("there are only %d steps", steps)
	}
}
