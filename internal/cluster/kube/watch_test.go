package kube_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
)

// bubble runs a test in virtual time, with a server and a client of it.
func bubble(t *testing.T, run func(t *testing.T, s *kubetest.Server, c *kube.Client), options ...kubetest.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New(options...)
		run(t, s, open(t, kube.Config{REST: s.Config()}))
	})
}

func open(t *testing.T, config kube.Config) *kube.Client {
	t.Helper()
	config.Log, config.Version = slog.New(slog.DiscardHandler), "v0.0.0-test"
	c, err := kube.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// watched is a Watch that runs, and how often it said that something changed.
type watched[P kube.Watchable] struct {
	*kube.Watch[P]
	changes int
	stop    context.CancelFunc
}

// start runs a watch until the test ends. Its changes are read after synctest.Wait.
func start[P kube.Watchable](t *testing.T, c *kube.Client, s kube.Selector) *watched[P] {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watched[P]{stop: cancel}
	w.Watch = kube.NewWatch[P](c, s, func() { w.changes++ })
	go func() {
		if err := w.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(cancel)
	synctest.Wait()
	return w
}

func (w *watched[P]) names(t *testing.T) []string {
	t.Helper()
	objects, synced := w.List()
	if !synced {
		t.Fatal("the watch is not synced")
	}
	names := []string{}
	for _, o := range objects {
		names = append(names, o.GetName())
	}
	return names
}

func expectNames[P kube.Watchable](t *testing.T, w *watched[P], want ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(append([]string{}, want...), w.names(t)); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

// advance lets the clock of the bubble go on.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func newPod(name, node string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "c", Image: "i"}}},
	}
}

func TestWatchHandsOverTheSetAndItsChanges(t *testing.T) {
	for name, options := range map[string][]kubetest.Option{
		"watch-list":       nil,
		"list, then watch": {kubetest.WithoutWatchList()},
		"JSON":             {kubetest.WithoutProtobuf()},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
				kubetest.Put(s, newPod("a", "here"))
				kubetest.Put(s, newPod("b", "here"))
				w := start[*v1.Pod](t, c, kube.OfNode("here"))
				expectNames(t, w, "a", "b")
				if w.changes != 1 {
					t.Errorf("changed was called %d times for the first list, want once", w.changes)
				}
				kubetest.Put(s, newPod("c", "here"))
				expectNames(t, w, "a", "b", "c")
				changed := newPod("a", "here")
				changed.Labels = map[string]string{"x": "y"}
				kubetest.Put(s, changed)
				kubetest.Remove[*v1.Pod](s, "default", "b")
				expectNames(t, w, "a", "c")
				if a, ok := w.Get("default", "a"); !ok || a.Labels["x"] != "y" {
					t.Errorf("Get a = %v, %v, want the changed one", a, ok)
				}
				if w.changes != 4 {
					t.Errorf("changed was called %d times, want 4: the list, an addition, a change, a removal", w.changes)
				}
			}, options...)
		})
	}
}

func TestWatchRespectsSelectors(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		kubetest.Put(s, newPod("mine", "here"))
		kubetest.Put(s, newPod("theirs", "elsewhere"))
		kubetest.Put(s, newPod("unbound", ""))
		for _, name := range []string{"x", "y"} {
			for _, namespace := range []string{"default", "other"} {
				kubetest.Put(s, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
			}
		}
		pods := start[*v1.Pod](t, c, kube.OfNode("here"))
		one := start[*v1.ConfigMap](t, c, kube.Named("other", "y"))
		expectNames(t, pods, "mine")
		expectNames(t, one, "y")
		if _, ok := one.Get("other", "y"); !ok {
			t.Error("the watch of one config map watches that of another namespace")
		}
		before := pods.changes
		kubetest.Put(s, newPod("also theirs", "elsewhere"))
		expectNames(t, pods, "mine")
		if pods.changes != before {
			t.Error("a pod of another node is a change")
		}
		kubetest.Put(s, newPod("unbound", "here")) // scheduled
		expectNames(t, pods, "mine", "unbound")
	})
}

func TestWatchDeliversAnEmptySet(t *testing.T) {
	bubble(t, func(t *testing.T, _ *kubetest.Server, c *kube.Client) {
		w := start[*v1.Pod](t, c, kube.OfNode("here"))
		expectNames(t, w)
		if w.changes != 1 {
			t.Errorf("changed was called %d times for an empty set, want once: that is how a source becomes seen", w.changes)
		}
	})
}

