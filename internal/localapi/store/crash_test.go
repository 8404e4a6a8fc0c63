package store_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/localapi/store"
)

// childMode names what this program does in a process of its own, on the store that childPath
// names, instead of tests.
const (
	childMode = "BERTH_STORE_TEST"
	childPath = "BERTH_STORE_TEST_PATH"
)

var childModes = map[string]func(*store.Store) error{"write": writeForEver, "full": fillDisk}

func TestMain(m *testing.M) {
	mode := os.Getenv(childMode)
	if mode == "" {
		os.Exit(m.Run())
	}
	s, err := store.Open(store.Config{Path: os.Getenv(childPath)})
	if err == nil {
		err = childModes[mode](s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func child(t *testing.T, mode, path string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), "/proc/self/exe")
	c.Env = append(os.Environ(), childMode+"="+mode, childPath+"="+path)
	return c
}

// TestEachByteOfACommit ends the writing of a commit after each of its pages, and after each byte
// of the last, which refers to the others. The file then has what was before, all of it, until the
// commit is whole.
func TestEachByteOfACommit(t *testing.T) {
	large := strings.Repeat("x", 40<<10)
	for _, c := range []struct {
		name  string
		key   store.Key
		value string
	}{
		{"create", pod("new"), "v"},
		{"update", pod("n07"), "w"},
		{"update in many pages, with a larger file", pod("n07"), large},
		{"remove", pod("n07"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "api.db")
			s, err := store.Open(store.Config{Path: path})
			if err != nil {
				t.Fatal(err)
			}
			seen := map[store.Key]uint64{}
			for i := range 30 {
				k := pod(fmt.Sprintf("n%02d", i))
				seen[k] = write(t, s, k, 0, strings.Repeat("y", 300))
			}
			before, oldRows := snapshot(t, s, path)
			write(t, s, c.key, seen[c.key], c.value)
			after, newRows := snapshot(t, s, path)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			states := unfinished(t, before, after)
			if len(states) < 10 {
				t.Fatalf("%d states are too few for a commit", len(states))
			}
			for i, content := range states {
				want := oldRows
				if i == len(states)-1 {
					want = newRows
				}
				if got := reopen(t, content); !slices.Equal(got, want) {
					t.Fatalf("state %d of %d: %s", i, len(states), cmp.Diff(want, got))
				}
			}
		})
	}
}

// snapshot returns the file, and what is in it.
func snapshot(t *testing.T, s *store.Store, path string) (content []byte, rows []string) {
	t.Helper()
	rows, _ = list(t, s, store.Range{Resource: "pods"})
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content, rows
}

func reopen(t *testing.T, content []byte) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "api.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(store.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	rows, _ := list(t, s, store.Range{Resource: "pods"})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return rows
}

// unfinished returns what a commit makes of a file, step by step: a larger file, the pages in their
// order, each half and then whole, and last the bytes of the page that refers to them, which is the
// first or the second.
func unfinished(t *testing.T, before, after []byte) [][]byte {
	t.Helper()
	page := os.Getpagesize()
	now := slices.Concat(before, make([]byte, len(after)-len(before)))
	states := [][]byte{before, slices.Clone(now)}
	step := func(from, to int) {
		copy(now[from:to], after[from:to])
		states = append(states, slices.Clone(now))
	}
	meta := -1
	for at := 0; at < len(after); at += page {
		switch {
		case bytes.Equal(now[at:at+page], after[at:at+page]):
		case at < 2*page:
			if meta >= 0 {
				t.Fatal("both first pages have changed: that was more than one commit")
			}
			meta = at
		default:
			step(at, at+page/2)
			step(at, at+page)
		}
	}
	if meta < 0 {
		t.Fatal("neither of the first pages has changed: there was no commit")
	}
	for i := meta; i < meta+page; i++ {
		if now[i] != after[i] {
			step(i, i+1)
		}
	}
	return states
}

