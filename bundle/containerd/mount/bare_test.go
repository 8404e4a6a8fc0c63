package mount

import (
	"os"
	"path/filepath"
	"testing"
)

func TestBare(t *testing.T) {
	dir := t.TempDir()
	full := filepath.Join(dir, "full")
	if err := os.MkdirAll(filepath.Join(full, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("full/empty", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		filepath.Join(full, "empty"):  true,
		full:                          false,
		filepath.Join(dir, "file"):    false,
		filepath.Join(dir, "link"):    false,
		filepath.Join(dir, "missing"): false,
		"/proc":                       false,
	} {
		if got := bare(path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}