// A server that is not there, hangs, or is slow when the agent starts must look like no answer,
// never like an empty set.
func TestWatchDeliversNothingBeforeTheFirstList(t *testing.T) {
	for name, test := range map[string]struct {
		trouble func(*kubetest.Server)
		cure    func(*kubetest.Server)
	}{
		"absent":    {(*kubetest.Server).Stop, (*kubetest.Server).Start},
		"forbidden": {fail(kubetest.Answer(http.StatusForbidden, metav1.StatusReasonForbidden, "no")), (*kubetest.Server).Heal},
		"broken":    {fail(kubetest.Answer(http.StatusInternalServerError, metav1.StatusReasonInternalError, "broken")), (*kubetest.Server).Heal},
		"busy":      {fail(kubetest.Busy(time.Second)), (*kubetest.Server).Heal},
		"dropping":  {fail(kubetest.Drop()), (*kubetest.Server).Heal},
		"slow":      {fail(kubetest.Delay(45 * time.Second)), (*kubetest.Server).Heal},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
				kubetest.Put(s, newPod("a", "here"))
				test.trouble(s)
				w := start[*v1.Pod](t, c, kube.OfNode("here"))
				advance(30 * time.Second)
				if objects, synced := w.List(); synced || len(objects) > 0 || w.changes > 0 {
					t.Fatalf("before the first list: %d objects, synced %v, %d changes", len(objects), synced, w.changes)
				}
				select {
				case <-w.Synced():
					t.Fatal("synced before the first list")
				default:
				}
				test.cure(s)
				advance(time.Minute)
				<-w.Synced()
				expectNames(t, w, "a")
				if err := w.Err(); err != nil {
					t.Errorf("Err = %v after a list that worked", err)
				}
			})
		})
	}
}

func fail(then kubetest.Effect) func(*kubetest.Server) {
	return func(s *kubetest.Server) { s.Inject(kubetest.Fault{Then: then}) }
}

func TestWatchTellsWhyItDoesNotWork(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		fail(kubetest.Answer(http.StatusForbidden, metav1.StatusReasonForbidden, "no"))(s)
		w := start[*v1.Secret](t, c, kube.Named("default", "key"))
		if err := w.Err(); !apierrors.IsForbidden(err) {
			t.Errorf("Err = %v, want forbidden", err)
		}
	})
}

func TestWatchKeepsTheSetWhileTheServerIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		kubetest.Put(s, newPod("a", "here"))
		kubetest.Put(s, newPod("b", "here"))
		w := start[*v1.Pod](t, c, kube.OfNode("here"))
		s.Stop()
		advance(10 * time.Minute)
		expectNames(t, w, "a", "b")
		kubetest.Put(s, newPod("c", "here"))
		kubetest.Remove[*v1.Pod](s, "default", "a")
		if w.Err() == nil {
			t.Error("Err = nil while the server is gone")
		}
		s.Start()
		advance(20 * time.Second)
		expectNames(t, w, "b", "c")
	})
}

func TestWatchGoesOnAfterABreak(t *testing.T) {
	for name, interrupt := range map[string]func(*kubetest.Server){
		"connection lost": (*kubetest.Server).BreakWatches,
		"410 in the stream": func(s *kubetest.Server) {
			s.Compact()
			s.ExpireWatches()
		},
		"410 at the next watch": func(s *kubetest.Server) {
			s.BreakWatches()
			kubetest.Put(s, newPod("b", "here"))
			s.Compact()
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
				kubetest.Put(s, newPod("a", "here"))
				w := start[*v1.Pod](t, c, kube.OfNode("here"))
				expectNames(t, w, "a")
				advance(time.Minute)
				interrupt(s)
				kubetest.Put(s, newPod("b", "here"))
				kubetest.Remove[*v1.Pod](s, "default", "a")
				advance(5 * time.Second)
				expectNames(t, w, "b")
				kubetest.Put(s, newPod("c", "here"))
				expectNames(t, w, "b", "c")
			})
		})
	}
}

// Without bookmarks, a quiet watch would ask for a version that is forgotten, and list everything
// anew.
func TestWatchResumesWhereABookmarkLeftIt(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		kubetest.Put(s, newPod("a", "here"))
		w := start[*v1.Pod](t, c, kube.OfNode("here"))
		for range 10 {
			kubetest.Put(s, newPod("theirs", "elsewhere"))
		}
		advance(2 * time.Minute)
		s.Compact()
		s.ForgetRequests()
		advance(12 * time.Minute) // longer than any watch lives
		kubetest.Put(s, newPod("b", "here"))
		expectNames(t, w, "a", "b")
		if len(s.Requests()) == 0 {
			t.Error("the watch did not end in its time")
		}
		for _, q := range s.Requests() {
			if q.Verb != "watch" || q.Query.Get("sendInitialEvents") != "" {
				t.Errorf("%s %s?%s: want no list, but one watch that goes on", q.Method, q.Path, q.Query.Encode())
			}
		}
	})
}

// A watch that is cut off lists again, at least what it has seen: the server may have come back
// with older data.
func TestWatchAfterARestore(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		kubetest.Put(s, newPod("a", "here"))
		restore := s.Snapshot()
		w := start[*v1.Pod](t, c, kube.OfNode("here"))
		for range 100 {
			kubetest.Put(s, newPod("b", "here"))
		}
		expectNames(t, w, "a", "b")
		restore()
		advance(time.Minute)
		expectNames(t, w, "a")
		s.ForgetRequests()
		s.BreakWatches()
		advance(5 * time.Second)
		for _, q := range s.Requests() {
			if q.Verb != "watch" || q.Query.Get("resourceVersion") == "" {
				t.Errorf("%s %s?%s: want one watch that begins with what is known", q.Method, q.Path, q.Query.Encode())
			}
		}
	})
}

