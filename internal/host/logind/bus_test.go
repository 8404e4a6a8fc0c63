package logind

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"berth/internal/record/events/messagestest"
)

// busConfig is that of a private bus on which everybody may do everything, as on a session's.
const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path=%s</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
`

// startDaemon runs a real message bus, and returns its address and what ends it.
func startDaemon(t *testing.T) (address string, stop func()) {
	t.Helper()
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "bus"), filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, busConfig, socket), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("dbus-daemon", "--config-file="+file, "--nofork", "--nopidfile", "--print-address=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	t.Cleanup(stop)
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil { // it listens
		t.Fatal(err)
	}
	return "unix:path=" + socket, stop
}

// host stands for systemd and its logind on the bus.
type host struct {
	t   *testing.T
	bus *dbus.Conn

	mu       sync.Mutex
	delay    uint64   // guarded by mu; microseconds
	reads    uint64   // guarded by mu; what a reload makes of it
	lag      int      // guarded by mu; readings until a reload shows
	begun    bool     // guarded by mu
	signals  []int32  // guarded by mu
	locks    []lock   // guarded by mu
	inhibits []string // guarded by mu
}

func newHost(t *testing.T, address string) *host {
	t.Helper()
	bus, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bus.Close() })
	h := &host{t: t, bus: bus, delay: 5e6, reads: 5e6}
	for name, at := range map[string]string{service: objectPath, "org.freedesktop.systemd1": "/org/freedesktop/systemd1"} {
		for _, iface := range []string{manager, "org.freedesktop.systemd1.Manager", "org.freedesktop.DBus.Properties"} {
			if err := bus.Export(h, dbus.ObjectPath(at), iface); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := bus.RequestName(name, 0); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// with calls f while nobody else is served.
func (h *host) with(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// Get is the call of a property.
func (h *host) Get(iface, name string) (dbus.Variant, *dbus.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case iface == manager && name == underWay:
		return dbus.MakeVariant(h.begun), nil
	case iface == manager && name == maxDelay:
		if h.lag--; h.lag <= 0 {
			h.delay = h.reads
		}
		return dbus.MakeVariant(h.delay), nil
	}
	return dbus.Variant{}, dbus.MakeFailedError(fmt.Errorf("no property %s of %s", name, iface))
}

// Inhibit is logind's call.
func (h *host) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	messagestest.Saw("lock", who, why)
	if h.begun {
		return 0, dbus.NewError(errorInProgress, []any{"The operation inhibition has been requested for is already running"})
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	h.locks, h.inhibits = append(h.locks, lock{r, w}), append(h.inhibits, fmt.Sprintf("%s|%s|%s|%s", what, who, why, mode))
	h.t.Cleanup(func() {
		w.Close()
		r.Close()
	})
	return dbus.UnixFD(w.Fd()), nil
}

// lock is our ends of one: held is what the bus was given.
type lock struct{ watched, held *os.File }

// holds reports whether somebody else has the lock. It waits for nothing but its end, if it is to.
func (l lock) holds(t *testing.T, until time.Duration) bool {
	t.Helper()
	l.held.Close() // it was sent when the call returned
	if err := l.watched.SetReadDeadline(time.Now().Add(until)); err != nil {
		t.Fatal(err)
	}
	_, err := l.watched.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// KillUnit is systemd's call.
func (h *host) KillUnit(name, whom string, signal int32) *dbus.Error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if name != unit || whom != "all" {
		return dbus.MakeFailedError(fmt.Errorf("kill %s of %s", whom, name))
	}
	h.signals = append(h.signals, signal)
	return nil
}
