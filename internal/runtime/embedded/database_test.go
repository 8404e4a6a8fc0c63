package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// database is a file as bbolt makes it, with some thousand keys in buckets as containerd has them.
func database(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "meta.db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		err := db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("v1"))
			for i := range 1000 {
				err = errors.Join(err, b.Put(fmt.Appendf(nil, "image %d", i), bytes.Repeat([]byte{byte(i)}, 100*round)))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestCheckDatabase(t *testing.T) {
	size := os.Getpagesize()
	for name, c := range map[string]struct {
		change func(db []byte) []byte
		broken bool
	}{
		"whole":             {func(db []byte) []byte { return db }, false},
		"longer":            {func(db []byte) []byte { return append(db, make([]byte, size)...) }, false},
		"first head lost":   {func(db []byte) []byte { return append(make([]byte, size), db[size:]...) }, false},
		"second head lost":  {func(db []byte) []byte { clear(db[size : 2*size]); return db }, false},
		"both heads lost":   {func(db []byte) []byte { clear(db[:2*size]); return db }, true},
		"heads are garbage": {func(db []byte) []byte { db[40]++; db[size+40]++; return db }, true},
		"empty":             {func([]byte) []byte { return nil }, true},
		"cut in its head":   {func(db []byte) []byte { return db[:50] }, true},
		"cut to a third":    {func(db []byte) []byte { return db[:len(db)/3] }, true},
		"types of pages flipped": {func(db []byte) []byte {
			for at := 2 * size; at < len(db); at += size {
				db[at+8] ^= 4
			}
			return db
		}, true},
	} {
		file := filepath.Join(t.TempDir(), "meta.db")
		if err := os.WriteFile(file, c.change(database(t)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := checkDatabase(file); errors.Is(err, errBroken) != c.broken || !c.broken && err != nil {
			t.Errorf("%s: error %v, want it broken: %v", name, err, c.broken)
		}
	}
	if err := checkDatabase(t.TempDir()); !errors.Is(err, errBroken) {
		t.Errorf("a folder: %v", err)
	}
}

// Without containers, as after a reboot or before the first start, a missing database is none that
// is lost.
func TestCheckDatabases(t *testing.T) {
	dir := t.TempDir()
	p := newPaths(dir+"/root", dir+"/run")
	if err := checkDatabases(p); err != nil {
		t.Errorf("before the first start: %v", err)
	}
	// There were images, so that it is not the first start; unless it has begun anew already.
	if err := writeImageList(p.imageList, nil); err != nil {
		t.Fatal(err)
	}
	if err := checkDatabases(p); !errors.Is(err, errBroken) {
		t.Errorf("with a list of images and no database: %v, want it broken", err)
	}
	if err := os.MkdirAll(p.store.salvage, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkDatabases(p); err != nil {
		t.Errorf("with images to restore: %v", err)
	}
	if err := os.RemoveAll(p.root); err != nil {
		t.Fatal(err)
	}
	for what, dir := range map[string]string{"a container": p.runc + "/k8s.io/x", "a podshim": p.podshims + "/x/shm"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := checkDatabases(p); !errors.Is(err, errBroken) {
			t.Errorf("with %s and no database: %v, want it broken", what, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(p.podshims+"/x/shm", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(p.store.metadata, database(t)); err != nil {
		t.Fatal(err)
	}
	if err := checkDatabases(p); err != nil {
		t.Errorf("with its database: %v", err)
	}
	if err := writeFile(p.store.dir+"/io.containerd.snapshotter.v1.native/metadata.db", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := checkDatabases(p); !errors.Is(err, errBroken) {
		t.Errorf("with a broken database of snapshots: %v, want it broken", err)
	}
}

func TestPanicsOnDatabase(t *testing.T) {
	const before = "panic: old\n\ngo.etcd.io/bbolt.old()\n"
	for name, c := range map[string]struct {
		said string
		want bool
	}{
		"panic of bbolt":           {"level=info\npanic: assertion failed\n\ngoroutine 7 [running]:\ngo.etcd.io/bbolt/internal/common.Assert(...)\n", true},
		"a file that is too short": {"level=info\nunexpected fault address 0x7f\nfatal error: fault\n\ngo.etcd.io/bbolt.(*DB).page()\n", true},
		"panic of another":         {"level=info\npanic: nil map\n\ngoroutine 7 [running]:\nmain.main()\n", false},
		"no panic":                 {"level=error msg=go.etcd.io/bbolt\n", false},
		"nothing":                  {"", false},
	} {
		log := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(log, []byte(before+c.said), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := panicsOnDatabase(log, int64(len(before))); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
