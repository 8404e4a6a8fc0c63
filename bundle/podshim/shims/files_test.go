package shims

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/bundle/podshim/wire"
)

// fifos creates the FIFOs of a task.
func fifos(t *testing.T) taskRecord {
	t.Helper()
	dir := t.TempDir()
	r := taskRecord{ID: "x", Stdin: filepath.Join(dir, "in"), Stdout: filepath.Join(dir, "out"), Stderr: filepath.Join(dir, "err")}
	for _, path := range []string{r.Stdin, r.Stdout, r.Stderr} {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// reads reads from the FIFOs as containerd does, whose open blocks until there is a writer.
func reads(t *testing.T, r taskRecord) map[string]<-chan string {
	t.Helper()
	out := map[string]<-chan string{}
	for _, path := range []string{r.Stdout, r.Stderr} {
		text := make(chan string, 1)
		out[path] = text
		go func() {
			b, err := os.ReadFile(path)
			if err != nil {
				b = []byte(err.Error())
			}
			text <- string(b)
		}()
	}
	return out
}

// The process and the pod shim get the right ends.
func TestFiles(t *testing.T) {
	const none, place = -1, unix.O_PATH
	read, write := unix.O_RDONLY, unix.O_WRONLY
	for name, c := range map[string]struct {
		of       *task
		terminal bool
		want     [wire.FDCount]int // how each is open
	}{
		"container":               {nil, false, [wire.FDCount]int{read, write, write, none, write, none, none, none, read, read, place, place, none, none}},
		"container on a terminal": {nil, true, [wire.FDCount]int{none, none, none, none, write, none, none, read, none, none, place, none, none, none}},
		"exec":                    {&task{}, false, [wire.FDCount]int{read, write, write, none, write, read, read, none, none, none, none, none, none, none}},
		"exec on a terminal":      {&task{}, true, [wire.FDCount]int{none, none, none, none, write, none, none, read, none, none, place, none, none, none}},
	} {
		x := &task{parent: c.of, record: fifos(t)}
		x.record.Terminal = c.terminal
		reads(t, x.record)
		f, err := x.openFiles(t.Context(), "")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i, fd := range f {
			got := none
			if fd > 0 {
				flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
				if err != nil {
					t.Fatal(err)
				}
				got = flags & (unix.O_ACCMODE | unix.O_PATH)
				byPodshim := i == wire.TerminalInput || i == wire.ReadStdout || i == wire.ReadStderr
				if waits := flags&unix.O_NONBLOCK == 0; waits == byPodshim {
					t.Errorf("%s: file %d waits for what is to come: %t", name, i, waits)
				}
			}
			if got != c.want[i] {
				t.Errorf("%s: file %d is open as %#x, want %#x", name, i, got, c.want[i])
			}
		}
		f.close()
	}
}

func TestFilesThatAreNoFIFOs(t *testing.T) {
	x := &task{parent: &task{}, record: fifos(t)}
	reads(t, x.record)
	x.record.Stderr += "-not"
	if _, err := x.openFiles(t.Context(), ""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want one of a file that is not there", err)
	}
	if err := os.WriteFile(x.record.Stderr, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	reads(t, x.record)
	if _, err := x.openFiles(t.Context(), ""); !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), x.record.Stderr) {
		t.Errorf("error %v, want one that names the file", err)
	}
}

// Output of a short-lived process reaches containerd, which opens its ends later.
func TestOutputOfShortProcesses(t *testing.T) {
	var all sync.WaitGroup
	for range 200 {
		x := &task{parent: &task{}, record: fifos(t)}
		all.Go(func() {
			f, err := x.openFiles(t.Context(), "")
			if err != nil {
				t.Error(err)
				return
			}
			for _, i := range []int{wire.Stdout, wire.Stderr} {
				if _, err := unix.Write(f[i], []byte("text")); err != nil {
					t.Error(err)
				}
			}
			f.close()
		})
		all.Go(func() {
			for path, text := range reads(t, x.record) {
				if got := <-text; got != "text" {
					t.Errorf("%s has %q, want text", path, got)
				}
			}
		})
	}
	all.Wait()
}

// If containerd does not read, the open ends with the call, and leaves no descriptor open.
func TestOutputWithoutReader(t *testing.T) {
	x := &task{parent: &task{}, record: fifos(t)}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if f, err := x.openFiles(ctx, ""); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), x.record.Stdout) {
		t.Errorf("files %v, error %v, want one that names the output", f, err)
	}
	for _, path := range []string{x.record.Stdin, x.record.Stdout, x.record.Stderr} {
		if fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); !errors.Is(err, unix.ENXIO) {
			t.Errorf("%s: opened as %d (%v), so somebody has it open", path, fd, err)
		}
	}
}

