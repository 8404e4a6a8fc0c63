package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/config"
)

// stream is what a service has as standard error, and what was written to it.
func stream(t *testing.T) (w *os.File, written func() string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	var stat unix.Stat_t
	if err := unix.Fstat(int(w.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", stat.Dev, stat.Ino))
	return w, func() string {
		w.Close()
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
}

// Why a service does not start is an error for the journal too, each line of it.
func TestErrorsInTheJournal(t *testing.T) {
	w, written := stream(t)
	if code := execute(t.Context(), []string{"run", "--max-pods", "0"}, io.Discard, w); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if code := execute(t.Context(), []string{"kubelet", "--port", "-1", "--healthz-port", "-2"}, io.Discard, w); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	lines := strings.Split(strings.TrimSpace(written()), "\n")
	if len(lines) < 4 || lines[0] != "<3>Error: --max-pods 0: must be 1 or more" {
		t.Errorf("said %q", lines)
	}
	for _, line := range lines {
		if !strings.HasPrefix(line, "<3>") {
			t.Errorf("%q is no error for the journal", line)
		}
	}
}

// A format that was asked for stays, in the journal as elsewhere.
func TestJSONInTheJournal(t *testing.T) {
	w, written := stream(t)
	k := &config.Kubelet{}
	k.Logging.Format = "json"
	newKubeletLog(k, slog.LevelInfo, w).Info("ready")
	if got := written(); !strings.HasPrefix(got, "{") || !strings.Contains(got, `"msg":"ready"`) {
		t.Errorf("logged %q", got)
	}
}
