package offlinecache

import (
	"log/slog"
	"path/filepath"
	"testing"

	"berth/internal/config"
	"berth/internal/record/journal"
)

// Of Secrets that could not be removed nothing is lent by an agent that is not to keep them.
func TestSecretsThatAreNotKept(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	dir := filepath.Join(t.TempDir(), "kept")
	f := newFiles(dir, "node", "server")
	for _, r := range []ref{podRef("web"), aSecret} {
		if err := f.write(r, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	for keep, want := range map[config.KeepObjects]bool{config.KeepAll: true, config.KeepPods: false} {
		k, err := New(Config{Dir: dir, Keep: keep, Node: "node", Server: "server", Reached: func() error { return nil }, Journal: journal.New(log), Log: log})
		if err != nil {
			t.Fatal(err)
		}
		lent := k.load()
		if _, ok := lent[podRef("web")]; !ok {
			t.Errorf("%s: the pod is not lent", keep)
		}
		if _, ok := lent[aSecret]; ok != want {
			t.Errorf("%s: the Secret is lent: %v", keep, ok)
		}
	}
}
