package devicemanager_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/resources/devicemanager"
	"berth/internal/resources/devicemanager/devicetest"
)

// limit is how long a test waits for what must come.
const limit = 30 * time.Second

// node runs an agent over real sockets, and tells of its capacity.
type node struct {
	*devicemanager.Manager
	t        *testing.T
	capacity chan struct{}
	stop     func()
}

func startNode(t *testing.T, dir string) *node {
	t.Helper()
	n := &node{t: t, capacity: make(chan struct{}, 1)}
	log := slog.New(slog.DiscardHandler)
	m, err := devicemanager.New(devicemanager.Config{Dir: dir, Changed: pod.NewInbox[pod.UID](), Journal: journal.New(log), Log: log, CapacityChanged: func() {
		select {
		case n.capacity <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Load(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	n.Manager, n.stop = m, func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		done <- nil
	}
	t.Cleanup(n.stop)
	return n
}

// expect waits until there are so many healthy devices.
func (n *node) expect(resource v1.ResourceName, want int64) {
	n.t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		_, allocatable := n.Capacity()
		if q := allocatable[resource]; q.Value() == want {
			return
		}
		select {
		case <-n.capacity:
		case <-timer.C:
			n.t.Fatalf("%v, want %d of %s", allocatable, want, resource)
		}
	}
}

// A plugin of its own over real sockets: it registers whenever the agent's socket is made anew.
func TestRealSockets(t *testing.T) {
	root, err := os.MkdirTemp("", "devices") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	dir := filepath.Join(root, "device-plugins")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubelet.sock", "old.sock"} { // of agents and plugins before
		l, err := listenAndLeave(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := &devicetest.Plugin{Resource: gpu, Dir: t.TempDir(), Folder: dir, Devices: []devicetest.Device{{ID: "a"}, {ID: "b"}}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })

	n := startNode(t, dir)
	n.expect(gpu, 2)
	if _, err := os.Lstat(filepath.Join(dir, "old.sock")); err == nil {
		t.Error("a socket of before is still there")
	}
	if _, err := os.Lstat(filepath.Join(dir, "file")); err != nil {
		t.Error(err)
	}
	if err := devicetest.MakeUnhealthy(p.Dir, "a"); err != nil {
		t.Fatal(err)
	}
	n.expect(gpu, 1)
	n.stop()
	n = startNode(t, dir) // which removes the plugin's socket
	n.expect(gpu, 1)
	if err := devicetest.MakeHealthy(p.Dir, "a"); err != nil {
		t.Fatal(err)
	}
	n.expect(gpu, 2)

	// Somebody removes the agent's socket: it is made anew, and the plugin registers again.
	before := registrations(t, p)
	if err := os.Remove(filepath.Join(dir, "kubelet.sock")); err != nil {
		t.Fatal(err)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for registrations(t, p) == before {
		select {
		case <-time.After(10 * time.Millisecond): // it notes that after the agent has
		case <-timer.C:
			t.Fatal("the plugin does not register again")
		}
	}
	n.expect(gpu, 2)
}

// Somebody removes the folder and makes it again at once, some times after the other: each time the
// socket is there again, and is watched as before.
func TestFolderMadeAgain(t *testing.T) {
	root, err := os.MkdirTemp("", "devices") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	dir := filepath.Join(root, "device-plugins")
	startNode(t, dir)
	socket := filepath.Join(dir, "kubelet.sock")
	served := func(after string) {
		t.Helper()
		for end := time.Now().Add(limit); ; <-time.After(5 * time.Millisecond) {
			c, err := net.Dial("unix", socket)
			if err == nil {
				_ = c.Close()
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %v", after, err)
			}
		}
	}
	served("at the start")
	plugin, err := listenAndLeave(filepath.Join(dir, "plugin.sock")) // which holds the folder
	if err != nil {
		t.Fatal(err)
	}
	defer plugin.Close()
	remove := func() error {
		for end := time.Now().Add(limit); ; {
			// The socket may be made again before the folder that it was in is removed.
			if err := os.RemoveAll(dir); !errors.Is(err, syscall.ENOTEMPTY) || time.Now().After(end) {
				return err
			}
		}
	}
	for _, gone := range []func() error{
		remove,
		func() error { return os.Rename(dir, filepath.Join(root, "aside")) },
	} {
		for range 2 { // each time it is tried again later
			if err := errors.Join(gone(), os.MkdirAll(dir, 0o750)); err != nil {
				t.Fatal(err)
			}
			served("after the folder was made again")
			if err := os.Remove(socket); err != nil {
				t.Fatal(err)
			}
			served("after the socket was removed from it")
			_ = os.RemoveAll(filepath.Join(root, "aside"))
		}
	}
}

// registrations returns how often the plugin has registered.
func registrations(t *testing.T, p *devicetest.Plugin) int {
	t.Helper()
	calls, err := devicetest.Calls(p.Dir)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range calls {
		if c.Method == "registered" {
			n++
		}
	}
	return n
}

// listenAndLeave listens on a socket that stays when the listener ends.
func listenAndLeave(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if err == nil {
		l.(*net.UnixListener).SetUnlinkOnClose(false)
	}
	return l, err
}
