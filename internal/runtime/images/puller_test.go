package images_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod/lifecycle"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
	"berth/internal/runtime/images"
)

// store is a runtime's image store whose pulls take time and can fail.
type store struct {
	takes      time.Duration
	inspectErr error
	passwords  map[string]string // of images that not everybody may pull
	smaller    uint64            // than 700 bytes is what is pulled, by so much

	mu       sync.Mutex
	present  map[string]*runtimeapi.Image
	failures []error // of the next pulls
	pulls    []string
	auths    []string // of pulls: user:password, or "" for none
	ended    int      // pulls whose context ended first
	running  int
	most     int // pulls at one time
}

func (s *store) ImageStatus(_ context.Context, spec *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.present[spec.Image], s.inspectErr
}

func (s *store) PullImage(ctx context.Context, spec *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	s.mu.Lock()
	shown := ""
	if auth != nil {
		shown = auth.Username + ":" + auth.Password
	}
	s.auths = append(s.auths, shown)
	s.pulls = append(s.pulls, spec.Image+spec.RuntimeHandler)
	s.running++
	s.most = max(s.most, s.running)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
	}()
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		s.mu.Lock()
		s.ended++
		s.mu.Unlock()
		return "", ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.failures) > 0 {
		err := s.failures[0]
		s.failures = s.failures[1:]
		if err != nil {
			return "", err
		}
	}
	if want, ok := s.passwords[spec.Image]; ok && auth.GetPassword() != want {
		return "", fmt.Errorf("401 for %q", auth.GetUsername())
	}
	if s.present == nil {
		s.present = map[string]*runtimeapi.Image{}
	}
	img := &runtimeapi.Image{Id: "id:" + spec.Image, Size: 700 - s.smaller}
	s.present[spec.Image] = img
	return img.Id, nil
}

func (s *store) ListImages(context.Context) ([]*runtimeapi.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.present)), s.inspectErr
}

type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Event(_ *v1.Pod, container, eventtype, reason, message string) {
	messagestest.SawEvent(reason, message)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf("%s: %s %s %s", container, eventtype, reason, message))
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.events
	r.events = nil
	return out
}

func newPuller(s *store, parallel int) (*images.Puller, *recorder, *journal.Journal) {
	r := &recorder{}
	j := journal.New(slog.New(slog.DiscardHandler))
	return images.New(images.Config{Runtime: s, Recorder: r, Journal: j, MaxParallel: parallel}), r, j
}

func podOf(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: uid}}
}

func container(name, image string, policy v1.PullPolicy) *v1.Container {
	return &v1.Container{Name: name, Image: image, ImagePullPolicy: policy}
}

func ensure(ctx context.Context, p *images.Puller, uid types.UID, c *v1.Container) (images.Result, error) {
	r, err := p.Ensure(ctx, podOf(uid), c, &runtimeapi.PodSandboxConfig{}, "")
	saw(err)
	return r, err
}

// saw records why a container waits for its image.
func saw(err error) {
	var e *images.Error
	if errors.As(err, &e) {
		messagestest.Saw("waiting", e.Reason, e.Message)
	}
}

