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
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/localapi/store"
)

// checked decodes what the tests write.
func checked(key store.Key, value []byte) error {
	if !bytes.HasPrefix(value, []byte("value of "+key.String())) {
		return errors.New("it is no value")
	}
	return nil
}

func openCopied(t *testing.T, path string) *store.Store {
	t.Helper()
	s, err := store.Open(store.Config{Path: path, Copy: true, Check: checked})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// several makes a store with 200 objects, of which some were changed and some removed, and returns
// what is in it and its revision.
func several(t *testing.T, path string) (rows []string, revision uint64) {
	t.Helper()
	s := openCopied(t, path)
	s.WithoutSync()
	for i := range 200 {
		k := pod(fmt.Sprintf("n%03d", i))
		r := write(t, s, k, 0, fmt.Sprintf("value of %s, the first%s", k, strings.Repeat(".", i*7)))
		switch {
		case i%10 == 1:
			write(t, s, k, r, "value of "+k.String()+", the second")
		case i%10 == 2:
			write(t, s, k, r, "")
		}
	}
	rows, _ = list(t, s, store.Range{Resource: "pods"})
	revision = s.Revision()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return rows, revision
}

// damages are what may happen to a file.
var damages = map[string]func(t *testing.T, path string){
	"cut to a third": func(t *testing.T, path string) {
		fi, err := os.Stat(path)
		if err == nil {
			err = os.Truncate(path, fi.Size()/3)
		}
		if err != nil {
			t.Fatal(err)
		}
	},
	"emptied": func(t *testing.T, path string) {
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
	},
	"deleted": func(t *testing.T, path string) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	},
	"400 bits flipped": func(t *testing.T, path string) { flip(t, path, 400, 1) },
	"both heads gone": func(t *testing.T, path string) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(make([]byte, 2*os.Getpagesize())); err != nil {
			t.Fatal(err)
		}
	},
	"a folder in its place": func(t *testing.T, path string) {
		if err := errors.Join(os.Remove(path), os.MkdirAll(path+"/in/it", 0o700)); err != nil {
			t.Fatal(err)
		}
	},
	"unreadable": func(t *testing.T, path string) { // each read fails with EIO
		if err := errors.Join(os.Remove(path), os.Symlink("/proc/self/mem", path)); err != nil {
			t.Fatal(err)
		}
	},
	"a link to itself": func(t *testing.T, path string) {
		if err := errors.Join(os.Remove(path), os.Symlink(path, path)); err != nil {
			t.Fatal(err)
		}
	},
}

