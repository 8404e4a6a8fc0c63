package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/sync/podworkers"
)

// world is a machine with pods, and a diary of what is done to them with the seconds after its
// beginning.
type world struct {
	began    time.Time
	diary    []string
	workers  map[pod.UID]bool
	finished *pod.Inbox[pod.UID]
	relisted chan struct{}
	known    []*pod.Status
	// endsBy is what ends a pod: "update" or "cgroup"; a pod that is not in it ends by nothing.
	endsBy    map[pod.UID]string
	processes map[pod.UID][]cgroups.Process
}

func newWorld(uids ...pod.UID) *world {
	w := &world{
		began: time.Now(), workers: map[pod.UID]bool{}, finished: pod.NewInbox[pod.UID](), relisted: make(chan struct{}),
		endsBy: map[pod.UID]string{}, processes: map[pod.UID][]cgroups.Process{},
	}
	close(w.relisted)
	for _, uid := range uids {
		w.workers[uid] = true
		w.known = append(w.known, &pod.Status{UID: uid})
	}
	return w
}

func (w *world) drain() *Drain {
	log := slog.New(slog.DiscardHandler)
	return New(Config{
		Pods: noPods{}, Workers: w, Observed: w, Leftovers: w.Known, Cgroups: w, ReadOnly: func() bool { return false },
		Journal: journal.New(log), Log: log,
	})
}

func (w *world) note(format string, args ...any) {
	w.diary = append(w.diary, fmt.Sprintf("%3.0f s: ", time.Since(w.began).Seconds())+fmt.Sprintf(format, args...))
}

func (w *world) end(uid pod.UID, by string) {
	if w.endsBy[uid] == by {
		delete(w.workers, uid)
		w.finished.Put(uid)
	}
}

func (w *world) SyncKnownPods(map[pod.UID]*v1.Pod) { w.note("nothing is wanted") }
func (w *world) WakeAll()                          {}
func (w *world) WakePod(pod.UID)                   {}

func (w *world) UpdatePod(o podworkers.UpdatePodOptions) {
	uid := o.RunningPod.UID
	w.note("kill %s within %d s", uid, *o.KillPodOptions.PodTerminationGracePeriodSecondsOverride)
	w.workers[uid] = true
	w.end(uid, "update")
}

func (w *world) All() []pod.UID {
	var out []pod.UID
	for _, s := range w.known {
		if w.workers[s.UID] {
			out = append(out, s.UID)
		}
	}
	return out
}

func (w *world) Has(uid pod.UID) bool          { return w.workers[uid] }
func (w *world) Len() int                      { return len(w.workers) }
func (w *world) Finished() *pod.Inbox[pod.UID] { return w.finished }

func (w *world) Relisted() <-chan struct{} { return w.relisted }
func (w *world) Health() error             { return errors.New("it hangs") }
func (w *world) Known() []*pod.Status      { return w.known }

func (w *world) Newest(uid pod.UID) (*pod.Status, bool) {
	for _, s := range w.known {
		if s.UID == uid {
			return s, true
		}
	}
	return nil, false
}

func (w *world) KillPod(_ context.Context, uid pod.UID) error {
	w.note("kill the cgroup of %s", uid)
	w.end(uid, "cgroup")
	return nil
}

func (w *world) Processes(uid pod.UID) ([]cgroups.Process, error) { return w.processes[uid], nil }

// noPods are no desired pods.
type noPods struct{}

func (noPods) List() []*v1.Pod { return nil }
func (noPods) Remove(*v1.Pod)  {}

// What does not end is asked with less and less patience.
func TestEndPods(t *testing.T) {
	for _, c := range []struct {
		name  string
		world func() *world
		diary []string
		left  Left
	}{
		{
			name: "a leftover", diary: []string{"  0 s: nothing is wanted", "  0 s: kill a within 1 s"},
			world: func() *world {
				w := newWorld("a")
				w.endsBy["a"] = "update"
				delete(w.workers, "a") // which nobody has wanted
				return w
			},
		},
		{
			name:  "by its cgroup",
			diary: []string{"  0 s: nothing is wanted", " 90 s: kill a within 1 s", "105 s: kill the cgroup of a"},
			world: func() *world {
				w := newWorld("a")
				w.endsBy["a"] = "cgroup"
				return w
			},
		},
		{
			name:  "by nothing",
			diary: []string{"  0 s: nothing is wanted", " 90 s: kill a within 1 s", "105 s: kill the cgroup of a"},
			world: func() *world { return newWorld("a") },
			left:  Left{"pod of UID a: not removed: its end takes longer"},
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := c.world()
			d := w.drain()
			if err := d.EndPods(t.Context()); (err != nil) != (len(c.left) > 0) {
				t.Errorf("%s: %v", c.name, err)
			}
			if diff := cmp.Diff(c.diary, w.diary); diff != "" {
				t.Errorf("%s: done (-want +got):\n%s", c.name, diff)
			}
			if diff := cmp.Diff(c.left, d.Left()); diff != "" {
				t.Errorf("%s: left (-want +got):\n%s", c.name, diff)
			}
		})
	}
}

