package keepers

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/bundle/keeper/wire"
)

// fifos are a task's, for input, output and errors.
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

// Who gets which ends: nothing waits for containerd to open its own.
func TestFiles(t *testing.T) {
	const none, place = -1, unix.O_PATH
	read, write := unix.O_RDONLY, unix.O_WRONLY
	for name, c := range map[string]struct {
		of       *task
		terminal bool
		want     [wire.Files]int // how each is open
	}{
		"container":               {nil, false, [wire.Files]int{read, none, none, write, place, place, none}},
		"container on a terminal": {nil, true, [wire.Files]int{read, none, none, write, place, none, none}},
		"exec":                    {&task{}, false, [wire.Files]int{read, write, write, write, read, read, none}},
		"exec on a terminal":      {&task{}, true, [wire.Files]int{read, none, none, write, place, none, none}},
	} {
		x := &task{of: c.of, record: fifos(t)}
		x.record.Terminal = c.terminal
		f, err := x.open()
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
				if flags&unix.O_NONBLOCK != 0 {
					t.Errorf("%s: file %d does not wait for what is to come", name, i)
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
	x := &task{of: &task{}, record: fifos(t)}
	x.record.Stderr += "-not"
	if _, err := x.open(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want one of a file that is not there", err)
	}
	if err := os.WriteFile(x.record.Stderr, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := x.open(); !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), x.record.Stderr) {
		t.Errorf("error %v, want one that names the file", err)
	}
}

// What a keeper tells: of a container, of an exec, and of one that a containerd of before has started.
func TestTold(t *testing.T) {
	p := newPod(t.TempDir())
	c := &task{pod: p, record: taskRecord{ID: "c"}, done: make(chan struct{}), execs: map[string]*task{}}
	p.tasks["c"] = c
	p.told(wire.Reply{Op: wire.Listed, ID: "c", State: wire.Running, Pid: 7})
	p.told(wire.Reply{Op: wire.Listed, ID: "c", Exec: "x", State: wire.Running, Pid: 8})
	p.told(wire.Reply{Op: wire.Exited, ID: "c", Exec: "gone", State: wire.Stopped, Status: 3})
	p.told(wire.Reply{Op: wire.Exited, ID: "c", Exec: "x", State: wire.Stopped, Status: 41, Pid: 8})
	x := c.execs["x"]
	if c.state != wire.Running || c.record.Pid != 7 || len(c.execs) != 1 || x == nil || x.state != wire.Stopped || x.record.Status != 41 {
		t.Fatalf("container %+v, execs %+v", c, c.execs)
	}
	<-x.done
	if r, want := x.request(wire.Delete, 0), (wire.Request{Op: wire.Delete, ID: "c", Exec: "x"}); r != want {
		t.Errorf("request %+v, want %+v", r, want)
	}
	p.gone()
	<-c.done
	if c.record.Status != killed || x.record.Status != 41 {
		t.Errorf("after the end of the keeper: %d and %d, want %d and 41", c.record.Status, x.record.Status, killed)
	}
}