// flip flips bits of a file.
func flip(t *testing.T, path string, bits int, seed uint64) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(seed, 0))
	for range bits {
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Whatever happens to the file, its copy has all objects, and revisions go on behind those that
// clients have seen.
func TestRecoverFromTheCopy(t *testing.T) {
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "objects.db")
			want, revision := several(t, path)
			damage(t, path)
			s := openCopied(t, path)
			r, now := s.Recovery()
			if r == nil || !now {
				t.Fatalf("recovery %v, %v", r, now)
			}
			t.Log(r)
			got, _ := list(t, s, store.Range{Resource: "pods"})
			if !slices.Equal(got, want) {
				t.Errorf("%d objects, want %d", len(got), len(want))
			}
			if len(r.Lost) > 0 || r.Unnamed || r.Objects != len(want) {
				t.Errorf("recovery %+v", r)
			}
			if _, err := os.Lstat(r.Aside); (err == nil) != (name != "deleted") {
				t.Errorf("the damaged file: %q, %v", r.Aside, err)
			}
			if s.Revision() < revision+1<<32 {
				t.Errorf("revision %d, and clients have seen %d", s.Revision(), revision)
			}
			if _, err := s.Since(t.Context(), revision); !errors.Is(err, store.ErrCompacted) {
				t.Errorf("a watch from before goes on: %v", err)
			}
			write(t, s, pod("new"), 0, "value of pods/default/new")
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openCopied(t, path)
			again, now := s.Recovery()
			if again == nil || now || again.Cause != r.Cause {
				t.Errorf("then the last recovery is %v, %v", again, now)
			}
			if got, _ = list(t, s, store.Range{Resource: "pods"}); len(got) != len(want)+1 {
				t.Errorf("then %d objects", len(got))
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Without a copy, what can be read is recovered object by object, and what is lost is named, or it
// is said that names are unknown.
func TestRecoverWithoutACopy(t *testing.T) {
	for name, damage := range damages {
		for _, copied := range []string{"deleted", "emptied", "400 bits flipped", "cut to a third"} {
			t.Run(name+", and the copy "+copied, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "objects.db")
				want, revision := several(t, path)
				damage(t, path)
				damages[copied](t, path+".copy")
				s := openCopied(t, path)
				r, _ := s.Recovery()
				t.Log(r)
				got, _ := list(t, s, store.Range{Resource: "pods"})
				if r == nil || r.Objects != len(got) {
					t.Fatalf("%d objects, recovery %+v", len(got), r)
				}
				if len(got)+len(r.Lost) < len(want) && !r.Unnamed {
					t.Errorf("%d objects of %d are there, %d are said to be lost", len(got), len(want), len(r.Lost))
				}
				if s.Revision() <= revision {
					t.Errorf("revision %d, and clients have seen %d", s.Revision(), revision)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// A few flipped bits anywhere in any of the three files lose nothing and crash nothing.
func TestRecoverFlippedBits(t *testing.T) {
	origin := filepath.Join(t.TempDir(), "objects.db")
	want, revision := several(t, origin)
	for seed := range uint64(60) {
		dir := t.TempDir()
		path := filepath.Join(dir, "objects.db")
		for _, suffix := range []string{"", ".copy", ".json"} {
			b, err := os.ReadFile(origin + suffix)
			if err == nil {
				err = os.WriteFile(path+suffix, b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		flip(t, path+[]string{"", "", "", ".copy", ".json"}[seed%5], 1+int(seed/4), seed)
		s := openCopied(t, path)
		got, _ := list(t, s, store.Range{Resource: "pods"})
		if !slices.Equal(got, want) {
			r, _ := s.Recovery()
			t.Errorf("seed %d: %d objects of %d: %v", seed, len(got), len(want), r)
		}
		if s.Revision() < revision {
			t.Errorf("seed %d: revision %d after %d", seed, s.Revision(), revision)
		}
		write(t, s, pod("new"), 0, "value of pods/default/new")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// An object that does not decode is set aside with its name; the others stay.
func TestObjectThatDoesNotDecode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "objects.db")
	several(t, path)
	s, err := store.Open(store.Config{Path: path, Copy: true}) // checks nothing
	if err != nil {
		t.Fatal(err)
	}
	before, _ := list(t, s, store.Range{Resource: "pods"})
	write(t, s, pod("bad"), 0, "no such thing")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openCopied(t, path)
	r, now := s.Recovery()
	if !now || len(r.Lost) != 1 || r.Lost[0].Key != pod("bad").String() || r.Lost[0].Why != "it is no value" {
		t.Errorf("recovery %+v", r)
	}
	if got, _ := list(t, s, store.Range{Resource: "pods"}); !slices.Equal(got, before) {
		t.Errorf("%d objects, want %d", len(got), len(before))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A copy that the disk does not take, when the store is opened or later, is made when the disk
// takes it, though nothing more is written; and so is the state beside it. The store is well again,
// too, when it was a write of an object that failed.
func TestWellAgainWithoutAWrite(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		for _, early := range []bool{true, false} {
			dir := t.TempDir()
			path := filepath.Join(dir, "objects.db")
			several(t, path)
			if err := errors.Join(os.Remove(path+".copy"), os.Remove(path+".json")); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				var mend func()
				if early {
					mend = fail(dir)
				}
				s := openCopied(t, path)
				if !early {
					mend = fail(dir)
					for i := range 3 { // they may fail
						_, _ = s.Write(pod(fmt.Sprintf("full%d", i)), 0, []byte("value of pods/default/full"+fmt.Sprint(i)))
					}
				}
				for range 3 {
					time.Sleep(time.Minute)
					if err := s.Health(); err == nil || early && !strings.Contains(err.Error(), " is not kept") {
						t.Errorf("early: %v: on a bad disk its health is %v", early, err)
					}
				}
				mend()
				time.Sleep(time.Minute)
				if err := s.Health(); err != nil {
					t.Errorf("early: %v: %v", early, err)
				}
				for _, suffix := range []string{".copy", ".json"} {
					if _, err := os.Stat(path + suffix); err != nil {
						t.Error(err)
					}
				}
				want, _ := list(t, s, store.Range{Resource: "pods"})
				if err := errors.Join(s.Close(), os.Truncate(path, 100)); err != nil {
					t.Fatal(err)
				}
				s = openCopied(t, path)
				if got, _ := list(t, s, store.Range{Resource: "pods"}); len(got) < 100 || !slices.Equal(got, want) {
					t.Errorf("early: %v: %d objects are in the copy, want %d", early, len(got), len(want))
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// A transaction that failed and is in the file nevertheless has its revision for good: no other
// change gets it.
func TestRevisionOfAFailedSync(t *testing.T) {
	path := filepath.Join(t.TempDir(), "objects.db")
	synctest.Test(t, func(t *testing.T) {
		s := openCopied(t, path)
		write(t, s, pod("a"), 0, "value of pods/default/a")
		unseen, err := s.FailAfterCommit()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := s.Health(); err != nil {
			t.Error(err)
		}
		if got := write(t, s, pod("b"), 0, "value of pods/default/b"); got <= unseen {
			t.Errorf("the next change has revision %d, and the one that failed has %d", got, unseen)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A copy that the disk does not take costs no write; it is made when the disk takes it.
func TestCopyOnABadDisk(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		dir := t.TempDir()
		path := filepath.Join(dir, "objects.db")
		want, _ := several(t, path)
		s := openCopied(t, path)
		mend := fail(dir)
		for i := range 30 { // until nothing fits any more
			k := pod(fmt.Sprintf("full%d", i))
			_, _ = s.Write(k, 0, []byte("value of "+k.String()))
		}
		if s.Health() == nil {
			t.Error("it is healthy")
		}
		if got, _ := list(t, s, store.Range{Resource: "pods"}); len(got) < len(want) {
			t.Errorf("%d objects of %d", len(got), len(want))
		}
		mend()
		write(t, s, pod("late"), 0, "value of pods/default/late")
		rows, _ := list(t, s, store.Range{Resource: "pods"})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openCopied(t, path)
		if err := s.Health(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		damages["emptied"](t, path)
		s = openCopied(t, path)
		if got, _ := list(t, s, store.Range{Resource: "pods"}); !slices.Equal(got, rows) {
			t.Errorf("%d objects are recovered, want %d", len(got), len(rows))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A file that is damaged under an open store fails its calls, and crashes nothing.
func TestDamageWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "objects.db")
	want, _ := several(t, path)
	s := openCopied(t, path)
	damages["cut to a third"](t, path)
	var failed error
	for i := 0; failed == nil && i < 200; i++ {
		_, failed = s.List(store.Range{Resource: "pods"}, func(store.Item) bool { return true })
		if failed == nil {
			k := pod(fmt.Sprintf("m%d", i))
			_, failed = s.Write(k, 0, []byte("value of "+k.String()))
		}
	}
	if !errors.Is(failed, store.ErrDamaged) || !strings.Contains(failed.Error(), path) {
		t.Fatalf("it fails with %v", failed)
	}
	<-s.Damaged()
	if _, err := s.Write(pod("more"), 0, []byte("value of more")); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("a write then fails with %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openCopied(t, path)
	if got, _ := list(t, s, store.Range{Resource: "pods"}); len(got) < len(want) {
		t.Errorf("%d objects of %d", len(got), len(want))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A first start is none, and an older file in the place of the store does not take revisions back.
func TestRevisionsDoNotGoBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "objects.db")
	s := openCopied(t, path)
	if r, now := s.Recovery(); r != nil || now {
		t.Errorf("a first start is a recovery: %v", r)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, revision := several(t, path)
	s = openCopied(t, path)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(path, old, 0o600), os.Remove(path+".copy")); err != nil {
		t.Fatal(err)
	}
	s = openCopied(t, path)
	if s.Revision() <= revision {
		t.Errorf("revision %d, and clients have seen %d", s.Revision(), revision)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
