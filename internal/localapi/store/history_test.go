package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"berth/internal/localapi/store"
)

func TestSince(t *testing.T) {
	s := open(t, store.Config{})
	a := write(t, s, pod("a"), 0, "one")
	b := write(t, s, store.Key{Resource: "nodes", Name: "n"}, 0, "node")
	a2 := write(t, s, pod("a"), a, "two")
	gone := write(t, s, pod("a"), a2, "")
	got, err := s.Since(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, c := range got {
		lines = append(lines, fmt.Sprintf("%s %d %q, before %d %q", c.Now.Key, c.Now.Revision, c.Now.Value, c.Before.Revision, c.Before.Value))
	}
	want := []string{
		fmt.Sprintf(`pods/default/a %d "one", before 0 ""`, a), fmt.Sprintf(`nodes/n %d "node", before 0 ""`, b),
		fmt.Sprintf(`pods/default/a %d "two", before %d "one"`, a2, a), fmt.Sprintf(`pods/default/a %d "", before %d "two"`, gone, a2),
	}
	if !slices.Equal(lines, want) {
		t.Errorf("changes %q, want %q", lines, want)
	}
	if got[0].Before.Value != nil || got[3].Now.Value != nil {
		t.Error("what is not there has a value")
	}
	if got, err := s.Since(t.Context(), a2); err != nil || len(got) != 1 || got[0].Now.Revision != gone {
		t.Errorf("since %d: %v, %v", a2, got, err)
	}
}

func TestSinceWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, store.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		var got []store.Change
		var err error
		since := func(revision uint64) { got, err = s.Since(ctx, revision) }
		go since(1)
		synctest.Wait()
		if got != nil || err != nil {
			t.Fatalf("it did not wait: %v, %v", got, err)
		}
		revision := write(t, s, pod("a"), 0, "v")
		synctest.Wait()
		if err != nil || len(got) != 1 || got[0].Now.Revision != revision {
			t.Errorf("after a change: %v, %v", got, err)
		}
		go since(revision + 1) // which is not there yet
		write(t, s, pod("b"), 0, "v")
		synctest.Wait()
		got = nil
		revision = write(t, s, pod("c"), 0, "v")
		synctest.Wait()
		if err != nil || len(got) != 1 || got[0].Now.Revision != revision {
			t.Errorf("since a revision that came later: %v, %v", got, err)
		}
		go since(revision)
		synctest.Wait()
		cancel()
		synctest.Wait()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}
	})
}

// TestWatchers has watchers that read all, some a few changes at a time, and one that sleeps until
// the history has left it behind, while 10,000 changes are made. None sees a change twice, misses
// one, or sees them in another order; who is too slow is told so.
func TestWatchers(t *testing.T) {
	const changes, writers, most = 10000, 20, 500
	s := open(t, store.Config{MaxHistory: most})
	s.WithoutSync()
	end := s.Revision() + changes
	var wg sync.WaitGroup
	for pace := range 4 {
		wg.Go(func() {
			follow(t, s, end, func(got []store.Change) []store.Change {
				if pace == 0 {
					return got
				}
				return got[:min(len(got), pace)]
			})
		})
	}
	wg.Go(func() {
		late := follow(t, s, end, func(got []store.Change) []store.Change {
			for wake := min(got[len(got)-1].Now.Revision+most+1, end); s.Revision() < wake; {
				if _, err := s.Since(t.Context(), s.Revision()); err != nil && !errors.Is(err, store.ErrCompacted) {
					t.Error(err)
				}
			}
			return got
		})
		if late == 0 {
			t.Error("one that sleeps was never too late")
		}
	})
	for w := range writers {
		wg.Go(func() {
			revision := uint64(0)
			for i := range changes / writers {
				next, err := s.Write(pod(fmt.Sprint(w)), revision, fmt.Append(nil, i))
				if err != nil {
					t.Error(err)
					return
				}
				revision = next
			}
		})
	}
	wg.Wait()
}

// follow reads all changes up to a revision, of each answer what take returns of it, and goes on
// from the newest revision when it is too late, as a client that lists again. It returns how often
// that was.
func follow(t *testing.T, s *store.Store, end uint64, take func([]store.Change) []store.Change) (late int) {
	for at := uint64(1); at < end; {
		got, err := s.Since(t.Context(), at)
		switch {
		case errors.Is(err, store.ErrCompacted):
			at = s.Revision()
			late++
			continue
		case err != nil:
			t.Error(err)
			return late
		}
		for _, c := range take(got) {
			if c.Now.Revision != at+1 {
				t.Errorf("revision %d after %d", c.Now.Revision, at)
				return late
			}
			at++
		}
	}
	return late
}

func TestHistoryIsBounded(t *testing.T) {
	for _, c := range []struct {
		name   string
		cfg    store.Config
		oldest uint64 // that Since takes, after 100 changes
	}{
		{"by changes", store.Config{MaxHistory: 10}, 91},
		{"by bytes", store.Config{MaxHistoryBytes: 2 * 5 * 100}, 96},
		{"not yet", store.Config{}, 1},
		{"one that is larger than all", store.Config{MaxHistoryBytes: 10}, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, c.cfg)
			s.WithoutSync()
			revision := uint64(0)
			for range 100 {
				revision = write(t, s, pod("a"), revision, fmt.Sprintf("%0100d", 0))
			}
			if got, err := s.Since(t.Context(), c.oldest); err != nil || uint64(len(got)) != 101-c.oldest {
				t.Errorf("since %d: %d changes, %v; want %d", c.oldest, len(got), err, 101-c.oldest)
			}
			if c.oldest == 1 {
				return
			}
			if _, err := s.Since(t.Context(), c.oldest-1); !errors.Is(err, store.ErrCompacted) {
				t.Errorf("since %d: %v, want that it is too old", c.oldest-1, err)
			}
		})
	}
}

func TestHistoryIsEmptyAfterAStart(t *testing.T) {
	path := t.TempDir() + "/api.db"
	s, err := store.Open(store.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	a := write(t, s, pod("a"), 0, "v")
	b := write(t, s, pod("b"), 0, "v")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, store.Config{Path: path})
	if _, err := s.Since(t.Context(), a); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("since a revision before the start: %v, want that it is too old", err)
	}
	c := write(t, s, pod("c"), 0, "v")
	if got, err := s.Since(t.Context(), b); err != nil || len(got) != 1 || got[0].Now.Revision != c {
		t.Errorf("since the newest before the start: %v, %v", got, err)
	}
}
