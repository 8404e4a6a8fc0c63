package images_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/runtime/images"
)

func lookAhead(p *images.Puller, uid types.UID, containers ...*v1.Container) {
	var ahead []images.PrefetchContainer
	for _, c := range containers {
		ahead = append(ahead, images.PrefetchContainer{Container: c})
	}
	p.Prefetch(podOf(uid), ahead, &runtimeapi.PodSandboxConfig{}, "")
}

func TestPrefetchByPolicy(t *testing.T) {
	const app = "registry.example/app:v1"
	tests := map[string]struct {
		present    bool
		image      string
		policy     v1.PullPolicy
		behindInit bool
		pulls      []string
		pinned     map[string]bool
	}{
		"if not present, absent":       {image: app, policy: v1.PullIfNotPresent, behindInit: true, pulls: []string{app}, pinned: map[string]bool{"id:" + app: true}},
		"if not present, present":      {present: true, image: app, policy: v1.PullIfNotPresent, behindInit: true, pinned: map[string]bool{"id:" + app: true}},
		"always":                       {present: true, image: app, policy: v1.PullAlways, pulls: []string{app}, pinned: map[string]bool{"id:" + app: true}},
		"always, behind an init":       {image: app, policy: v1.PullAlways, behindInit: true},
		"no policy and no tag, behind": {image: "registry.example/app", behindInit: true},
		"never":                        {image: app, policy: v1.PullNever},
		"invalid name":                 {image: "App:v1", policy: v1.PullIfNotPresent},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{takes: time.Second}
				if tt.present {
					s.present = map[string]*runtimeapi.Image{app: {Id: "id:" + app}}
				}
				p, r, _ := newPuller(s, 1)
				for range 2 { // the second time it has been begun
					p.Prefetch(podOf("1"), []images.PrefetchContainer{{Container: container("c", tt.image, tt.policy), BehindInit: tt.behindInit}}, nil, "")
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if d := cmp.Diff(tt.pulls, s.pulls); d != "" {
					t.Errorf("pulls: %s", d)
				}
				want := tt.pinned
				if want == nil {
					want = map[string]bool{}
				}
				if d := cmp.Diff(want, p.Pinned()); d != "" {
					t.Errorf("pinned: %s", d)
				}
				if events := r.take(); len(events) != 0 {
					t.Errorf("events: %q", events)
				}
				p.Forget("1")
				if got := p.Pinned(); len(got) != 0 {
					t.Errorf("pinned for a pod that is forgotten: %v", got)
				}
			})
		})
	}
}

func TestPrefetchCountsForOneStartWithinAMinute(t *testing.T) {
	c := container("c", "registry.example/app:v1", v1.PullAlways)
	tests := map[string]struct {
		later time.Duration
		pulls int // after the first start
	}{
		"soon":     {time.Minute, 1},
		"too late": {time.Minute + time.Second, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{}
				p, _, _ := newPuller(s, 1)
				lookAhead(p, "1", c)
				synctest.Wait()
				time.Sleep(tt.later)
				for start := range 2 {
					got, err := ensure(t.Context(), p, "1", c)
					if err != nil || !got.Pulled {
						t.Fatalf("start %d: %+v, %v", start, got, err)
					}
					if want := tt.pulls + start; len(s.pulls) != want {
						t.Errorf("%d pulls after start %d, want %d", len(s.pulls), start, want)
					}
				}
			})
		})
	}
}

// A container that joins a look-ahead under way has had its first start with it.
func TestPrefetchUnderWayIsJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{takes: 10 * time.Second}
		p, r, _ := newPuller(s, 1)
		c := container("c", "registry.example/app:v1", v1.PullAlways)
		lookAhead(p, "1", c)
		time.Sleep(8 * time.Second)
		if _, err := ensure(t.Context(), p, "1", c); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{
			`c: Normal Pulling Pulling image "registry.example/app:v1"`,
			`c: Normal Pulled Successfully pulled image "registry.example/app:v1" in 10s (10s including waiting). Image size: 700 bytes.`,
		}, r.take()); d != "" {
			t.Error(d)
		}
		if _, err := ensure(t.Context(), p, "1", c); err != nil || len(s.pulls) != 2 {
			t.Errorf("second start: %d pulls, %v", len(s.pulls), err)
		}
	})
}

// Pulls that containers wait for come first, and a look-ahead becomes one of them when its
// container's turn comes.
func TestPrefetchGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{takes: 10 * time.Second}
		p, _, _ := newPuller(s, 1)
		lookAhead(p, "1", container("a", "first:1", ""), container("b", "second:1", ""), container("c", "third:1", ""))
		synctest.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		first := s.pulls[0]
		last := map[string]string{"first:1": "second:1", "second:1": "first:1", "third:1": "first:1"}[first]
		done := make(chan error, 2)
		go func() { _, err := ensure(t.Context(), p, "2", container("x", "other:1", "")); done <- err }()
		synctest.Wait()
		go func() { _, err := ensure(t.Context(), p, "1", container("w", last, "")); done <- err }()
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if d := cmp.Diff([]string{first, "other:1", last}, s.pulls[:3]); d != "" {
			t.Error(d)
		}
		p.Forget("1")
		synctest.Wait()
	})
}

func TestPrefetchThatFailsIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{failures: []error{errors.New("no route to host")}}
		p, r, j := newPuller(s, 1)
		c := container("c", "registry.example/app:v1", v1.PullIfNotPresent)
		lookAhead(p, "1", c)
		synctest.Wait()
		lookAhead(p, "1", c)
		synctest.Wait()
		if len(s.pulls) != 1 || len(r.take()) != 0 || len(p.Pinned()) != 0 {
			t.Errorf("%d pulls, pinned %v", len(s.pulls), p.Pinned())
		}
		entries := j.Read("default", "web")
		if len(entries) != 1 || !strings.Contains(entries[0].Error, "no route to host") {
			t.Errorf("journal: %+v", entries)
		}
		// It is no reason to hold the container back.
		if _, err := ensure(t.Context(), p, "1", c); err != nil || len(s.pulls) != 2 {
			t.Errorf("%d pulls, %v", len(s.pulls), err)
		}
	})
}

func TestPrefetchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{takes: time.Hour}
		p, _, _ := newPuller(s, 0)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		lookAhead(p, "1", container("c", "app:1", ""))
		lookAhead(p, "2", container("c", "app:2", ""))
		synctest.Wait()
		p.Forget(pod.UID("1"))
		synctest.Wait()
		if s.ended != 1 {
			t.Errorf("%d pulls ended with their pod", s.ended)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || s.ended != 2 {
			t.Errorf("%d pulls ended with the agent, %v", s.ended, err)
		}
		lookAhead(p, "3", container("c", "app:3", ""))
		synctest.Wait()
		if len(s.pulls) != 2 {
			t.Errorf("pulls begun at the end: %q", s.pulls)
		}
	})
}
