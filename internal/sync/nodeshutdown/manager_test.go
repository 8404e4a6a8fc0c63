package nodeshutdown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/host/logind"
	"berth/internal/observe/metrics/metricstest"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
)

// world is a machine with pods that end when their grace period is over.
type world struct {
	t      *testing.T
	start  time.Time
	states *pod.States
	cfg    Config
	state  State
	log    text
	reg    *prometheus.Registry

	mu       sync.Mutex
	pods     []*v1.Pod                // guarded by mu
	lasts    map[string]time.Duration // guarded by mu; how long pods take that do not end in time
	did      []string                 // guarded by mu; what happened, with the time
	statuses map[pod.UID]v1.PodStatus // guarded by mu
	begun    bool                     // guarded by mu
	conns    []*conn                  // guarded by mu
	fails    map[string]error         // guarded by mu; calls of logind
}

// text is a log.
type text struct {
	mu sync.Mutex
	b  strings.Builder // guarded by mu
}

func (l *text) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// conn is a fake connection to logind.
type conn struct {
	*world
	shutdowns chan bool
}

// lock is one that delays shutdowns.
type lock struct{ *world }

func newWorld(t *testing.T, groups ...Group) *world {
	w := &world{
		t: t, start: time.Now(), states: pod.NewStates(), reg: prometheus.NewRegistry(), lasts: map[string]time.Duration{},
		statuses: map[pod.UID]v1.PodStatus{}, fails: map[string]error{},
	}
	log := slog.New(slog.NewTextHandler(&w.log, nil))
	known := make(chan struct{})
	close(known)
	w.cfg = Config{
		Groups: groups, Connect: w.connect, Lifecycles: w.states, Known: known, Killer: w, State: &w.state,
		Pods: func() []*v1.Pod {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Clone(w.pods)
		},
		NodeEvent: func(eventtype, reason, message string) {
			messagestest.SawEvent(reason, message)
			w.note("event %s %s %s", eventtype, reason, message)
		},
		Changed: func() { w.note("node: %v", w.state.Err()) },
		Path:    filepath.Join(t.TempDir(), "graceful_node_shutdown_state"), Metrics: w.reg, Journal: journal.New(log), Log: log,
	}
	return w
}

// run runs a manager until the test ends.
func (w *world) run() *Manager {
	m := New(w.cfg)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := m.Run(ctx); !errors.Is(err, context.Canceled) {
			w.t.Errorf("run: %v", err)
		}
	}()
	w.t.Cleanup(func() {
		cancel()
		<-done
	})
	synctest.Wait()
	return m
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.did = append(w.did, fmt.Sprintf("%gs ", time.Since(w.start).Seconds())+fmt.Sprintf(format, args...))
}

func (w *world) failure(call string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fails[call]
}

func (w *world) fail(call string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fails[call] = err
}

func (w *world) connect(context.Context) (Logind, error) {
	if err := w.failure("connect"); err != nil {
		return nil, err
	}
	w.note("connect")
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &conn{w, make(chan bool, 1)}
	c.shutdowns <- w.begun
	w.conns = append(w.conns, c)
	return c, nil
}

func (c *conn) EnsureDelay(_ context.Context, want time.Duration) error {
	c.note("ensure %v", want)
	return c.failure("ensure")
}

func (c *conn) Inhibit(context.Context) (io.Closer, error) {
	if err := c.failure("inhibit"); err != nil {
		return nil, err
	}
	c.note("lock")
	return lock{c.world}, nil
}

func (c *conn) Shutdowns() <-chan bool { return c.shutdowns }
func (c *conn) Close() error           { return nil }

func (l lock) Close() error {
	l.note("unlock")
	return nil
}

// signal has logind tell of a shutdown, or of its end.
func (w *world) signal(begins bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = begins
	c := w.conns[len(w.conns)-1].shutdowns
	select {
	case <-c:
	default:
	}
	c <- begins
}

// lose ends the connection.
func (w *world) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.conns[len(w.conns)-1].shutdowns)
}

