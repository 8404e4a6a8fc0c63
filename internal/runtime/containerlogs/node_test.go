package containerlogs

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/runtime/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limits of the tests: lines have ten bytes.
var limits = Limits{MaxSize: 1000, MaxFiles: 3, Workers: 1, Interval: 10 * time.Second}

// node is a machine with a pod, whose containers write logs.
type node struct {
	t       *testing.T
	dir     string // of the pod
	changed *pod.Inbox[pod.UID]
	journal *journal.Journal
	manager *Manager
	log     strings.Builder
	deaf    bool // there is no inotify
	written chan int

	mu      sync.Mutex
	pod     pod.Status
	files   map[pod.ContainerID]*os.File
	lines   map[pod.ContainerID]int
	watched map[uint64]int // watches by their inodes
	watches int
	reopen  func(id pod.ContainerID, next func() error) error // replaces the runtime's answer
	calls   int
	follows bool // containers' writers follow the path of the log
}

func newNode(t *testing.T, l Limits) *node {
	n := &node{
		t: t, dir: filepath.Join(t.TempDir(), "logs/default_web_u"), changed: pod.NewInbox[pod.UID](), journal: journal.New(slog.New(slog.DiscardHandler)),
		written: make(chan int), pod: pod.Status{UID: "u", Namespace: "default", Name: "web"},
		files: map[pod.ContainerID]*os.File{}, lines: map[pod.ContainerID]int{}, watched: map[uint64]int{},
	}
	n.reopen = func(_ pod.ContainerID, next func() error) error { return next() }
	n.manager = New(Config{
		Limits: l, Runtime: n, Changed: n.changed, Journal: n.journal, Log: slog.New(slog.NewTextHandler(&n.log, nil)),
		Newest: func(pod.UID) (*pod.Status, bool) {
			n.mu.Lock()
			defer n.mu.Unlock()
			s := n.pod
			s.Containers = slices.Clone(s.Containers)
			return &s, true
		},
		Watch: func() (Writes, error) {
			if n.deaf {
				return nil, errors.New("no inotify")
			}
			return n, nil
		},
	})
	return n
}

// run runs the Manager for the rest of the test, or until it is stopped.
func (n *node) run() (stop func()) {
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() { done <- n.manager.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			n.t.Errorf("Run: %v", err)
		}
	})
	n.t.Cleanup(func() {
		stop()
		for _, f := range n.files {
			f.Close()
		}
	})
	synctest.Wait()
	return stop
}

func (n *node) path(id pod.ContainerID) string { return filepath.Join(n.dir, string(id), "0.log") }

