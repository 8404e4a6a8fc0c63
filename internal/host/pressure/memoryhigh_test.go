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

// newMemoryHigh returns a threshold over plain files: 1 GiB of 4 are used.
func newMemoryHigh(t *testing.T, m *mark) *memoryHigh {
	t.Helper()
	h := &memoryHigh{dir: t.TempDir(), attributes: m, events: notOpen}
	for name, text := range map[string]string{
		currentFile: "1073741824\n", maxFile: "4294967296\n", highFile: "max\n", eventsFile: "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
	} {
		h.write(t, name, text)
	}
	t.Cleanup(func() {
		if err := h.remove(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *memoryHigh) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (h *memoryHigh) want(t *testing.T, high string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(h.dir, highFile))
	if got := strings.TrimSpace(string(b)); err != nil || got != high {
		t.Errorf("memory.high: %q, %v, want %q", got, err, high)
	}
}

func TestMemoryHigh(t *testing.T) {
	h := newMemoryHigh(t, &mark{})
	at, err := h.target(distances{gi, 2 * gi}, none)
	if err != nil || at != 2*gi {
		t.Fatalf("the wire should be at %d, %v, want %d", at, err, 2*gi)
	}
	if at, _ := h.target(distances{none, 5 * gi}, none); at != none {
		t.Errorf("beyond memory.max: %d", at)
	}
	if at, _ := h.target(distances{none, none}, none); at != none {
		t.Errorf("without thresholds: %d", at)
	}
	h.want(t, "max")
	if crossed, err := h.set(at); crossed || err != nil {
		t.Fatal(crossed, err)
	}
	h.want(t, strconv.FormatInt(at, 10))
	if fd, _ := h.descriptor(); fd == notOpen {
		t.Error("nothing tells when the wire is crossed")
	}
	if again, err := h.target(distances{gi, 2 * gi}, at); err != nil || again != at {
		t.Errorf("again: %d, %v", again, err)
	}
	h.write(t, currentFile, "3221225472\n")
	if crossed, err := h.set(at); !crossed || err != nil {
		t.Errorf("what was crossed meanwhile: %v, %v", crossed, err)
	}
	if err := h.remove(); err != nil {
		t.Fatal(err)
	}
	h.want(t, "max")
	if fd, _ := h.descriptor(); fd != notOpen {
		t.Error("something is left open")
	}
}

// The threshold of an agent that was killed is removed; values of other programs are not.
func TestMemoryHighOfOtherPrograms(t *testing.T) {
	for _, tc := range []struct {
		what          string
		value         string
		mark, current int64
		err           error
		want          string
	}{
		{"left by an agent", "2147483648\n", 2 * gi, none, nil, "max"},
		{"somebody's", "2147483648\n", 0, none, errForeign, "2147483648"},
		{"somebody's in place of ours", "2147483648\n", 3 * gi, 3 * gi, errForeign, "2147483648"},
		{"reset", "max\n", 3 * gi, 3 * gi, errReset, "max"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			h := newMemoryHigh(t, &mark{at: tc.mark})
			h.write(t, highFile, tc.value)
			h.written = tc.current != none
			if _, err := h.target(distances{gi, gi}, tc.current); !errors.Is(err, tc.err) {
				t.Errorf("%v, want %v", err, tc.err)
			}
			if err := h.remove(); err != nil {
				t.Error(err)
			}
			h.want(t, tc.want)
		})
	}
}

// After an error of any file, the pods are not throttled.
func TestMemoryHighFails(t *testing.T) {
	for _, name := range []string{currentFile, maxFile} {
		t.Run(name, func(t *testing.T) {
			h := newMemoryHigh(t, &mark{})
			l := newThresholdState("/kubepods", h)
			l.updateAndSet(t)
			h.want(t, strconv.FormatInt(2*gi, 10))
			h.write(t, name, "nonsense\n")
			if err := l.update(distances{2 * gi, none}); err == nil || l.current != none {
				t.Errorf("%v, and the wire lies at %d", err, l.current)
			}
			h.want(t, "max")
		})
	}
	t.Run("mark", func(t *testing.T) {
		m := &mark{}
		h := newMemoryHigh(t, m)
		l := newThresholdState("/kubepods", h)
		l.updateAndSet(t)
		m.err = errors.New("wrong")
		if err := l.update(distances{2 * gi, none}); !errors.Is(err, m.err) {
			t.Error(err)
		}
		h.want(t, "max")
	})
	t.Run("no cgroup", func(t *testing.T) {
		h := newMemoryHigh(t, &mark{})
		l := newThresholdState("/kubepods", h)
		l.updateAndSet(t)
		if err := os.RemoveAll(h.dir); err != nil {
			t.Fatal(err)
		}
		if err := l.update(distances{gi, none}); !isGone(err) || l.failures != 0 {
			t.Errorf("%v, %d failures", err, l.failures)
		}
	})
}

// Another program may reset memory.high when pods start, as systemd does with slices that it
// creates: the threshold is set again, after minInterval at the earliest. That is not a failure.
func TestMemoryHighIsReset(t *testing.T) {
	h := newMemoryHigh(t, &mark{})
	l := newThresholdState("/kubepods", h)
	l.updateAndSet(t)
	for range 3 * maxFailures {
		h.write(t, highFile, "max\n")
		setAt := l.setAt
		if err := l.update(distances{gi, none}); err != nil || l.current != none || l.failures != 0 || l.disabled {
			t.Fatalf("%v; it lies at %d, %d failures, ended: %v", err, l.current, l.failures, l.disabled)
		}
		if due := l.due(); !due.Equal(setAt.Add(minInterval)) {
			t.Errorf("to be laid at %s, want %s", due, setAt.Add(minInterval))
		}
		if crossed, err := l.set(l.due()); crossed || err != nil {
			t.Fatal(crossed, err)
		}
		h.want(t, strconv.FormatInt(2*gi, 10))
	}
	// A crossing meanwhile is reported.
	h.write(t, highFile, "max\n")
	if err := l.update(distances{gi, none}); err != nil {
		t.Fatal(err)
	}
	h.write(t, currentFile, "3221225472\n")
	if crossed, err := l.set(l.due()); !crossed || err != nil {
		t.Errorf("%v, %v", crossed, err)
	}
	h.want(t, "max")
}

func (l *thresholdState) updateAndSet(t *testing.T) {
	t.Helper()
	if err := l.update(distances{gi, none}); err != nil {
		t.Fatal(err)
	}
	if crossed, err := l.set(l.setAt); crossed || err != nil {
		t.Fatal(crossed, err)
	}
}