func TestEnsureByPolicy(t *testing.T) {
	const app = "registry.example/app:v1"
	digestOne, digestTwo := "sha256:"+strings.Repeat("1", 64), "sha256:"+strings.Repeat("2", 64)
	present := map[string]*runtimeapi.Image{app: {Id: "sha256:1"}}
	tests := map[string]struct {
		store           *store
		image           string
		policy          v1.PullPolicy
		want            images.Result
		reason, message string
		pull            string
		events          []string
	}{
		"if not present, present": {
			store: &store{present: present}, image: app, policy: v1.PullIfNotPresent,
			want:   images.Result{Ref: "sha256:1"},
			events: []string{`c: Normal Pulled Container image "registry.example/app:v1" already present on machine and can be accessed by the pod`},
		},
		"if not present, absent": {
			store: &store{takes: 1500 * time.Millisecond}, image: app, policy: v1.PullIfNotPresent,
			want: images.Result{Ref: "id:" + app, Pulled: true, Took: 1500 * time.Millisecond}, pull: app,
			events: []string{
				`c: Normal Pulling Pulling image "registry.example/app:v1"`,
				`c: Normal Pulled Successfully pulled image "registry.example/app:v1" in 1.5s (1.5s including waiting). Image size: 700 bytes.`,
			},
		},
		"always asks although present": {
			store: &store{present: map[string]*runtimeapi.Image{app: {Id: "sha256:1"}}, takes: time.Second}, image: app, policy: v1.PullAlways,
			want: images.Result{Ref: "id:" + app, Pulled: true, Took: time.Second}, pull: app,
			events: []string{
				`c: Normal Pulling Pulling image "registry.example/app:v1"`,
				`c: Normal Pulled Successfully pulled image "registry.example/app:v1" in 1s (1s including waiting). Image size: 700 bytes.`,
			},
		},
		"never, present": {
			store: &store{present: present}, image: app, policy: v1.PullNever,
			want:   images.Result{Ref: "sha256:1"},
			events: []string{`c: Normal Pulled Container image "registry.example/app:v1" already present on machine and can be accessed by the pod`},
		},
		"never, absent": {
			store: &store{}, image: app, policy: v1.PullNever,
			reason: "ErrImageNeverPull", message: `Container image "registry.example/app:v1" is not present with pull policy of Never`,
			events: []string{
				`c: Warning ErrImageNeverPull Container image "registry.example/app:v1" is not present with pull policy of Never`,
				`c: Warning Failed Error: ErrImageNeverPull`,
			},
		},
		"never, other digest": {
			store: &store{present: map[string]*runtimeapi.Image{app: {Id: "sha256:1", RepoTags: []string{app}, RepoDigests: []string{"registry.example/app@" + digestOne}}}},
			image: app + "@" + digestTwo, policy: v1.PullNever,
			reason:  "ErrImageNeverPull",
			message: `Container image "registry.example/app:v1@` + digestTwo + `" is not present with pull policy of Never: registry.example/app:v1 has digest ` + digestOne + ` on this node`,
			events: []string{
				`c: Warning ErrImageNeverPull Container image "registry.example/app:v1@` + digestTwo + `" is not present with pull policy of Never: registry.example/app:v1 has digest ` + digestOne + ` on this node`,
				`c: Warning Failed Error: ErrImageNeverPull`,
			},
		},
		"no policy and no tag: always, latest": {
			store: &store{present: map[string]*runtimeapi.Image{"app:latest": {Id: "old"}}}, image: "app",
			want: images.Result{Ref: "id:app:latest", Pulled: true}, pull: "app:latest",
			events: []string{
				`c: Normal Pulling Pulling image "app"`,
				`c: Normal Pulled Successfully pulled image "app" in 0s (0s including waiting). Image size: 700 bytes.`,
			},
		},
		"no policy and a tag: if not present": {
			store: &store{present: present}, image: app,
			want:   images.Result{Ref: "sha256:1"},
			events: []string{`c: Normal Pulled Container image "registry.example/app:v1" already present on machine and can be accessed by the pod`},
		},
		"invalid name": {
			store: &store{}, image: "App:v1", policy: v1.PullIfNotPresent, reason: "InvalidImageName",
			message: `Failed to apply default image tag "App:v1": couldn't parse image name "App:v1": invalid reference format: repository name (library/App) must be lowercase`,
			events: []string{
				`c: Warning InspectFailed Failed to apply default image tag "App:v1": couldn't parse image name "App:v1": invalid reference format: repository name (library/App) must be lowercase`,
				`c: Warning Failed Error: InvalidImageName`,
			},
		},
		"inspect fails": {
			store: &store{inspectErr: errors.New("no snapshotter")}, image: app, policy: v1.PullIfNotPresent, reason: "ImageInspectError",
			message: `Failed to inspect image "registry.example/app:v1": no snapshotter`,
			events: []string{
				`c: Warning InspectFailed Failed to inspect image "registry.example/app:v1": no snapshotter`,
				`c: Warning Failed Error: ImageInspectError`,
			},
		},
		"pull fails": {
			store: &store{failures: []error{errors.New("not found")}}, image: app, policy: v1.PullIfNotPresent, pull: app,
			reason: "ErrImagePull", message: "not found",
			events: []string{
				`c: Normal Pulling Pulling image "registry.example/app:v1"`,
				`c: Warning Failed Failed to pull image "registry.example/app:v1": not found`,
				`c: Warning Failed Error: ErrImagePull`,
			},
		},
		"registry unavailable": {
			store: &store{failures: []error{errors.New("rpc error: RegistryUnavailable: 503")}}, image: app, policy: v1.PullIfNotPresent, pull: app,
			reason:  "RegistryUnavailable",
			message: "image pull failed for registry.example/app:v1 because the registry is unavailable: rpc error: RegistryUnavailable: 503",
			events: []string{
				`c: Normal Pulling Pulling image "registry.example/app:v1"`,
				`c: Warning Failed Failed to pull image "registry.example/app:v1": image pull failed for registry.example/app:v1 because the registry is unavailable: rpc error: RegistryUnavailable: 503`,
				`c: Warning Failed Error: RegistryUnavailable`,
			},
		},
		"bad signature": {
			store: &store{failures: []error{errors.New("SignatureValidationFailed: no key")}}, image: app, policy: v1.PullIfNotPresent, pull: app,
			reason:  "SignatureValidationFailed",
			message: "image pull failed for registry.example/app:v1 because the signature validation failed: SignatureValidationFailed: no key",
			events: []string{
				`c: Normal Pulling Pulling image "registry.example/app:v1"`,
				`c: Warning Failed Failed to pull image "registry.example/app:v1": image pull failed for registry.example/app:v1 because the signature validation failed: SignatureValidationFailed: no key`,
				`c: Warning Failed Error: SignatureValidationFailed`,
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, rec, j := newPuller(tt.store, 1)
				got, err := ensure(t.Context(), p, "u1", container("c", tt.image, tt.policy))
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("result (-want +got):\n%s", diff)
				}
				var e *images.Error
				if errors.As(err, &e) != (tt.reason != "") {
					t.Fatalf("error %v, want reason %q", err, tt.reason)
				}
				if e != nil && (e.Reason != tt.reason || e.Message != tt.message) {
					t.Errorf("got %s: %s\nwant %s: %s", e.Reason, e.Message, tt.reason, tt.message)
				}
				if diff := cmp.Diff(tt.events, rec.take()); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				if got := strings.Join(tt.store.pulls, " "); got != tt.pull {
					t.Errorf("pulled %q, want %q", got, tt.pull)
				}
				if n := len(j.Read("default", "web")); n != 1 {
					t.Errorf("%d journal entries, want 1", n)
				}
			})
		})
	}
}

func TestBackOffDoublesAndExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		p, rec, _ := newPuller(s, 0)
		c := container("c", "app:v1", v1.PullIfNotPresent)
		held := func() *images.Error {
			t.Helper()
			_, err := ensure(t.Context(), p, "u1", c)
			var e *images.Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want an image error", err)
			}
			return e
		}
		// fail lets a pull fail and the moment pass in which that is shown, and returns the
		// back-off.
		fail := func() time.Duration {
			t.Helper()
			s.failures = []error{errors.New("gone")}
			began := time.Now()
			e := held()
			if again := held(); e.Reason != lifecycle.ErrImagePull || again != e {
				t.Fatalf("got %v, then %v; want a failed pull, and the same at once after it", e, again)
			}
			rec.take()
			time.Sleep(time.Until(e.BackOffUntil))
			e = held()
			if want := `Back-off pulling image "app:v1": ErrImagePull: gone`; e.Reason != lifecycle.ImagePullBackOff || e.Message != want {
				t.Fatalf("%s: %q, want ImagePullBackOff: %q", e.Reason, e.Message, want)
			}
			if diff := cmp.Diff([]string{
				`c: Normal BackOff Back-off pulling image "app:v1"`,
				`c: Warning Failed Error: ImagePullBackOff`,
			}, rec.take()); diff != "" {
				t.Fatalf("events (-want +got):\n%s", diff)
			}
			return e.BackOffUntil.Sub(began)
		}
		for _, want := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
			if got := fail(); got != want*time.Second {
				t.Fatalf("back-off %v, want %v", got, want*time.Second)
			}
			time.Sleep(want*time.Second - 500*time.Millisecond - time.Nanosecond)
			if e := held(); e.Reason != lifecycle.ImagePullBackOff || time.Until(e.BackOffUntil) != time.Nanosecond {
				t.Fatalf("just before the end: %v", e)
			}
			if events := rec.take(); len(events) > 0 {
				t.Fatalf("told again: %q", events)
			}
			time.Sleep(time.Nanosecond)
		}
		time.Sleep(601 * time.Second)
		if got := fail(); got != 10*time.Second {
			t.Errorf("back-off after a long silence %v, want 10s", got)
		}
		if _, err := ensure(t.Context(), p, "u2", c); err != nil {
			t.Errorf("another pod is held back too: %v", err)
		}
	})
}

