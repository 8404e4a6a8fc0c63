package server_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/api/server"
)

func TestListen(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	dir := filepath.Join(t.TempDir(), "run")
	path := server.SocketPath(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil { // open to others, as somebody may have left it
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil { // what a killed agent left
		t.Fatal(err)
	}
	l, err := server.Listen(dir, log)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{dir: 0o711, path: 0o600} {
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := st.Mode().Perm(); got != want {
			t.Errorf("mode of %s: got %o, want %o", name, got, want)
		}
	}

	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatalf("our own user was refused: %v", err)
	}
	defer accepted.Close()

	if _, err := server.Listen(dir, log); !errors.Is(err, server.ErrInUse) {
		t.Errorf("a second agent: got %v, want %v", err, server.ErrInUse)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	again, err := server.Listen(dir, log)
	if err != nil {
		t.Fatalf("after the first one ended: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestListenSaysThatThePathIsTooLong(t *testing.T) {
	_, err := server.Listen("/"+strings.Repeat("x", 200), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "choose a shorter run directory") {
		t.Errorf("got %v", err)
	}
}
