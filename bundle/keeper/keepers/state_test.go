package keepers

import (
	"os"
	"path/filepath"
	"testing"
)

// Who comes before containerd makes its state directory as containerd does, and keeps its own folder
// to itself.
func TestServeMakesTheStateDirectory(t *testing.T) {
	program := filepath.Join(t.TempDir(), "keeper")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state")
	if err := New(program).Serve(state); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]os.FileMode{state: 0o711, filepath.Join(state, "keepers"): 0o700} {
		st, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := st.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", filepath.Base(dir), got, want)
		}
	}
}
