package podconfig

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

func TestCommonEnds(t *testing.T) {
	for _, tt := range []struct {
		a, b       string
		head, tail int
	}{
		{"", "", 0, 0},
		{"abc", "", 0, 0},
		{"abc", "abc", 3, 0},
		{"abc", "axc", 1, 1},
		{"abc", "abxc", 2, 1},
		{"abc", "ac", 1, 1},
		{"aaa", "aa", 2, 0},
		{"aa", "aaa", 2, 0},
		{"abc", "xbc", 0, 2},
		{"abc", "cba", 0, 0},
	} {
		head, tail := commonEnds([]byte(tt.a), []byte(tt.b), func(a, b byte) bool { return a == b })
		if head != tt.head || tail != tt.tail {
			t.Errorf("%q, %q: got %d, %d, want %d, %d", tt.a, tt.b, head, tail, tt.head, tt.tail)
		}
	}
}

// Whatever a source hands over one after the other, the census is that of the last set alone, and
// the operations lead to what the set wants.
func TestSetsThatFollowEachOther(t *testing.T) {
	cfg := newConfig()
	cfg.API = func(func()) PodWatch { return nil }
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	f := c.feeds[0]
	var set []*v1.Pod
	loop := map[pod.UID]*v1.Pod{}
	doubles, updates := 0, 0
	for step := range 1000 {
		set = slices.Clone(set)
		for range r.IntN(3) {
			p := testPod(fmt.Sprint(r.IntN(12)), fmt.Sprint("pod", r.IntN(12)), func(p *v1.Pod) { p.Labels = map[string]string{"step": fmt.Sprint(step)} })
			switch at := r.IntN(len(set) + 1); {
			case at == len(set) || r.IntN(3) == 0:
				set = slices.Insert(set, at, p)
			case r.IntN(2) == 0:
				set = slices.Delete(set, at, at+1)
			case r.IntN(2) == 0: // another version of the pod
				p.UID, p.Name = set[at].UID, set[at].Name
				set[at] = p
			default:
				set[at], set[0] = set[0], set[at]
			}
		}
		kept, problems := mergeDuplicates(pod.APISource, set)
		c.handOver(f, snapshot{pods: set})
		if r.IntN(4) == 0 {
			continue // the loop is slow
		}
		for _, u := range c.Take() {
			for _, p := range u.Pods {
				switch u.Op {
				case pod.REMOVE:
					delete(loop, p.UID)
				case pod.UPDATE:
					updates++
					fallthrough
				default:
					loop[p.UID] = p
				}
			}
		}
		if !slices.Equal(f.newest.pods, kept) || len(f.newest.problems) != len(problems) || (f.duplicates.doubles > 0) != (len(problems) > 0) {
			t.Fatalf("seed %d, step %d: %d pods and %d problems, want %d and %d; %d doubles",
				seed, step, len(f.newest.pods), len(f.newest.problems), len(kept), len(problems), f.duplicates.doubles)
		}
		fresh := duplicates{}
		fresh.follow(set)
		if f.duplicates.doubles != fresh.doubles || !maps.Equal(f.duplicates.names, fresh.names) || !maps.Equal(f.duplicates.uids, fresh.uids) {
			t.Fatalf("seed %d, step %d: census %+v, want %+v", seed, step, f.duplicates, fresh)
		}
		doubles += fresh.doubles
		want := map[pod.UID]*v1.Pod{}
		for _, p := range kept {
			want[p.UID] = p
		}
		if !maps.EqualFunc(loop, want, func(has, p *v1.Pod) bool {
			return pod.FullNameOf(has) == pod.FullNameOf(p) && maps.Equal(has.Labels, p.Labels) && pod.SourceOf(has) == pod.APISource
		}) {
			t.Fatalf("seed %d, step %d: the loop has %v, want %v", seed, step, loop, want)
		}
	}
	if doubles == 0 || updates == 0 {
		t.Errorf("%d doubles, %d updates", doubles, updates)
	}
}

// A pod that the API server shows again is the same one, by pointer: the loop is not told of it.
func TestUnchangedPodsOfTheAPIAreNotCompared(t *testing.T) {
	cfg := newConfig()
	cfg.API = func(func()) PodWatch { return nil }
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a, b := testPod("1", "a", func(p *v1.Pod) { p.Annotations = nil }), testPod("2", "b")
	c.handOver(c.feeds[0], snapshot{pods: []*v1.Pod{a, b}})
	c.Take()
	c.handOver(c.feeds[0], snapshot{pods: []*v1.Pod{a, b}})
	if got := c.feeds[0].newest.pods[0]; got != a {
		t.Error("the pod is a copy")
	}
	if got := c.Take(); len(got) > 0 {
		t.Errorf("operations: %s", ops(got))
	}
}
