package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/runtime/embedded"
)

// The programs of the local API are unpacked by whoever asks for them first, be it the agent or
// berth kubectl, and go with all else that is kept.
func TestRemovedFilesHaveTheProgramsAmongThem(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{RootDir: dir + "/root", PodLogsDir: dir + "/pods", ContainerLogsDir: dir + "/containers"}
	program := filepath.Join(embedded.APIFolder(cfg.RootDir), "0123", "bin", "apiserver")
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := removeFiles(&cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(embedded.APIFolder(cfg.RootDir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the programs are still there: %v", err)
	}
}
