package embedded

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRotateLog(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	if err := rotateLog(name, 10); err != nil {
		t.Errorf("no log yet: %v", err)
	}
	// The writer's descriptor stays the same, as containerd's does.
	w, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	write := func(s string) {
		if _, err := w.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	want := func(log, old string) {
		t.Helper()
		got, err := os.ReadFile(name)
		if err != nil || string(got) != log {
			t.Errorf("log %q, error %v; want %q", got, err, log)
		}
		got, err = os.ReadFile(name + ".1")
		if err != nil && !os.IsNotExist(err) || string(got) != old {
			t.Errorf("older log %q, error %v; want %q", got, err, old)
		}
	}
	rotate := func() {
		t.Helper()
		if err := rotateLog(name, 10); err != nil {
			t.Fatal(err)
		}
	}
	write("0123456789")
	rotate()
	want("0123456789", "")
	write("a")
	rotate()
	want("", "0123456789a")
	write("after")
	rotate()
	want("after", "0123456789a")
	write(" and more")
	rotate()
	want("", "after and more")
}

func TestComplaint(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	before := "time=1 level=error msg=\"of an earlier life\"\n"
	for log, want := range map[string]string{
		"time=2 level=info msg=a\ntime=3 level=error msg=b\ntime=4 level=info msg=c\n": "time=3 level=error msg=b",
		"time=2 level=info msg=a\ntime=4 level=info msg=c\n":                           "time=4 level=info msg=c",
		"containerd: failed to load TOML\n":                                            "containerd: failed to load TOML",
		"":                                                                             "",
	} {
		if err := os.WriteFile(name, []byte(before+log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastErrors(name, int64(len(before))); got != want {
			t.Errorf("after %q: %q, want %q", strings.TrimSpace(log), got, want)
		}
	}
}