// ShutDownPod implements Killer.
func (w *world) ShutDownPod(p *v1.Pod, grace int64, status func(*v1.PodStatus)) {
	w.note("kill %s %d", p.Name, grace)
	s := v1.PodStatus{Phase: v1.PodRunning}
	status(&s)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statuses[p.UID] = s
	lasts, ok := w.lasts[p.Name]
	if !ok {
		lasts = time.Duration(grace) * time.Second
	}
	w.states.Set(p.UID, pod.Lifecycle{State: pod.Terminating})
	time.AfterFunc(lasts-lasts/4, func() { w.states.Set(p.UID, pod.Lifecycle{State: pod.Terminated}) })
	time.AfterFunc(lasts, func() { w.states.Set(p.UID, pod.Lifecycle{State: pod.Finished}) })
}

// add has a pod run.
func (w *world) add(name string, priority int32, grace int64) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: pod.UID(name)},
		Spec:       v1.PodSpec{Priority: &priority, TerminationGracePeriodSeconds: ptr.To(grace)},
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods = append(w.pods, p)
	w.states.Set(p.UID, pod.Lifecycle{State: pod.Syncing})
	return p
}

// expect compares what happened since it was asked last.
func (w *world) expect(want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.did, want) {
		w.t.Errorf("it did\n\t%s\nwant\n\t%s", strings.Join(w.did, "\n\t"), strings.Join(want, "\n\t"))
	}
	w.did = nil
}

// last returns what happened last.
func (w *world) last() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.did[len(w.did)-1]
}

func (w *world) file() string {
	b, err := os.ReadFile(w.cfg.Path)
	if err != nil {
		w.t.Error(err)
	}
	return string(b)
}

func (w *world) times() (start, end float64) {
	w.t.Helper()
	is := metricstest.Values(w.t, w.reg)
	return is["kubelet_graceful_shutdown_start_time_seconds"], is["kubelet_graceful_shutdown_end_time_seconds"]
}

// The whole of a shutdown: the order of the groups, a group that takes its whole time, one without
// pods, and pods that ended by themselves.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Group{0, 20}, Group{1000, 40}, Group{2000000000, 10})
		w.add("web", 0, 10)
		w.add("slow", -3, 3600)
		w.lasts["slow"] = time.Hour
		w.add("quick", 999, 4)
		w.add("dns", 2000000000, 3)
		w.add("done", 0, 30)
		w.states.Set("done", pod.Lifecycle{State: pod.Finished})
		w.add("unmounting", 0, 30)
		w.states.Set("unmounting", pod.Lifecycle{State: pod.Terminated})
		w.run()
		w.expect("0s connect", "0s ensure 1m10s", "0s lock")
		if w.state.ShuttingDown() {
			t.Error("it shuts down")
		}
		time.Sleep(time.Minute)
		w.signal(true)
		w.expect(
			"60s event Normal Shutdown Shutdown manager detected shutdown event", "60s node: node is shutting down",
			"60s kill web 10", "60s kill slow 20", "60s kill quick 4",
		)
		if got, want := w.file(), `{"startTime":"2000-01-01T00:01:00Z"}`; got != want {
			t.Errorf("file %s, want %s", got, want)
		}
		if start, end := w.times(); start != 946684860 || end != 0 {
			t.Errorf("metrics %f, %f", start, end)
		}
		time.Sleep(20 * time.Second)
		w.expect("80s kill dns 3")
		if !strings.Contains(w.log.String(), "slow_default(slow)") || strings.Contains(w.log.String(), "web_default(web)") {
			t.Errorf("log: %s", w.log.String())
		}
		time.Sleep(3 * time.Second)
		w.expect("83s unlock")
		if got, want := w.file(), `{"startTime":"2000-01-01T00:01:00Z","endTime":"2000-01-01T00:01:23Z"}`; got != want {
			t.Errorf("file %s, want %s", got, want)
		}
		if start, end := w.times(); start != 946684860 || end != 946684883 {
			t.Errorf("metrics %f, %f", start, end)
		}
		if !w.state.ShuttingDown() {
			t.Error("it does not shut down")
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if s := w.statuses["dns"]; s.Phase != v1.PodFailed || s.Reason != "Terminated" {
			t.Errorf("status %s %s", s.Phase, s.Reason)
		}
	})
}

