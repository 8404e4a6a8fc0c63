package netns_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/api/netns"
)

func TestCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		"/proc/self/ns/net": nil,
		"/proc/self/ns/mnt": netns.ErrNoNetwork,
		file:                netns.ErrNoNetwork,
		file + "-nothing":   fs.ErrNotExist,
	} {
		if err := netns.Check(path); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
	}
	if _, err := netns.Dial(t.Context(), file, "tcp4", "127.0.0.1:1"); !errors.Is(err, netns.ErrNoNetwork) {
		t.Errorf("got %v", err)
	}
}
