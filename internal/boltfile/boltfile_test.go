package boltfile_test

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

	bolt "go.etcd.io/bbolt"

	"berth/internal/boltfile"
)

// made makes a file with nested buckets, inline ones, large values and free pages.
func made(t *testing.T, freelist bool) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true, NoFreelistSync: !freelist})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		err := db.Update(func(tx *bolt.Tx) error {
			for _, name := range []string{"large", "nested", "small"} {
				b, err := tx.CreateBucketIfNotExists([]byte(name))
				if err != nil {
					return err
				}
				n := map[string]int{"large": 120, "nested": 20, "small": 2}[name]
				for i := range n {
					k := fmt.Appendf(nil, "key%04d", i)
					switch {
					case name == "nested":
						in, err := b.CreateBucketIfNotExists(k)
						if err == nil {
							err = in.SetSequence(uint64(i))
						}
						for j := range i * i {
							err = errors.Join(err, in.Put(fmt.Append(nil, "in", j), k))
						}
						if err != nil {
							return err
						}
					case i%3 == round:
						err = b.Delete(k)
					default:
						err = b.Put(k, bytes.Repeat([]byte{byte(i)}, i*20))
					}
					if err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// walked returns what Walk visits.
func walked(t *testing.T, content []byte) (rows []string, problems []boltfile.Problem, err error) {
	t.Helper()
	f, err := boltfile.Open(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return nil, nil, err
	}
	problems = f.Walk(func(e boltfile.Entry) {
		rows = append(rows, fmt.Sprintf("%s %q %v %d %d", strings.Join(e.Bucket, "/"), e.Key, e.IsBucket, e.Sequence, len(e.Value)))
	})
	f.Leaves(func(boltfile.Entry) {})
	return rows, problems, nil
}

func TestWalk(t *testing.T) {
	for _, freelist := range []bool{true, false} {
		path := made(t, freelist)
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		rows, problems, err := walked(t, content)
		if err != nil || len(problems) > 0 {
			t.Fatal(err, problems)
		}
		var want []string
		var add func(path []string, b *bolt.Bucket) error
		add = func(path []string, b *bolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				in := b.Bucket(k)
				sequence := uint64(0)
				if in != nil {
					sequence = in.Sequence()
				}
				want = append(want, fmt.Sprintf("%s %q %v %d %d", strings.Join(path, "/"), k, in != nil, sequence, len(v)))
				if in == nil {
					return nil
				}
				return add(append(slices.Clone(path), string(k)), in)
			})
		}
		db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		err = db.View(func(tx *bolt.Tx) error {
			return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
				want = append(want, fmt.Sprintf(" %q true %d 0", name, b.Sequence()))
				return add([]string{string(name)}, b)
			})
		})
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(rows, want) {
			t.Errorf("%d rows, want %d", len(rows), len(want))
		}
	}
}

// A file with flipped bits, or without its end, crashes nothing. bbolt's own check finds nothing in
// one in which Walk finds nothing.
func TestDamaged(t *testing.T) {
	origin, err := os.ReadFile(made(t, true))
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	sound := 0
	for i := range 600 {
		content := bytes.Clone(origin)
		if i%7 == 0 {
			content = content[:r.IntN(len(content))]
		} else {
			for range 1 + r.IntN(4) {
				page := r.IntN(len(content)/4096) * 4096
				at := page + r.IntN(4096)
				if i%2 == 0 { // where the structure is
					at = page + r.IntN(64)
				}
				content[at] ^= 1 << r.IntN(8)
			}
		}
		_, problems, err := walked(t, content)
		if err != nil || len(problems) > 0 {
			continue
		}
		sound++
		path := filepath.Join(t.TempDir(), "damaged.db")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true})
		if err != nil {
			t.Fatalf("damage %d: %v", i, err)
		}
		err = db.View(func(tx *bolt.Tx) error {
			var errs []error
			for err := range tx.Check() {
				if !strings.Contains(err.Error(), "unreachable unfreed") { // which is room that is lost
					errs = append(errs, err)
				}
			}
			return errors.Join(errs...)
		})
		if err := errors.Join(err, db.Close()); err != nil {
			t.Errorf("damage %d: %v", i, err)
		}
	}
	if sound < 50 || sound > 550 {
		t.Errorf("%d files of 600 were sound", sound)
	}
}
