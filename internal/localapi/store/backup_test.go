package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/localapi/store"
)

// openFile opens a store that the test closes itself.
func openFile(t *testing.T, path string) *store.Store {
	t.Helper()
	s, err := store.Open(store.Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// filled is a store with objects, and a backup of it after half of its changes.
func filled(t *testing.T, path string) (s *store.Store, backup []byte) {
	t.Helper()
	s = openFile(t, path)
	var b bytes.Buffer
	for i := range 200 {
		if i == 100 {
			if err := s.Backup(&b); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Write(store.Key{Resource: "pods", Name: fmt.Sprintf("p%03d", i)}, 0, bytes.Repeat([]byte("x"), 50*i+1)); err != nil {
			t.Fatal(err)
		}
	}
	return s, b.Bytes()
}

// count returns how many objects there are, and checks them.
func count(t *testing.T, s *store.Store) (n int) {
	t.Helper()
	_, err := s.List(store.Range{Resource: "pods"}, func(i store.Item) bool {
		if want := fmt.Sprintf("p%03d", n); i.Key.Name != want || len(i.Value) != 50*n+1 {
			t.Errorf("object %d is %s with %d bytes", n, i.Key, len(i.Value))
		}
		n++
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestRestore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.db")
	s, backup := filled(t, path)
	newest := s.Revision()
	if err := store.Restore(path, bytes.NewReader(backup)); err == nil || !strings.Contains(err.Error(), "another process has it open") {
		t.Errorf("restored under an open store: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second replaces what was replaced
		if err := store.Restore(path, bytes.NewReader(backup)); err != nil {
			t.Fatal(err)
		}
	}
	s = openFile(t, path)
	if n := count(t, s); n != 100 {
		t.Errorf("%d objects are back, want 100", n)
	}
	if s.Revision() <= newest {
		t.Errorf("revision %d, and clients have seen %d", s.Revision(), newest)
	}
	if _, err := s.Since(t.Context(), newest); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a watch from before goes on: %v", err)
	}
	if _, err := s.Write(store.Key{Resource: "pods", Name: "p100"}, 0, bytes.Repeat([]byte("x"), 5001)); err != nil {
		t.Error(err)
	}
	if n := count(t, s); n != 101 {
		t.Errorf("%d objects after a write, want 101", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openFile(t, path+".replaced")
	if n := count(t, s); n != 100 {
		t.Errorf("what was replaced has %d objects", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRestoreWhereNothingIs(t *testing.T) {
	dir := t.TempDir()
	s, backup := filled(t, filepath.Join(dir, "one.db"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(dir, "broken.db")
	if err := os.WriteFile(broken, bytes.Repeat([]byte("y"), 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "two.db"), broken} {
		if err := store.Restore(path, bytes.NewReader(backup)); err != nil {
			t.Error(err)
			continue
		}
		s := openFile(t, path)
		if n := count(t, s); n != 100 {
			t.Errorf("%d objects", n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A backup with a byte that is lost, changed or added changes nothing.
func TestRestoreRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "api.db")
	s, backup := filled(t, path)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := func(at int) []byte {
		b := bytes.Clone(backup)
		b[at] ^= 1
		return b
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "a head alone": backup[:40], "half": backup[:len(backup)/2], "all but a byte": backup[:len(backup)-1],
		"a byte more": append(bytes.Clone(backup), 0), "another head": changed(3), "another page": changed(len(backup) / 2), "another sum": changed(len(backup) - 1),
		"a store": before, "text": []byte("objects: []\n"),
	} {
		if err := store.Restore(path, bytes.NewReader(b)); err == nil || !strings.Contains(err.Error(), "backup") {
			t.Errorf("%s: %v", name, err)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: the file was changed, %v", name, err)
		}
		if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) != 1 {
			t.Errorf("%s: left %v, %v", name, left, err)
		}
	}
}

// A backup that is made while others write has all of some moment.
func TestBackupWhileOthersWrite(t *testing.T) {
	dir := t.TempDir()
	s := openFile(t, filepath.Join(dir, "api.db"))
	begun, done := make(chan struct{}), make(chan error)
	go func() {
		defer close(done)
		for i := range 300 {
			if i == 50 {
				close(begun)
			}
			if _, err := s.Write(store.Key{Resource: "pods", Name: fmt.Sprintf("p%03d", i)}, 0, bytes.Repeat([]byte("x"), 50*i+1)); err != nil {
				done <- err
				return
			}
		}
	}()
	<-begun
	var b bytes.Buffer
	if err := s.Backup(&b); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "restored.db")
	if err := store.Restore(path, &b); err != nil {
		t.Fatal(err)
	}
	s = openFile(t, path)
	if n := count(t, s); n < 50 {
		t.Errorf("%d objects, want the 50 that were there, and others in their order", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