// TestSIGKILL kills a process at any moment of its writing. What it was told to be written is
// there, and at most one write more of each writer, whose answer was not told.
func TestSIGKILL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.db")
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 8 {
		c := child(t, "write", path)
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		acknowledged := map[string]int{}
		lines := bufio.NewScanner(out)
		for end := 1 + r.IntN(60); lines.Scan(); end-- {
			var name string
			var n int
			if _, err := fmt.Sscan(lines.Text(), &name, &n); err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
			acknowledged[name] = n
			if end == 1 {
				if err := c.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := c.Wait(); err == nil || c.ProcessState.ExitCode() != -1 {
			t.Fatalf("it was not killed: %v", err)
		}
		s, err := store.Open(store.Config{Path: path})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for name, n := range acknowledged {
			i, err := s.Get(pod(name))
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			var have int
			if _, err := fmt.Sscan(string(i.Value), &have); err != nil || have != n && have != n+1 || i.Revision > s.Revision() {
				t.Errorf("round %d: %s is %q at %d of %d, and %d was acknowledged", round, name, i.Value, i.Revision, s.Revision(), n)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// writeForEver has some writers count, each in an object of its own, and say what is written.
func writeForEver(s *store.Store) error {
	var wg sync.WaitGroup
	for w := range 5 {
		wg.Go(func() {
			key := pod(fmt.Sprint("writer-", w))
			n, seen := 0, uint64(0)
			if i, err := s.Get(key); err == nil {
				fmt.Sscan(string(i.Value), &n)
				seen = i.Revision
			}
			for {
				n++
				revision, err := s.Write(key, seen, fmt.Append(nil, n))
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				seen = revision
				fmt.Printf("%s %d\n", key.Name, n)
			}
		})
	}
	wg.Wait()
	return nil
}

func TestDiskFull(t *testing.T) {
	out, err := child(t, "full", filepath.Join(t.TempDir(), "api.db")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// fillDisk lets the file become only so large, for one size after the other, and writes more than
// fits. A limit of the process stands for the disk: what is written beyond it fails, in the middle
// of a page or of a commit.
func fillDisk(s *store.Store) error {
	signal.Ignore(unix.SIGXFSZ)
	var failed, done int
	key := func(n int) store.Key { return pod(fmt.Sprintf("n%04d", n)) }
	for limit := uint64(8 << 10); limit < 512<<10; limit += 6 << 10 {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: unix.RLIM_INFINITY}); err != nil {
			return err
		}
		_, err := s.Write(key(done), 0, bytes.Repeat([]byte("z"), 9<<10))
		switch {
		case err == nil:
			done++
		case !strings.Contains(err.Error(), unix.EFBIG.Error()): // bbolt does not wrap all of them
			return fmt.Errorf("at a limit of %d: %w", limit, err)
		case s.Health() == nil:
			return errors.New("a write failed, and the store is healthy")
		default:
			failed++
		}
		if err := holds(s, done, key); err != nil {
			return fmt.Errorf("at a limit of %d: %w", limit, err)
		}
	}
	if failed < 10 || done < 10 {
		return fmt.Errorf("%d writes have failed, and %d have not: too few of either", failed, done)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil {
		return err
	}
	if _, err := s.Write(key(done), 0, bytes.Repeat([]byte("z"), 1<<20)); err != nil {
		return fmt.Errorf("when there is room again: %w", err)
	}
	if err := s.Health(); err != nil {
		return fmt.Errorf("health when there is room again: %w", err)
	}
	path := os.Getenv(childPath)
	if err := s.Close(); err != nil {
		return err
	}
	again, err := store.Open(store.Config{Path: path})
	if err != nil {
		return err
	}
	return holds(again, done+1, key)
}

// holds reports what is wrong with a store that has n objects.
func holds(s *store.Store, n int, key func(int) store.Key) error {
	var bad error
	i := 0
	revision, err := s.List(store.Range{Resource: "pods"}, func(item store.Item) bool {
		if item.Key != key(i) || item.Revision != uint64(i+2) || strings.Trim(string(item.Value), "z") != "" {
			bad = fmt.Errorf("object %d is %s at %d", i, item.Key, item.Revision)
		}
		i++
		return bad == nil
	})
	if err == nil && bad == nil && (i != n || revision != uint64(n+1)) {
		bad = fmt.Errorf("it has %d objects at %d, want %d at %d", i, revision, n, n+1)
	}
	return errors.Join(err, bad)
}
