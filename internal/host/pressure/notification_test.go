package pressure

import (
	"os"
	"path/filepath"
	"testing"
)

// Each event of the pods' cgroup at its limit matters; that a threshold is crossed does not.
func TestLimitNotifier(t *testing.T) {
	path := filepath.Join(t.TempDir(), eventsFile)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := &limitNotifier{path: path, fd: notOpen}
	if err := l.open(); !isGone(err) || l.descriptor() != notOpen {
		t.Fatalf("without the cgroup: %v", err)
	}
	write("high 0\nmax 5\noom 0\n")
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	defer l.close()
	for _, tc := range []struct {
		text string
		want bool
	}{
		{"high 0\nmax 5\noom 0\n", false},
		{"high 9\nmax 5\noom 0\n", false},
		{"high 9\nmax 6\noom 0\n", true},
		{"high 9\nmax 6\noom 0\n", false},
		{"high 9\nmax 6\noom 1\n", true},
	} {
		write(tc.text)
		if got := l.consume(); got != tc.want {
			t.Errorf("%q: %v", tc.text, got)
		}
	}
}

func TestPSINotifier(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory")
	s := &psiNotifier{path: path, fd: notOpen}
	if err := s.open(); !isGone(err) || s.descriptor() != notOpen {
		t.Fatalf("without the file: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.open(); err != nil {
			t.Fatal(err)
		}
	}
	s.close()
	if b, err := os.ReadFile(path); err != nil || string(b) != triggers[0] {
		t.Errorf("asked the kernel for %q, %v, want %q once", b, err, triggers[0])
	}
}
