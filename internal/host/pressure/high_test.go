package pressure

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// mark keeps the mark in memory: files of a test have no attributes of this kind.
type mark struct {
	at  int64
	err error
}

func (m *mark) get() (int64, error) { return m.at, m.err }

func (m *mark) set(at int64) error {
	if m.err == nil {
		m.at = at
	}
	return m.err
}

// newHigh returns a wire over plain files: 1 GiB of 4 are used.
func newHigh(t *testing.T, m *mark) *high {
	t.Helper()
	h := &high{dir: t.TempDir(), attributes: m, events: notOpen}
	for name, text := range map[string]string{
		currentFile: "1073741824\n", maxFile: "4294967296\n", highFile: "max\n", eventsFile: "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
	} {
		h.write(t, name, text)
	}
	t.Cleanup(func() {
		if err := h.lift(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *high) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (h *high) want(t *testing.T, high string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(h.dir, highFile))
	if got := strings.TrimSpace(string(b)); err != nil || got != high {
		t.Errorf("memory.high: %q, %v, want %q", got, err, high)
	}
}

func TestHigh(t *testing.T) {
	h := newHigh(t, &mark{})
	at, err := h.aim(distances{gi, 2 * gi}, none)
	if err != nil || at != 2*gi {
		t.Fatalf("the wire should be at %d, %v, want %d", at, err, 2*gi)
	}
	if at, _ := h.aim(distances{none, 5 * gi}, none); at != none {
		t.Errorf("beyond memory.max: %d", at)
	}
	if at, _ := h.aim(distances{none, none}, none); at != none {
		t.Errorf("without thresholds: %d", at)
	}
	h.want(t, "max")
	if crossed, err := h.lay(at); crossed || err != nil {
		t.Fatal(crossed, err)
	}
	h.want(t, strconv.FormatInt(at, 10))
	if fd, _ := h.notice(); fd == notOpen {
		t.Error("nothing tells when the wire is crossed")
	}
	if again, err := h.aim(distances{gi, 2 * gi}, at); err != nil || again != at {
		t.Errorf("again: %d, %v", again, err)
	}
	h.write(t, currentFile, "3221225472\n")
	if crossed, err := h.lay(at); !crossed || err != nil {
		t.Errorf("what was crossed meanwhile: %v, %v", crossed, err)
	}
	if err := h.lift(); err != nil {
		t.Fatal(err)
	}
	h.want(t, "max")
	if fd, _ := h.notice(); fd != notOpen {
		t.Error("something is left open")
	}
}

// A wire that an agent left is taken away, and others' values are left alone.
func TestHighOfOthers(t *testing.T) {
	for _, tc := range []struct {
		what       string
		value      string
		mark, lies int64
		err        error
		want       string
	}{
		{"left by an agent", "2147483648\n", 2 * gi, none, nil, "max"},
		{"somebody's", "2147483648\n", 0, none, errForeign, "2147483648"},
		{"somebody's in place of ours", "2147483648\n", 3 * gi, 3 * gi, errForeign, "2147483648"},
		{"reset", "max\n", 3 * gi, 3 * gi, errReplaced, "max"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			h := newHigh(t, &mark{at: tc.mark})
			h.write(t, highFile, tc.value)
			h.bound = tc.lies != none
			if _, err := h.aim(distances{gi, gi}, tc.lies); !errors.Is(err, tc.err) {
				t.Errorf("%v, want %v", err, tc.err)
			}
			if err := h.lift(); err != nil {
				t.Error(err)
			}
			h.want(t, tc.want)
		})
	}
}

// Whatever cannot be read or written, the pods are not slowed down.
func TestHighFails(t *testing.T) {
	for _, name := range []string{currentFile, maxFile} {
		t.Run(name, func(t *testing.T) {
			h := newHigh(t, &mark{})
			l := newLine("/kubepods", h)
			l.aimAndLay(t)
			h.want(t, strconv.FormatInt(2*gi, 10))
			h.write(t, name, "nonsense\n")
			if err := l.aim(distances{2 * gi, none}); err == nil || l.lies != none {
				t.Errorf("%v, and the wire lies at %d", err, l.lies)
			}
			h.want(t, "max")
		})
	}
	t.Run("mark", func(t *testing.T) {
		m := &mark{}
		h := newHigh(t, m)
		l := newLine("/kubepods", h)
		l.aimAndLay(t)
		m.err = errors.New("wrong")
		if err := l.aim(distances{2 * gi, none}); !errors.Is(err, m.err) {
			t.Error(err)
		}
		h.want(t, "max")
	})
	t.Run("no cgroup", func(t *testing.T) {
		h := newHigh(t, &mark{})
		l := newLine("/kubepods", h)
		l.aimAndLay(t)
		if err := os.RemoveAll(h.dir); err != nil {
			t.Fatal(err)
		}
		if err := l.aim(distances{gi, none}); !isGone(err) || l.failures != 0 {
			t.Errorf("%v, %d failures", err, l.failures)
		}
	})
}

// Somebody may reset memory.high whenever pods start, as systemd does with slices that it makes:
// the wire is laid again, at once but no more often than any, and that is no failure.
func TestHighIsReset(t *testing.T) {
	h := newHigh(t, &mark{})
	l := newLine("/kubepods", h)
	l.aimAndLay(t)
	for range 3 * patience {
		h.write(t, highFile, "max\n")
		laid := l.laid
		if err := l.aim(distances{gi, none}); err != nil || l.lies != none || l.failures != 0 || l.ended {
			t.Fatalf("%v; it lies at %d, %d failures, ended: %v", err, l.lies, l.failures, l.ended)
		}
		if due := l.due(); !due.Equal(laid.Add(gap)) {
			t.Errorf("to be laid at %s, want %s", due, laid.Add(gap))
		}
		if crossed, err := l.lay(l.due()); crossed || err != nil {
			t.Fatal(crossed, err)
		}
		h.want(t, strconv.FormatInt(2*gi, 10))
	}
	// What was crossed meanwhile is told.
	h.write(t, highFile, "max\n")
	if err := l.aim(distances{gi, none}); err != nil {
		t.Fatal(err)
	}
	h.write(t, currentFile, "3221225472\n")
	if crossed, err := l.lay(l.due()); !crossed || err != nil {
		t.Errorf("%v, %v", crossed, err)
	}
	h.want(t, "max")
}

func (l *line) aimAndLay(t *testing.T) {
	t.Helper()
	if err := l.aim(distances{gi, none}); err != nil {
		t.Fatal(err)
	}
	if crossed, err := l.lay(l.laid); crossed || err != nil {
		t.Fatal(crossed, err)
	}
}
