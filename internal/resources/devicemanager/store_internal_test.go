package devicemanager

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

// The file is there though the folder was not: the socket, which makes it, may come later.
func TestSaveMakesFolder(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	m, err := New(Config{
		Dir: filepath.Join(t.TempDir(), "device-plugins"), Changed: pod.NewInbox[pod.UID](), Journal: journal.New(log), Log: log, CapacityChanged: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Load(); err != nil {
		t.Fatal(err)
	}
	if err := m.store.save(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(m.store.file()); err != nil {
		t.Error(err)
	}
}
