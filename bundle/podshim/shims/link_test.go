package shims

import (
	"encoding/binary"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/bundle/podshim/plan"
	"berth/bundle/podshim/wire"
)

// question is the version of a request, and of the plan that was sent with it; 0 without one.
type question struct{ version, plan uint32 }

// podshimOf listens in a directory and replies as a pod shim of a version does.
func podshimOf(t *testing.T, version uint32) (dir string, heard <-chan question) {
	t.Helper()
	dir = t.TempDir()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, "socket"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	out := make(chan question, 10)
	go func() {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer conn.Close()
		q, more := make([]byte, 1000), make([]byte, 100)
		for {
			n, oobn, _, _, err := conn.ReadMsgUnix(q, more)
			if err != nil || n == 0 {
				return
			}
			out <- question{binary.NativeEndian.Uint32(q), planVersion(t, more[:oobn])}
			answer := make([]byte, wire.ReplySize)
			copy(answer, q[:12])
			if binary.NativeEndian.Uint32(q) != version {
				binary.NativeEndian.PutUint32(answer, version)
				binary.NativeEndian.PutUint32(answer[12:], uint32(syscall.EPROTONOSUPPORT))
			}
			if _, err := conn.Write(answer); err != nil {
				t.Error(err)
			}
		}
	}()
	return dir, out
}

// planVersion returns the version of the plan that was sent with a message.
func planVersion(t *testing.T, control []byte) uint32 {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		t.Error(err)
	}
	var found uint32
	for _, m := range messages {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			t.Error(err)
		}
		for _, fd := range fds {
			var b [8]byte
			if _, err := unix.Pread(fd, b[:], 0); err != nil {
				t.Error(err)
			}
			found = binary.NativeEndian.Uint32(b[4:])
			unix.Close(fd)
		}
	}
	return found
}

// A pod shim of the previous version gets requests and plans in its version. An unsupported version
// is an error.
func TestPodshimsOfAnotherVersion(t *testing.T) {
	confined, err := plan.Confine(&specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}})
	if err != nil {
		t.Fatal(err)
	}
	exec, err := plan.NewExec(&specs.Process{Args: []string{"true"}, Cwd: "/"}, nil, confined)
	if err != nil {
		t.Fatal(err)
	}
	for theirs := uint32(wire.Oldest - 1); theirs <= wire.Version+1; theirs++ {
		dir, heard := podshimOf(t, theirs)
		l, err := dial(dir)
		if err != nil {
			t.Fatal(err)
		}
		l.version.Store(wire.Version + 2) // as a later containerd does
		go l.read(func(wire.Reply) {})
		_, err = l.list()
		if got := <-heard; got.version != wire.Version+2 {
			t.Errorf("version %d was asked in %d first", theirs, got.version)
		}
		if theirs < wire.Oldest || theirs > wire.Version {
			var other *wire.VersionError
			if !errors.As(err, &other) || other.Shim != theirs || !strings.Contains(err.Error(), "end the pod") {
				t.Errorf("version %d: error %v, want one that says so", theirs, err)
			}
			l.conn.Close()
			continue
		}
		if got := <-heard; err != nil || got.version != theirs {
			t.Errorf("version %d was asked in %d then: %v", theirs, got.version, err)
		}
		if _, err := l.call(wire.Request{Op: wire.Execute}, exec, nil); err != nil {
			t.Errorf("version %d: an exec: %v", theirs, err)
		}
		if got := <-heard; got != (question{theirs, theirs}) {
			t.Errorf("version %d has an exec in a message and a plan of %+v", theirs, got)
		}
		l.conn.Close()
	}
}
