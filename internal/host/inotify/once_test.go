package inotify

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestOnce(t *testing.T) {
	o, err := OpenOnce()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	open := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	watch := func(f *os.File) int {
		t.Helper()
		id, err := o.Watch(f)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	write := func(f *os.File) {
		t.Helper()
		if _, err := f.WriteString("x"); err != nil {
			t.Fatal(err)
		}
	}
	a, b, c := open("a"), open("b"), open("c")
	first, second, third := watch(a), watch(b), watch(c)
	if again := watch(a); again != first {
		t.Errorf("the file is watched as %d and %d", first, again)
	}
	if err := errors.Join(o.Forget(third), o.Forget(third)); err != nil {
		t.Error(err)
	}
	// Of many writes one is told, also when the file has another name; of what is not watched any
	// more, none.
	if err := os.Rename(a.Name(), a.Name()+".old"); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		write(a)
		write(c)
	}
	write(b)
	if got := []int{<-o.Written(), <-o.Written()}; got[0] != first || got[1] != second {
		t.Errorf("told of %v, want %d and %d", got, first, second)
	}
	again := watch(a)
	write(a)
	if got := <-o.Written(); got != again {
		t.Errorf("watched again: told of %d, want %d", got, again)
	}
	if err := errors.Join(o.Forget(again), o.Close()); err != nil {
		t.Error(err)
	}
	for id := range o.Written() {
		t.Errorf("after the end: told of %d", id)
	}
}
