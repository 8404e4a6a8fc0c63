package shims

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// The lock of a killed containerd may be released a moment after its exit. A running containerd
// excludes a second one.
func TestLockOfAContainerdThatExits(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration
		want  error
	}{
		{"given back at once", 0, nil},
		{"given back later", time.Second, nil},
		{"kept", time.Minute, unix.EWOULDBLOCK},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := New("podshim")
				m.dir = t.TempDir()
				held, err := os.Create(filepath.Join(m.dir, "lock"))
				if err != nil {
					t.Fatal(err)
				}
				if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
					t.Fatal(err)
				}
				release := time.AfterFunc(c.after, func() { held.Close() })
				defer release.Stop()
				if err := m.lock(); !errors.Is(err, c.want) {
					t.Errorf("lock: %v, want %v", err, c.want)
				}
			})
		})
	}
}