// A group waits until volumes are unmounted, not just until containers have ended.
func TestVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Group{0, 20})
		w.add("web", 0, 8)
		w.run()
		w.signal(true)
		time.Sleep(7 * time.Second) // Terminated at 6 s
		if did := w.last(); did != "0s kill web 8" {
			t.Errorf("did %s", did)
		}
		time.Sleep(time.Second)
		if did := w.last(); did != "8s unlock" {
			t.Errorf("did %s", did)
		}
	})
}

// An agent that has just started waits until it knows all pods, and not for ever.
func TestKnown(t *testing.T) {
	for name, tt := range map[string]struct {
		ran   time.Duration // before the shutdown
		after time.Duration
		want  []string
		warns bool
	}{
		"soon":        {0, 3 * time.Second, []string{"3s kill web 8", "3s kill late 8"}, false},
		"never":       {0, time.Hour, []string{"10s kill web 8"}, true},
		"not for 4 s": {4 * time.Second, time.Hour, []string{"10s kill web 8"}, true},
		"long not":    {time.Minute, time.Hour, []string{"60s kill web 8"}, true}, // pods have all the time that there is
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Group{0, 20})
				w.add("web", 0, 8)
				known := make(chan struct{})
				w.cfg.Known = known
				time.AfterFunc(tt.after, func() {
					w.add("late", 0, 8)
					close(known)
				})
				w.run()
				time.Sleep(tt.ran)
				w.signal(true)
				time.Sleep(max(0, 10*time.Second-tt.ran))
				at := fmt.Sprintf("%.fs ", tt.ran.Seconds())
				w.expect(append([]string{"0s connect", "0s ensure 20s", "0s lock", at + "event Normal Shutdown " + detectedEvent, at + "node: node is shutting down"}, tt.want...)...)
				if warns := strings.Contains(w.log.String(), "not all pods of this node are known"); warns != tt.warns {
					t.Errorf("log: %s", w.log.String())
				}
			})
		})
	}
}

// The machine is let go when the API server has been told how the pods ended, or takes
// too long.
func TestTold(t *testing.T) {
	for name, tt := range map[string]struct {
		takes time.Duration
		until string
		warns bool
	}{
		"told": {2 * time.Second, "10s unlock", false},
		"slow": {time.Hour, "18s unlock", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Group{0, 20})
				w.add("web", 0, 8)
				w.add("db", 0, 5)
				w.cfg.Publish = func(ctx context.Context, pods []pod.UID) error {
					w.note("tell %q", pods)
					if pod.Pause(ctx, tt.takes) {
						return nil
					}
					return ctx.Err()
				}
				w.run()
				w.signal(true)
				time.Sleep(8 * time.Second)
				if did := w.last(); did != `8s tell ["web" "db"]` {
					t.Errorf("did %s", did)
				}
				time.Sleep(10 * time.Second)
				if did := w.last(); did != tt.until {
					t.Errorf("did %s, want %s", did, tt.until)
				}
				if warns := strings.Contains(w.log.String(), "Failed to report the final status of all pods"); warns != tt.warns {
					t.Errorf("log: %s", w.log.String())
				}
				if want := `"endTime":"2000-01-01T00:00:08Z"`; !strings.Contains(w.file(), want) {
					t.Errorf("the file has %s, want %s", w.file(), want)
				}
			})
		})
	}
}

// A shutdown that is called off while pods end is heard of when they have; then the next one is
// delayed again.
func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Group{0, 20})
		w.add("web", 0, 5)
		w.run()
		w.signal(true)
		time.Sleep(time.Second)
		w.signal(false)
		synctest.Wait()
		if !w.state.ShuttingDown() {
			t.Error("it was called off while pods end")
		}
		time.Sleep(4 * time.Second)
		w.expect(
			"0s connect", "0s ensure 20s", "0s lock", "0s event Normal Shutdown Shutdown manager detected shutdown event", "0s node: node is shutting down",
			"0s kill web 5", "5s unlock",
			"5s event Normal Shutdown Shutdown manager detected shutdown cancellation", "5s node: <nil>", "5s lock",
		)
		w.add("again", 0, 2)
		w.signal(true)
		time.Sleep(2 * time.Second)
		w.expect(
			"5s event Normal Shutdown Shutdown manager detected shutdown event", "5s node: node is shutting down", "5s kill again 2", "7s unlock",
		)
	})
}

