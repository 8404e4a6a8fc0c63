package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"berth/internal/localapi/store"
)

func open(t *testing.T, cfg store.Config) *store.Store {
	t.Helper()
	if cfg.Path == "" {
		cfg.Path = filepath.Join(t.TempDir(), "api.db")
	}
	s, err := store.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func pod(name string) store.Key {
	return store.Key{Resource: "pods", Namespace: "default", Name: name}
}

// write is a Write that succeeds.
func write(t *testing.T, s *store.Store, key store.Key, seen uint64, value string) uint64 {
	t.Helper()
	v := []byte(value)
	if value == "" {
		v = nil
	}
	revision, err := s.Write(key, seen, v)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// list returns a range as lines.
func list(t *testing.T, s *store.Store, r store.Range) (lines []string, revision uint64) {
	t.Helper()
	revision, err := s.List(r, func(i store.Item) bool {
		lines = append(lines, line(i))
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines, revision
}

func line(i store.Item) string { return fmt.Sprintf("%s %d %s", i.Key, i.Revision, i.Value) }

func TestWrite(t *testing.T) {
	s := open(t, store.Config{})
	created := write(t, s, pod("a"), 0, "one")
	updated := write(t, s, pod("a"), created, "two")
	if created != 2 || updated != 3 || s.Revision() != 3 {
		t.Errorf("revisions %d, %d and then %d; want 2, 3 and 3", created, updated, s.Revision())
	}
	for _, c := range []struct {
		name  string
		key   store.Key
		seen  uint64
		value []byte
		want  error
	}{
		{"create what is there", pod("a"), 0, []byte("x"), store.ErrConflict},
		{"update an older one", pod("a"), created, []byte("x"), store.ErrConflict},
		{"remove an older one", pod("a"), created, nil, store.ErrConflict},
		{"update what is not there", pod("b"), 2, []byte("x"), store.ErrNotFound},
		{"remove what is not there", pod("b"), 0, nil, store.ErrNotFound},
		{"too large", pod("b"), 0, make([]byte, store.MaxValue+1), store.ErrTooLarge},
	} {
		if _, err := s.Write(c.key, c.seen, c.value); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	got, err := s.Get(pod("a"))
	if want := (store.Item{Key: pod("a"), Revision: updated, Value: []byte("two")}); err != nil || !cmp.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if removed := write(t, s, pod("a"), updated, ""); removed != 4 || s.Revision() != 4 {
		t.Errorf("removed at %d, the newest is %d; want 4", removed, s.Revision())
	}
	if _, err := s.Get(pod("a")); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get what was removed: %v", err)
	}
	if again := write(t, s, pod("a"), 0, "three"); again != 5 {
		t.Errorf("made again at %d, want 5", again)
	}
	write(t, s, pod("largest"), 0, strings.Repeat("x", store.MaxValue))
}

func TestKeys(t *testing.T) {
	s := open(t, store.Config{})
	for _, k := range []store.Key{
		{Resource: "pods", Namespace: "a"},
		{Name: "x"},
		{Resource: "pods", Namespace: "a/b", Name: "x"},
		{Resource: "pods", Namespace: strings.Repeat("n", 400), Name: strings.Repeat("x", 400)},
	} {
		if _, err := s.Write(k, 0, []byte("v")); err == nil {
			t.Errorf("%q was written", k)
		}
		if _, err := s.Get(k); err == nil || errors.Is(err, store.ErrNotFound) {
			t.Errorf("get %q: %v, want what is wrong with the key", k, err)
		}
	}
	// Neither a namespace nor a resource begins another one.
	for _, k := range []store.Key{
		{"pods", "team", "b"},
		{"pods", "team-a", "a"},
		{"pods", "team", "a"},
		{"pods.metrics.k8s.io", "team", "m"},
		{"nodes", "", "n"},
	} {
		write(t, s, k, 0, "v")
	}
	for _, c := range []struct {
		in   store.Range
		want []string
	}{
		{store.Range{Resource: "pods", Namespace: "team"}, []string{"pods/team/a 4 v", "pods/team/b 2 v"}},
		{store.Range{Resource: "pods"}, []string{"pods/team-a/a 3 v", "pods/team/a 4 v", "pods/team/b 2 v"}},
		{store.Range{Resource: "nodes"}, []string{"nodes/n 6 v"}},
		{store.Range{Resource: "pods", After: store.Key{Resource: "pods", Namespace: "team", Name: "a"}}, []string{"pods/team/b 2 v"}},
		{store.Range{Resource: "pods", After: store.Key{Resource: "pods", Namespace: "team-a", Name: "a"}}, []string{"pods/team/a 4 v", "pods/team/b 2 v"}},
		{store.Range{Resource: "pods", Namespace: "team", After: store.Key{Resource: "pods", Namespace: "team", Name: "b"}}, nil},
		{store.Range{Resource: "secrets"}, nil},
	} {
		if got, revision := list(t, s, c.in); !slices.Equal(got, c.want) || revision != 6 {
			t.Errorf("%+v: %q at %d, want %q at 6", c.in, got, revision, c.want)
		}
	}
}

// TestModel writes at random, and holds lists of any revision, whole and in pages, against what was
// there then.
func TestModel(t *testing.T) {
	const most = 50
	s := open(t, store.Config{MaxHistory: most})
	s.WithoutSync()
	r := rand.New(rand.NewPCG(1, 2))
	now := map[store.Key]store.Item{}
	shown := map[uint64][]string{1: nil} // of resource "pods", by revision
	expired, checked := 0, 0
	for range 2000 {
		key := store.Key{Resource: []string{"pods", "secrets"}[r.IntN(2)], Namespace: []string{"a", "b", "b-c"}[r.IntN(3)], Name: []string{"n", "n-", "n."}[r.IntN(3)] + fmt.Sprint(r.IntN(4))}
		value := ""
		if old, ok := now[key]; !ok || old.Revision%3 != 0 {
			value = fmt.Sprint("v", r.IntN(1000))
		}
		revision := write(t, s, key, now[key].Revision, value)
		now[key] = store.Item{Key: key, Revision: revision, Value: []byte(value)}
		if value == "" {
			delete(now, key)
		}
		shown[revision] = rows(now, "pods")

		at := revision - min(revision-1, uint64(r.IntN(most+10)))
		got, err := pages(s, at, 1+r.IntN(9))
		switch {
		case errors.Is(err, store.ErrCompacted) && revision-at > most-1:
			expired++
		case err != nil:
			t.Fatalf("list at %d of %d: %v", at, revision, err)
		case !slices.Equal(got, shown[at]):
			t.Fatalf("at %d of %d:\n%s", at, revision, cmp.Diff(shown[at], got))
		default:
			checked++
		}
	}
	if expired == 0 || checked < 1000 {
		t.Errorf("%d lists were checked, and %d too old", checked, expired)
	}
	if _, err := pages(s, s.Revision()+1, 1); !errors.Is(err, store.ErrFuture) {
		t.Errorf("list of a revision to come: %v", err)
	}
}

func rows(items map[store.Key]store.Item, resource string) []string {
	var in []store.Item
	for k, i := range items {
		if k.Resource == resource {
			in = append(in, i)
		}
	}
	slices.SortFunc(in, func(a, b store.Item) int {
		return strings.Compare(a.Key.Namespace+"/"+a.Key.Name, b.Key.Namespace+"/"+b.Key.Name)
	})
	var out []string
	for _, i := range in {
		out = append(out, line(i))
	}
	return out
}

// pages lists the pods of all namespaces at a revision, size at a time.
func pages(s *store.Store, revision uint64, size int) (lines []string, err error) {
	r := store.Range{Resource: "pods", Revision: revision}
	for {
		n := 0
		if _, err := s.List(r, func(i store.Item) bool {
			lines, r.After = append(lines, line(i)), i.Key
			n++
			return n < size
		}); err != nil {
			return nil, err
		}
		if n < size {
			return lines, nil
		}
	}
}

func TestWritersSideBySide(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.db")
	s, err := store.Open(store.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	const writers, each = 50, 20
	var mu sync.Mutex
	seen := map[uint64]bool{}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			revision := uint64(0)
			for i := range each {
				next, err := s.Write(pod(fmt.Sprint(w)), revision, fmt.Append(nil, i))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if next <= revision || seen[next] {
					t.Errorf("revision %d after %d, or twice", next, revision)
				}
				seen[next], revision = true, next
				mu.Unlock()
			}
		})
	}
	// Of those who want the same, one gets it.
	var won, lost int
	for range 30 {
		wg.Go(func() {
			_, err := s.Write(pod("same"), 0, []byte("v"))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
			case errors.Is(err, store.ErrConflict):
				lost++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won != 1 || lost != 29 || s.Revision() != writers*each+2 {
		t.Errorf("%d won and %d lost, the newest revision is %d; want 1, 29 and %d", won, lost, s.Revision(), writers*each+2)
	}
	before, revision := list(t, s, store.Range{Resource: "pods"})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, store.Config{Path: path})
	if after, at := list(t, again, store.Range{Resource: "pods"}); !slices.Equal(before, after) || at != revision {
		t.Errorf("opened again at %d instead of %d:\n%s", at, revision, cmp.Diff(before, after))
	}
}

func TestFull(t *testing.T) {
	s := open(t, store.Config{MaxFile: 1 << 20})
	value := bytes.Repeat([]byte("x"), 100<<10)
	var held []uint64
	var err error
	for err == nil && len(held) < 100 {
		var revision uint64
		if revision, err = s.Write(pod(fmt.Sprint(len(held))), 0, value); err == nil {
			held = append(held, revision)
		}
	}
	if !errors.Is(err, store.ErrFull) || len(held) < 9 {
		t.Fatalf("after %d objects: %v", len(held), err)
	}
	if s.Health() != nil {
		t.Errorf("a store at its limit is not ill: %v", s.Health())
	}
	for i, revision := range held[:5] {
		write(t, s, pod(fmt.Sprint(i)), revision, "")
	}
	write(t, s, pod("new"), 0, "fits again")
}

func TestOpenRefuses(t *testing.T) {
	put := func(bucket, key string, value []byte) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			db, err := bolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = db.Update(func(tx *bolt.Tx) error {
				b, err := tx.CreateBucketIfNotExists([]byte(bucket))
				if err != nil {
					return err
				}
				return b.Put([]byte(key), value)
			})
			if err = errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name string
		make func(*testing.T, string)
		want string
	}{
		{"newer", put("meta", "format", []byte{7: 3}), "it has format 3, and this version of Berth knows format 2"},
		{"older", put("meta", "format", []byte{7: 1}), "it has format 1, and this version of Berth knows format 2"},
		{"of somebody else", put("theirs", "k", nil), `it has something else in it ("theirs")`},
		{"without a format", put("meta", "format", []byte("x")), "its format has 1 bytes instead of 8"},
		{"without objects", put("meta", "format", []byte{7: 2}), "it has no objects in it"},
		{"no database", func(t *testing.T, path string) {
			if err := os.WriteFile(path, bytes.Repeat([]byte("text"), 4096), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "restore a backup, or move the file away"},
		{"open already", func(t *testing.T, path string) { open(t, store.Config{Path: path}) }, "another process has it open"},
		{"no folder", func(t *testing.T, path string) {
			if err := os.RemoveAll(filepath.Dir(path)); err != nil {
				t.Fatal(err)
			}
		}, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "api.db")
			c.make(t, path)
			s, err := store.Open(store.Config{Path: path})
			if err == nil {
				t.Fatal(errors.Join(errors.New("it was opened"), s.Close()))
			}
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want %q and the path", err, c.want)
			}
		})
	}
}
