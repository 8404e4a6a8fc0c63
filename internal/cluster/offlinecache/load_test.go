package offlinecache

import (
	"log/slog"
	"path/filepath"
	"testing"

	"berth/internal/config"
	"berth/internal/record/journal"
)

// Secrets that could not be removed are not served by an agent that does not cache Secrets.
func TestSecretsNotCached(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	dir := filepath.Join(t.TempDir(), "kept")
	f := newFiles(dir, "node", "server")
	for _, r := range []ref{podRef("web"), aSecret} {
		if err := f.write(r, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	for objects, want := range map[config.KeepObjects]bool{config.KeepAll: true, config.KeepPods: false} {
		c, err := New(Config{Dir: dir, Objects: objects, Node: "node", Server: "server", Reached: func() error { return nil }, Journal: journal.New(log), Log: log})
		if err != nil {
			t.Fatal(err)
		}
		served := c.entries.load()
		if _, ok := served[podRef("web")]; !ok {
			t.Errorf("%s: the pod is not lent", objects)
		}
		if _, ok := served[aSecret]; ok != want {
			t.Errorf("%s: the Secret is lent: %v", objects, ok)
		}
	}
}