// The bus goes away and comes back: the lock of before goes when there is a new one, and what was
// signalled meanwhile is learned.
func TestReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Group{0, 20})
		w.run()
		w.expect("0s connect", "0s ensure 20s", "0s lock")
		w.fail("connect", errors.New("gone"))
		w.lose()
		w.expect()
		time.Sleep(2500 * time.Millisecond) // tries at 1 s and 3 s
		w.fail("connect", nil)
		time.Sleep(500 * time.Millisecond)
		w.expect("3s connect", "3s ensure 20s", "3s lock", "3s unlock")

		w.lose()
		w.fail("inhibit", fmt.Errorf("delay shutdowns: %w", logind.ErrInProgress))
		w.mu.Lock()
		w.begun = true
		w.mu.Unlock()
		time.Sleep(time.Second)
		w.expect(
			"4s connect", "4s ensure 20s", "4s event Normal Shutdown Shutdown manager detected shutdown event", "4s node: node is shutting down",
			"4s unlock",
		)
		// It is called off while there is no connection.
		w.lose()
		w.fail("inhibit", nil)
		w.mu.Lock()
		w.begun = false
		w.mu.Unlock()
		time.Sleep(time.Second)
		w.expect(
			"5s connect", "5s ensure 20s", "5s lock", "5s event Normal Shutdown Shutdown manager detected shutdown cancellation", "5s node: <nil>",
			"5s lock", "5s unlock",
		)
	})
}

// A machine without logind is told once, and asked again ever less often.
func TestNoLogind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Group{0, 20})
		w.fail("connect", logind.ErrNoBus)
		w.run()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := strings.Count(w.log.String(), "does not wait for pods"); n != 1 {
			t.Errorf("told %d times:\n%s", n, w.log.String())
		}
		w.fail("connect", nil)
		time.Sleep(5 * time.Minute)
		if did := w.last(); !strings.HasSuffix(did, " lock") {
			t.Errorf("did %s", did)
		}
		w.fail("ensure", errors.New("timed out"))
		w.lose()
		time.Sleep(time.Second)
		synctest.Wait()
		if !strings.Contains(w.log.String(), "error=\"timed out\"") {
			t.Errorf("log: %s", w.log.String())
		}
	})
}

// An agent that ends leaves the lock, and a shutdown under way unfinished.
func TestAgentEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Group{0, 20})
		w.add("web", 0, 20)
		m := New(w.cfg)
		ctx, cancel := context.WithCancel(t.Context())
		go m.Run(ctx)
		synctest.Wait()
		w.signal(true)
		synctest.Wait()
		cancel()
		if did := w.last(); did != "0s unlock" || strings.Contains(w.file(), "endTime") {
			t.Errorf("did %s, file %s", did, w.file())
		}
		next := New(Config{Path: w.cfg.Path, Metrics: prometheus.NewRegistry(), Log: w.cfg.Log})
		next.load()
		if !strings.Contains(w.log.String(), "did not wait until all pods had ended") {
			t.Errorf("log: %s", w.log.String())
		}
		time.Sleep(time.Minute)
	})
}

// The times of the last shutdown are those of the file, also of a kubelet.
func TestLoad(t *testing.T) {
	for _, tc := range []struct {
		text       string
		start, end float64
		log        string
	}{
		{`{"startTime":"2000-01-01T00:00:10Z","endTime":"2000-01-01T00:00:20Z"}`, 946684810, 946684820, ""},
		{`{"startTime":"2000-01-01T00:00:10Z","endTime":"0001-01-01T00:00:00Z"}`, 946684810, 0, "did not wait until all"},
		{`{`, 0, 0, "times of the last shutdown from before are lost"},
	} {
		w := newWorld(t, Group{0, 20})
		if err := os.WriteFile(w.cfg.Path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		New(w.cfg).load()
		if start, end := w.times(); start != tc.start || end != tc.end {
			t.Errorf("%s: %f, %f", tc.text, start, end)
		}
		if !strings.Contains(w.log.String(), tc.log) || tc.log == "" && w.log.String() != "" {
			t.Errorf("%s: log %q", tc.text, w.log.String())
		}
	}
}