func (n *node) must(errs ...error) {
	n.t.Helper()
	if err := errors.Join(errs...); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) openLog(id pod.ContainerID) error {
	f, err := os.OpenFile(n.path(id), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if old := n.files[id]; err == nil && old != nil {
		old.Close()
	}
	n.files[id] = f
	return err
}

// add adds containers that run.
func (n *node) add(ids ...pod.ContainerID) {
	n.t.Helper()
	for _, id := range ids {
		n.must(os.MkdirAll(filepath.Dir(n.path(id)), 0o755), n.openLog(id))
	}
	n.observe(pod.StateRunning, ids...)
}

// observe has containers be seen in a state.
func (n *node) observe(state pod.ContainerState, ids ...pod.ContainerID) {
	n.mu.Lock()
	for _, id := range ids {
		n.pod.Containers = slices.DeleteFunc(n.pod.Containers, func(c pod.ContainerStatus) bool { return c.ID == id })
		n.pod.Containers = append(n.pod.Containers, pod.ContainerStatus{ID: id, Name: string(id), State: state, LogPath: n.path(id), LogFollowsPath: n.follows})
	}
	n.mu.Unlock()
	n.changed.Put("u")
}

// write writes numbered lines of ten bytes.
func (n *node) write(id pod.ContainerID, lines int) {
	n.t.Helper()
	n.mu.Lock()
	var b bytes.Buffer
	for range lines {
		n.lines[id]++
		fmt.Fprintf(&b, "%09d\n", n.lines[id])
	}
	_, err := n.files[id].Write(b.Bytes())
	n.must(err)
	n.mu.Unlock()
	n.tell(id)
}

// grow has a log become longer by a number of bytes, with a hole.
func (n *node) grow(id pod.ContainerID, bytes int64) {
	n.t.Helper()
	n.mu.Lock()
	st, err := n.files[id].Stat()
	n.must(err)
	n.must(n.files[id].Truncate(st.Size() + bytes))
	n.mu.Unlock()
	n.tell(id)
}

// tell tells that a log was written to, if somebody has asked.
func (n *node) tell(id pod.ContainerID) {
	n.mu.Lock()
	st, err := n.files[id].Stat()
	n.must(err)
	inode := st.Sys().(*syscall.Stat_t).Ino
	watch, ok := n.watched[inode]
	delete(n.watched, inode)
	n.mu.Unlock()
	if ok {
		n.written <- watch
	}
}

// settle lets time pass.
func (n *node) settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (n *node) ReopenContainerLog(ctx context.Context, id pod.ContainerID) error {
	n.mu.Lock()
	reopen := n.reopen
	n.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		done <- reopen(id, func() error {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.calls++
			return n.openLog(id)
		})
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (n *node) Watch(file *os.File) (int, error) {
	st, err := file.Stat()
	if err != nil {
		return 0, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watches++
	n.watched[st.Sys().(*syscall.Stat_t).Ino] = n.watches
	return n.watches, nil
}

func (n *node) Forget(id int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for inode, w := range n.watched {
		if w == id {
			delete(n.watched, inode)
		}
	}
	return nil
}

func (n *node) Written() <-chan int { return n.written }
func (n *node) Close() error        { return nil }

// kept returns the files of a log, the oldest first, with what they hold in lines, "gz" before what
// is compressed.
func (n *node) kept(id pod.ContainerID) []string {
	n.t.Helper()
	entries, err := os.ReadDir(filepath.Dir(n.path(id)))
	n.must(err)
	var out []string
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(n.path(id)), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		n.must(err)
		text, kind := string(b), "log"
		switch p, ok := logs.ParsePart("0.log", e.Name()); {
		case p.Compressed:
			z, err := gzip.NewReader(bytes.NewReader(b))
			n.must(err)
			b, err = io.ReadAll(z)
			n.must(err)
			text, kind = string(b), "gz"
		case ok:
			kind = "part"
		case e.Name() != "0.log":
			kind = e.Name()
		}
		lines := strings.Fields(text)
		switch {
		case len(text)%10 != 0:
			n.t.Errorf("%s is no whole lines", e.Name())
		case len(lines) == 0:
			out = append(out, kind+" empty")
		default:
			out = append(out, fmt.Sprintf("%s %s-%s", kind, strings.TrimLeft(lines[0], "0"), strings.TrimLeft(lines[len(lines)-1], "0")))
		}
	}
	if len(out) > 0 { // by its name, the log itself is first
		out = append(out[1:], out[0])
	}
	return out
}

func (n *node) want(id pod.ContainerID, files ...string) {
	n.t.Helper()
	if diff := cmp.Diff(files, n.kept(id)); diff != "" {
		n.t.Errorf("the files of %s (-want +got):\n%s", id, diff)
	}
}

// story is what the journal has of the pod.
func (n *node) story() []string {
	var out []string
	for _, e := range n.journal.Read("default", "web") {
		out = append(out, strings.TrimRight(fmt.Sprintf("%s: %s: %s %s", e.Container, e.Decision, e.Why, e.Error), " "))
	}
	return out
}

func bubble(t *testing.T, l Limits, f func(n *node)) {
	synctest.Test(t, func(t *testing.T) { f(newNode(t, l)) })
}
