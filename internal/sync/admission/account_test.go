package admission

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/allocation"
)

// shown are observations that a test makes.
type shown struct {
	changed *pod.Inbox[pod.UID]
	active  map[pod.UID]bool
}

func (s *shown) Subscribe() *pod.Inbox[pod.UID] { return s.changed }

func (s *shown) Newest(uid pod.UID) (*pod.Status, bool) {
	active, known := s.active[uid]
	return &pod.Status{UID: uid, Sandboxes: []pod.SandboxStatus{{Ready: active}}}, known
}

func newAccounted() (Config, *shown) {
	seen := &shown{pod.NewInbox[pod.UID](), map[pod.UID]bool{}}
	return Config{Pods: pod.NewManager(), States: pod.NewStates(), Allocations: allocation.New(allocation.Config{}), Observed: seen}, seen
}

// What the account says after any changes is what all active pods ask for.
func TestAccountIsTheSumOfActivePods(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	cfg, seen := newAccounted()
	c := New(cfg)
	versions := map[pod.UID]*v1.Pod{}
	counted := 0
	for step := range 5000 {
		p := newPod(fmt.Sprint(r.IntN(8)), requests("cpu", fmt.Sprintf("%dm", r.IntN(5)), "memory", fmt.Sprint(r.IntN(5))))
		if old := versions[p.UID]; old != nil && r.IntN(2) == 0 {
			p = old
		}
		versions[p.UID] = p
		switch r.IntN(9) {
		case 0, 1:
			cfg.Pods.Set(p)
		case 2:
			cfg.Pods.Remove(p)
		case 3:
			cfg.States.Set(p.UID, pod.Lifecycle{State: pod.State(r.IntN(5))})
		case 4:
			cfg.States.Forget(p.UID)
		case 5:
			cfg.Allocations.Allocate(p)
		case 6:
			cfg.Allocations.Grant(p)
		case 7:
			if r.IntN(4) == 0 {
				cfg.Allocations.Retain(map[pod.UID]bool{p.UID: true})
			} else {
				cfg.Allocations.Forget(p.UID)
			}
		case 8:
			if seen.active[p.UID] = r.IntN(2) == 0; r.IntN(2) == 0 {
				delete(seen.active, p.UID)
			}
			seen.changed.Put(p.UID)
		}
		if r.IntN(3) > 0 {
			continue
		}
		want := amounts{}
		for _, o := range c.otherPods(p.UID) {
			want.add(requestsOf(o))
			counted++
		}
		got := c.account.others(p.UID)
		maps.DeleteFunc(got, func(_ v1.ResourceName, n int64) bool { return n == 0 })
		maps.DeleteFunc(want, func(_ v1.ResourceName, n int64) bool { return n == 0 })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d, step %d: -pods +account\n%s", seed, step, diff)
		}
	}
	if counted == 0 {
		t.Error("no pod was ever active")
	}
}

// A pod takes part of the node from its admission, or from when it is seen to run, until it has
// ended.
func TestActivePods(t *testing.T) {
	for _, tc := range []struct {
		name                     string
		state                    pod.State // -1: no worker
		admitted, observed, runs bool
		want                     bool
	}{
		{name: "nothing is known of it", state: -1},
		{name: "waits", state: pod.Waiting},
		{name: "was admitted just now", state: pod.Waiting, admitted: true, want: true},
		{name: "is seen to run by an agent that has no worker for it yet", state: -1, observed: true, runs: true, want: true},
		{name: "is seen, and does not run", state: pod.Waiting, observed: true},
		{name: "runs", state: pod.Syncing, admitted: true, want: true},
		{name: "is ending", state: pod.Terminating, admitted: true, want: true},
		{name: "is ending since before there was this agent", state: pod.Terminating, observed: true, runs: true, want: true},
		{name: "had ended before there was this agent", state: pod.Syncing, observed: true},
		{name: "had ended before there was this agent, as the API server says", state: pod.Terminating, observed: true},
		{name: "has ended", state: pod.Terminated, admitted: true, observed: true, runs: true},
		{name: "is finished", state: pod.Finished, admitted: true},
	} {
		cfg, seen := newAccounted()
		p := newPod("p")
		if tc.state >= 0 {
			cfg.States.Set(p.UID, pod.Lifecycle{State: tc.state})
		}
		if tc.admitted {
			cfg.Allocations.Allocate(p)
		}
		if tc.observed {
			seen.active[p.UID] = tc.runs
		}
		if got := cfg.isActive(p.UID); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// A chain may be built when there are pods already.
func TestAccountOfPodsThatWereThereBefore(t *testing.T) {
	cfg, _ := newAccounted()
	running := newPod("running", requests("cpu", "2"))
	cfg.Pods.Set(running)
	cfg.States.Set(running.UID, pod.Lifecycle{State: pod.Syncing})
	cfg.Allocations.Allocate(running)
	c := New(cfg)
	if got, want := c.account.others("new"), requestsOf(running); !maps.Equal(got, want) {
		t.Errorf("the others ask for %v, want %v", got, want)
	}
}
