package inotify

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestExplain(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{nil, "<nil>"},
		{fs.ErrPermission, "permission denied"},
		{
			fmt.Errorf("no instance: %w", unix.EMFILE),
			"no instance: too many open files (raise the sysctl fs.inotify.max_user_instances, or the limit of open files of the agent)",
		},
		{unix.ENOSPC, "no space left on device (raise the sysctl fs.inotify.max_user_watches)"},
	} {
		got := explain(tc.err)
		if fmt.Sprint(got) != tc.want || !errors.Is(got, tc.err) {
			t.Errorf("%v: got %q, want %q", tc.err, got, tc.want)
		}
	}
}

// Of the events of a file, a deletion alone says so.
func TestDeleted(t *testing.T) {
	dir := t.TempDir()
	w, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(dir); err != nil {
		t.Fatal(err)
	}
	if err := w.Add(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	path, other := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	steps := []error{
		os.WriteFile(path, nil, 0o600), os.Rename(path, other), os.Rename(other, path), os.Remove(path), os.WriteFile(other, nil, 0o600),
	}
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	deleted := 0
	for e := range w.Events() {
		if e.Err != nil {
			t.Fatal(e.Err)
		}
		if e.Deleted {
			deleted++
		}
		if deleted > 0 && e.Path == other {
			break // the last step
		}
	}
	if deleted != 1 {
		t.Errorf("%d deletions", deleted)
	}
	if err := errors.Join(w.Remove(dir), w.Remove(dir), w.Close()); err != nil {
		t.Error(err)
	}
}

// What is moved away says so, an entry and the folder itself.
func TestMoved(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "dir")
	path := filepath.Join(dir, "a")
	w, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(path, nil, 0o600), w.Add(dir)); err != nil {
		t.Fatal(err)
	}
	for _, moved := range []string{path, dir} {
		if err := os.Rename(moved, filepath.Join(root, "aside-"+filepath.Base(moved))); err != nil {
			t.Fatal(err)
		}
		if e := <-w.Events(); e != (Event{Path: moved, Moved: true}) {
			t.Errorf("got %+v, want that %s was moved", e, moved)
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// A file is watched like a folder, and its writes say so.
func TestFile(t *testing.T) {
	w, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), w.Add(path)); err != nil {
		t.Fatal(err)
	}
	if got := w.Watched(); len(got) != 1 || got[0] != path {
		t.Errorf("watched: %q, want %q alone", got, path)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if e := <-w.Events(); e != (Event{Path: path, Written: true}) {
		t.Errorf("got %+v, want that %s was written", e, path)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