func TestWatchStopsAtOnce(t *testing.T) {
	for name, trouble := range map[string]func(*kubetest.Server){
		"healthy": func(*kubetest.Server) {},
		"absent":  (*kubetest.Server).Stop,
		"hanging": fail(kubetest.Hang()),
		"busy":    fail(kubetest.Busy(time.Minute)),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
				trouble(s)
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- kube.NewWatch[*v1.Pod](c, kube.Selector{}, nil).Run(ctx) }()
				advance(3 * time.Second)
				stop()
				synctest.Wait()
				select {
				case err := <-done:
					if err != nil {
						t.Errorf("Run = %v", err)
					}
				default:
					t.Error("Run goes on after its context is done")
				}
			})
		})
	}
}

func TestWatchDropsManagedFields(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		p := newPod("a", "here")
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		kubetest.Put(s, p)
		w := start[*v1.Pod](t, c, kube.Selector{})
		if a, _ := w.Get("default", "a"); a == nil || a.ManagedFields != nil {
			t.Errorf("a = %v, want it without managedFields", a)
		}
	})
}

// However long the trouble takes, the log says once that it began and once that it is over.
func TestWatchLogsTroubleOnce(t *testing.T) {
	for name, test := range map[string]struct {
		trouble func(*kubetest.Server)
		want    []string
	}{
		"none":      {func(*kubetest.Server) {}, nil},
		"absent":    {(*kubetest.Server).Stop, []string{"cannot watch, trying again", "watching again"}},
		"forbidden": {fail(kubetest.Answer(http.StatusForbidden, metav1.StatusReasonForbidden, "no")), []string{"cannot watch, trying again", "watching again"}},
		"lists work, watches do not": {func(s *kubetest.Server) {
			s.Inject(kubetest.Fault{Verb: "watch", Then: kubetest.Answer(http.StatusForbidden, metav1.StatusReasonForbidden, "no")})
		}, []string{"cannot watch, trying again", "watching again"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := kubetest.New(kubetest.WithoutWatchList())
				log := &messages{}
				c, err := kube.Open(kube.Config{REST: s.Config(), Log: slog.New(log)})
				if err != nil {
					t.Fatal(err)
				}
				test.trouble(s)
				start[*v1.Pod](t, c, kube.Selector{})
				advance(10 * time.Minute)
				s.Start()
				s.Heal()
				advance(time.Minute)
				if diff := cmp.Diff(test.want, log.all()); diff != "" {
					t.Errorf("log (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// messages keeps the messages that an operator would see.
// reporting is a transport whose errors its owner has logged, as long as they are.
type reporting struct {
	http.RoundTripper
	err atomic.Pointer[error]
}

func (f *reporting) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := f.err.Load(); err != nil {
		return nil, *err
	}
	return f.RoundTripper.RoundTrip(r)
}

// What the owner of the transport has logged is not logged again by each watch; what fails after it
// is.
func TestWatchLeavesReportedErrorsToTheirOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := kubetest.New(kubetest.WithoutWatchList()), &messages{}
		cfg := s.Config()
		f := &reporting{RoundTripper: cfg.Transport}
		cfg.Transport = f
		fail := func(err error) { f.err.Store(&err) }
		c, err := kube.Open(kube.Config{REST: cfg, Log: slog.New(log)})
		if err != nil {
			t.Fatal(err)
		}
		fail(kube.ReportedError{Err: errors.New("damaged")})
		w := start[*v1.Pod](t, c, kube.Selector{})
		advance(10 * time.Minute)
		if err := w.Err(); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("the watch fails with %v", err)
		}
		f.err.Store(nil)
		advance(10 * time.Minute)
		if got := log.all(); len(got) != 0 || w.Err() != nil {
			t.Errorf("logged %q; the watch fails with %v", got, w.Err())
		}
		fail(kube.ReportedError{Err: errors.New("damaged")})
		s.Stop()
		advance(10 * time.Minute)
		fail(errors.New("away"))
		advance(10 * time.Minute)
		if got := log.all(); !slices.Equal(got, []string{"cannot watch, trying again"}) {
			t.Errorf("logged %q", got)
		}
	})
}

type messages struct {
	mu   sync.Mutex
	kept []string
}

func (m *messages) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }
func (m *messages) WithAttrs([]slog.Attr) slog.Handler           { return m }
func (m *messages) WithGroup(string) slog.Handler                { return m }

func (m *messages) Handle(_ context.Context, r slog.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept = append(m.kept, r.Message)
	return nil
}

func (m *messages) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.kept)
}