func TestContainersShareOnePull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{takes: time.Second, failures: []error{errors.New("gone")}}
		p, _, _ := newPuller(s, 0)
		var wg sync.WaitGroup
		errs := make([]error, 3)
		for i := range errs {
			wg.Go(func() {
				_, errs[i] = ensure(t.Context(), p, "u1", container(fmt.Sprint("c", i), "app:v1", v1.PullAlways))
			})
		}
		wg.Wait()
		if len(s.pulls) != 1 {
			t.Errorf("%d pulls, want 1", len(s.pulls))
		}
		for i, err := range errs {
			var e *images.Error
			if !errors.As(err, &e) || e.Reason != lifecycle.ErrImagePull || time.Until(e.BackOffUntil) != 500*time.Millisecond {
				t.Errorf("container %d: %v; three waiters of one failure are one back-off step", i, err)
			}
		}
		if _, err := p.Ensure(t.Context(), podOf("u2"), container("c", "app:v1", v1.PullAlways), nil, "kata"); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"app:v1", "app:v1kata"}, s.pulls); diff != "" {
			t.Errorf("pulls (-want +got):\n%s", diff)
		}
	})
}

func TestPullsAreBounded(t *testing.T) {
	for parallel, want := range map[int]int{0: 6, 1: 1, 4: 4} {
		t.Run(fmt.Sprint(parallel), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{takes: time.Second}
				p, _, _ := newPuller(s, parallel)
				var wg sync.WaitGroup
				for i := range 6 {
					wg.Go(func() {
						if _, err := ensure(t.Context(), p, "u1", container("c", fmt.Sprint("app:", i), v1.PullAlways)); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				if s.most != want {
					t.Errorf("%d pulls at one time, want %d", s.most, want)
				}
			})
		})
	}
}

func TestCancelledCallerLeavesThePullToTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{takes: time.Minute}
		p, rec, _ := newPuller(s, 1)
		first, cancelFirst := context.WithCancel(t.Context())
		second, cancelSecond := context.WithCancel(t.Context())
		c := container("c", "app:v1", v1.PullAlways)
		errs := make(chan error, 2)
		go func() { _, err := ensure(first, p, "u1", c); errs <- err }()
		synctest.Wait()
		go func() { _, err := ensure(second, p, "u1", c); errs <- err }()
		synctest.Wait()

		cancelFirst()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("first caller: %v, want cancellation", err)
		}
		synctest.Wait()
		if s.ended != 0 {
			t.Error("the pull ended although a caller waits for it")
		}
		cancelSecond()
		err := <-errs
		var e *images.Error
		if !errors.Is(err, context.Canceled) || errors.As(err, &e) {
			t.Errorf("second caller: %v, want cancellation and no image error", err)
		}
		if s.ended != 1 {
			t.Error("nobody waits, and the pull goes on")
		}
		rec.take()
		if _, err := ensure(t.Context(), p, "u1", c); err != nil {
			t.Errorf("cancellation left a back-off or a dead pull behind: %v", err)
		}
	})
}

func TestCancelledWhileQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{takes: time.Minute}
		p, _, _ := newPuller(s, 1)
		done := make(chan error, 1)
		go func() {
			_, err := ensure(t.Context(), p, "u1", container("c", "slow:v1", v1.PullAlways))
			done <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := ensure(ctx, p, "u1", container("d", "queued:v1", v1.PullAlways)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"slow:v1"}, s.pulls); diff != "" {
			t.Errorf("pulls (-want +got):\n%s", diff)
		}
	})
}
