package logind

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"berth/internal/record/events/messagestest"
)

// onBuses runs a test over the bus within the test, and over a real one where there is one.
func onBuses(t *testing.T, test func(t *testing.T, start func(t *testing.T) (string, func()))) {
	t.Run("within the test", func(t *testing.T) { test(t, startMiniBus) })
	if _, err := exec.LookPath("dbus-daemon"); err == nil {
		t.Run("dbus-daemon", func(t *testing.T) { test(t, startDaemon) })
	}
}

func dial(t *testing.T, cfg Config) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// announce sends the signal of a shutdown, as the sender of the connection.
func announce(t *testing.T, bus *dbus.Conn, begins bool) {
	t.Helper()
	if err := bus.Emit(objectPath, manager+"."+preparing, begins); err != nil {
		t.Fatal(err)
	}
}

func TestInhibit(t *testing.T) {
	onBuses(t, func(t *testing.T, start func(t *testing.T) (string, func())) {
		address, _ := start(t)
		h := newHost(t, address)
		c := dial(t, Config{Address: address})
		held, err := c.Inhibit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var taken lock
		h.with(func() {
			if want := []string{"shutdown|kubelet|Kubelet needs time to handle node shutdown|delay"}; !slices.Equal(h.inhibits, want) {
				t.Errorf("asked for %q, want %q", h.inhibits, want)
			}
			taken = h.locks[0]
		})
		if !taken.holds(t, 0) {
			t.Error("the lock is not held")
		}
		// A child of the agent that lives on has no part in the lock.
		child := exec.Command("cat")
		in, err := child.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		if err := held.Close(); err != nil {
			t.Fatal(err)
		}
		if taken.holds(t, 10*time.Second) {
			t.Error("the lock is held though it was closed")
		}
		in.Close()
		if err := child.Wait(); err != nil {
			t.Errorf("the child has not lived until now: %v", err)
		}
	})
}

func TestShutdowns(t *testing.T) {
	onBuses(t, func(t *testing.T, start func(t *testing.T) (string, func())) {
		address, stop := start(t)
		h := newHost(t, address)
		c := dial(t, Config{Address: address})
		if <-c.Shutdowns() {
			t.Error("a shutdown is under way from the start")
		}
		stranger, err := dbus.Connect(address)
		if err != nil {
			t.Fatal(err)
		}
		defer stranger.Close()
		announce(t, stranger, true)
		// A call that the bus answers afterwards: the signal of the stranger was passed on.
		if err := stranger.BusObject().Call("org.freedesktop.DBus.GetNameOwner", 0, service).Err; err != nil {
			t.Fatal(err)
		}
		for _, begins := range []bool{false, true, false} {
			announce(t, h.bus, begins)
			if got := <-c.Shutdowns(); got != begins {
				t.Errorf("told %v, want %v", got, begins)
			}
		}
		stop()
		if _, ok := <-c.Shutdowns(); ok {
			t.Error("told of a shutdown by a bus that is gone")
		}
		if _, err := c.Inhibit(t.Context()); err == nil {
			t.Error("a lock of a bus that is gone")
		}
	})
}

// Who connects while a shutdown is under way hears of it, and that there is no lock to be had.
func TestShutdownUnderWay(t *testing.T) {
	onBuses(t, func(t *testing.T, start func(t *testing.T) (string, func())) {
		address, _ := start(t)
		h := newHost(t, address)
		h.with(func() { h.begun = true })
		c := dial(t, Config{Address: address})
		if !<-c.Shutdowns() {
			t.Error("no shutdown")
		}
		if _, err := c.Inhibit(t.Context()); !errors.Is(err, ErrInProgress) {
			t.Errorf("lock: %v", err)
		}
	})
}

func TestEnsureDelay(t *testing.T) {
	onBuses(t, func(t *testing.T, start func(t *testing.T) (string, func())) {
		address, _ := start(t)
		h := newHost(t, address)
		folder := filepath.Join(t.TempDir(), "logind.conf.d")
		c := dial(t, Config{Address: address, Folder: folder})
		file := filepath.Join(folder, "99-kubelet.conf")

		// What is enough stays.
		if err := c.EnsureDelay(t.Context(), 5*time.Second); err != nil {
			t.Fatal(err)
		}
		h.with(func() {
			if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) || h.signals != nil {
				t.Errorf("the drop-in: %v; signals %v", err, h.signals)
			}
			h.reads, h.lag = 30e6, 3
		})
		if err := c.EnsureDelay(t.Context(), 30*time.Second); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(file)
		if err != nil || !strings.HasSuffix(string(b), "\n[Login]\nInhibitDelayMaxSec=30\n") {
			t.Errorf("the drop-in: %q, %v", b, err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o644 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		h.with(func() {
			if !slices.Equal(h.signals, []int32{1}) {
				t.Errorf("signals %v, want SIGHUP", h.signals)
			}
		})

		// Another file has the last word.
		err = c.EnsureDelay(t.Context(), 40*time.Second)
		messagestest.SawError(err)
		if want := "node shutdown manager was timed out after 5 attempts waiting for logind InhibitDelayMaxSec to update to 40s (it is 30s): look for a file"; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s…", err, want)
		}
	})
}

func TestNoBus(t *testing.T) {
	_, err := Dial(t.Context(), Config{Address: "unix:path=" + filepath.Join(t.TempDir(), "none")})
	if !errors.Is(err, ErrNoBus) {
		t.Errorf("%v, want %v", err, ErrNoBus)
	}
}

func TestNoLogind(t *testing.T) {
	onBuses(t, func(t *testing.T, start func(t *testing.T) (string, func())) {
		if strings.HasSuffix(t.Name(), "within_the_test") {
			return // which knows no names that can be started
		}
		address, _ := start(t)
		_, err := Dial(t.Context(), Config{Address: address})
		if err == nil || !strings.Contains(err.Error(), "look at the service systemd-logind") {
			t.Errorf("%v", err)
		}
	})
}