// A runtime that does not list its pods keeps no pod of a worker from its end, and is named.
func TestEndPodsOfARuntimeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.relisted = make(chan struct{})
		err := w.drain().EndPods(t.Context())
		if want := "the runtime did not list its pods within 1m30s: it hangs"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
}

func TestWhatIsLeft(t *testing.T) {
	w := newWorld("a", "b", "c")
	w.processes["a"] = []cgroups.Process{
		{PID: 1, Command: "sleep", Container: "named"}, {PID: 2, Command: "tail", Container: "unknown"}, {PID: 3, Command: "sh"},
	}
	w.known[1].Containers = []pod.ContainerStatus{{ID: "x", Name: "main", State: pod.StateRunning}, {ID: "y", Name: "done", State: pod.StateExited}}
	d := w.drain()
	d.Journal.Record(journal.Entry{Subject: journal.Subject{UID: "a", Namespace: "default", Name: "web"}, Decision: "it ends"})
	d.Journal.Record(journal.Entry{Subject: journal.Subject{UID: "c"}, Error: "device is busy"})
	names := map[pod.ContainerID]string{"named": "main"}
	want := Left{
		"pod default/web, container main: process 1 (sleep)",
		"pod default/web, container unknown: process 2 (tail)",
		"pod default/web: process 3 (sh)",
		"pod of UID b, container main: it runs, says the runtime",
		"pod of UID b: not removed: its end takes longer",
		"pod of UID c: not removed: device is busy",
	}
	if diff := cmp.Diff(want, d.whatIsLeft([]pod.UID{"a", "b", "c"}, names)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	d.ReadOnly = func() bool { return true } // nothing can be forgotten: what runs is left, and that alone
	if diff := cmp.Diff(want[:3], d.whatIsLeft([]pod.UID{"a", "b", "c"}, names)); diff != "" {
		t.Errorf("on a read-only disk (-want +got):\n%s", diff)
	}
}

// runtime notes how it is ended.
type runtime struct {
	calls []string
	err   error
}

func (r *runtime) Stop(context.Context) error {
	r.calls = append(r.calls, "Stop")
	return r.err
}

func (r *runtime) EndShims(context.Context) error {
	r.calls = append(r.calls, "EndShims")
	return nil
}

func (r *runtime) EndAll(context.Context) error {
	r.calls = append(r.calls, "EndAll")
	return nil
}

func TestEndRuntime(t *testing.T) {
	for _, c := range []struct {
		name     string
		left     Left
		readOnly bool
		err      error
		calls    []string
		wantLeft Left
	}{
		{name: "all has ended", calls: []string{"Stop", "EndShims"}},
		{name: "a pod is left", left: Left{"a"}, calls: []string{"Stop"}, wantLeft: Left{"a"}},
		{name: "a read-only disk", readOnly: true, calls: []string{"Stop", "EndAll"}},
		{name: "it does not stop", err: errors.New("it hangs"), calls: []string{"Stop"}, wantLeft: Left{"it hangs"}},
	} {
		d := newWorld().drain()
		d.left, d.ReadOnly = c.left, func() bool { return c.readOnly }
		r := &runtime{err: c.err}
		if err := d.EndRuntime(t.Context(), r); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.calls, r.calls); diff != "" {
			t.Errorf("%s: calls (-want +got):\n%s", c.name, diff)
		}
		if diff := cmp.Diff(c.wantLeft, d.Left()); diff != "" {
			t.Errorf("%s: left (-want +got):\n%s", c.name, diff)
		}
	}
}

// What is the agent's goes; a folder in which others have something stays.
func TestRemoveFiles(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, folder := range []string{"journal/old", "empty", "others/x"} {
		if err := os.MkdirAll(in(folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"probes.json", "probes.json" + checkpoint.AsideSuffix, "mine"} {
		if err := os.WriteFile(in(file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own := []string{in("probes.json"), in("journal"), in("none")}
	if err := RemoveFiles(own, []string{in("empty"), in("others"), in("none"), ""}); err != nil {
		t.Error(err)
	}
	var left []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if diff := cmp.Diff([]string{"mine", "others"}, left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}