// containerd removes the FIFOs of an exec when it gives up.
func TestRemovedOutputFIFO(t *testing.T) {
	x := &task{parent: &task{}, record: fifos(t)}
	opened := make(chan error, 1)
	go func() {
		_, err := x.openFiles(t.Context(), "")
		opened <- err
	}()
	// The FIFO exists until the input is open, which is opened first.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		fd, err := unix.Open(x.record.Stdin, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if err := os.Remove(x.record.Stdout); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), x.record.Stdout) {
		t.Errorf("error %v, want one that names the output", err)
	}
}

// Replies about a container, an exec, and an exec that a former containerd has started.
func TestHandleReply(t *testing.T) {
	p := newPod(t.TempDir())
	c := &task{pod: p, record: taskRecord{ID: "c"}, done: make(chan struct{}), execs: map[string]*task{}}
	p.tasks["c"] = c
	p.handleReply(wire.Reply{Op: wire.Listed, ID: "c", State: wire.Running, Pid: 7})
	p.handleReply(wire.Reply{Op: wire.Listed, ID: "c", Exec: "x", State: wire.Running, Pid: 8})
	p.handleReply(wire.Reply{Op: wire.Exited, ID: "c", Exec: "gone", State: wire.Stopped, Status: 3})
	p.handleReply(wire.Reply{Op: wire.Exited, ID: "c", Exec: "x", State: wire.Stopped, Status: 41, Pid: 8})
	x := c.execs["x"]
	if c.state != wire.Running || c.record.Pid != 7 || len(c.execs) != 1 || x == nil || x.state != wire.Stopped || x.record.Status != 41 {
		t.Fatalf("container %+v, execs %+v", c, c.execs)
	}
	<-x.done
	if r, want := x.request(wire.Delete, 0), (wire.Request{Op: wire.Delete, ID: "c", Exec: "x"}); r != want {
		t.Errorf("request %+v, want %+v", r, want)
	}
	p.markExited()
	<-c.done
	if c.record.Status != killedExitCode || x.record.Status != 41 {
		t.Errorf("after the end of the pod shim: %d and %d, want %d and 41", c.record.Status, x.record.Status, killedExitCode)
	}
}

// The ends of containerd's FIFOs that a process has itself get the label of its container's files.
func TestLabelsOfFIFOs(t *testing.T) {
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	for name, c := range map[string]struct {
		of   *task
		want []string
	}{
		"container": {nil, []string{"in"}},
		"exec":      {&task{}, []string{"in", "out", "err"}},
	} {
		x := &task{parent: c.of, record: fifos(t)}
		able := unix.Lsetxattr(x.record.Stdin, "security.selinux", []byte("x"), 0)
		reads(t, x.record)
		f, err := x.openFiles(t.Context(), label)
		if able != nil { // without privileges, or if files have no labels
			if !errors.Is(err, able) || !strings.Contains(err.Error(), x.record.Stdin) {
				t.Errorf("%s: %v, want %v, and the path", name, err, able)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f.close()
		for _, path := range []string{x.record.Stdin, x.record.Stdout, x.record.Stderr} {
			got, want := make([]byte, 100), ""
			n, err := unix.Lgetxattr(path, "security.selinux", got)
			if err != nil && !errors.Is(err, unix.ENODATA) {
				t.Fatal(err)
			}
			if slices.Contains(c.want, filepath.Base(path)) {
				want = label
			}
			if got := strings.TrimRight(string(got[:max(n, 0)]), "\x00"); got != want {
				t.Errorf("%s: the label of %s is %q, want %q", name, filepath.Base(path), got, want)
			}
		}
	}
}
