package podresources

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

var quiet = slog.New(slog.DiscardHandler)

func mustListen(t *testing.T, path string) *socket {
	t.Helper()
	l, err := Listen(path, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l.(*socket)
}

func TestListenModes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod-resources", "kubelet.sock")
	mustListen(t, path)
	for of, want := range map[string]fs.FileMode{filepath.Dir(path): fs.ModeDir | 0o750, path: fs.ModeSocket | 0o600} {
		if i, err := os.Lstat(of); err != nil || i.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", of, i.Mode(), err, want)
		}
	}
}

// What is there already, a killed agent's socket or a file, is replaced; a folder is not.
func TestListenReplaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kubelet.sock")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	first := mustListen(t, path)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, quiet); err == nil || !strings.Contains(err.Error(), "remove the old socket") {
		t.Errorf("over a folder: %v", err)
	}
}

func TestListenLongPath(t *testing.T) {
	_, err := Listen("/"+strings.Repeat("x", 107), quiet)
	if err == nil || !strings.Contains(err.Error(), "choose a shorter root directory") {
		t.Errorf("got %v", err)
	}
}

// A socket that somebody removes, or its folder, is there again; a client that was connected stays
// so, and new ones get in.
func TestSocketIsMended(t *testing.T) {
	for name, remove := range map[string]func(string) error{
		"socket": os.Remove,
		"folder": func(path string) error {
			err := os.RemoveAll(filepath.Dir(path))
			for errors.Is(err, unix.ENOTEMPTY) { // the socket was made again in the middle of it
				err = os.RemoveAll(filepath.Dir(path))
			}
			return err
		},
		"renamed": func(path string) error {
			return os.Rename(filepath.Dir(path), filepath.Dir(path)+".away")
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := fullNode().config()
			cfg.Socket = filepath.Join(t.TempDir(), "pod-resources", "kubelet.sock")
			start(t, cfg)
			first := podresourcesv1.NewPodResourcesListerClient(dial(t, "unix://"+cfg.Socket, waitForReady))
			mustList(t, first)
			for range 3 {
				if err := remove(cfg.Socket); err != nil {
					t.Fatal(err)
				}
				mustList(t, podresourcesv1.NewPodResourcesListerClient(dial(t, "unix://"+cfg.Socket, waitForReady)))
				if name == "renamed" {
					if err := os.RemoveAll(filepath.Dir(cfg.Socket) + ".away"); err != nil {
						t.Fatal(err)
					}
				}
			}
			mustList(t, first)
		})
	}
}

// Somebody else's socket in the place of ours is not touched, neither while we serve nor when we
// end; ours is back when the other goes.
func TestSomebodyElsesSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.sock")
	l := mustListen(t, path)
	other := filepath.Join(filepath.Dir(path), "other.sock")
	o, err := net.ListenUnix("unix", &net.UnixAddr{Name: other, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	o.SetUnlinkOnClose(false)
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	w, err := openWatch(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if w, err = l.ensure(w); errors.Join(err, w.Close()) != nil {
		t.Fatal(err)
	}
	theirs, err := os.Lstat(path)
	if err != nil || os.SameFile(theirs, l.file) {
		t.Fatalf("the other's socket was replaced: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if now, err := os.Lstat(path); err != nil || !os.SameFile(theirs, now) {
		t.Errorf("the other's socket was removed: %v", err)
	}
}

// A socket that cannot be made again ends the listener, with the reason.
func TestSocketCannotBeMended(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod-resources")
	cfg := fullNode().config()
	cfg.Socket = filepath.Join(dir, "kubelet.sock")
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	mustList(t, podresourcesv1.NewPodResourcesListerClient(dial(t, "unix://"+cfg.Socket, waitForReady)))
	file := dir + ".file"
	exchange := func() error { return unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE) }
	if err := errors.Join(os.WriteFile(file, nil, 0o600), exchange()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "folder of socket") {
		t.Errorf("Run returned %v", err)
	}
}
