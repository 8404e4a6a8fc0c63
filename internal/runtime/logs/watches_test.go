package logs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// inotifyInstances counts those that this process has open.
func inotifyInstances(t *testing.T) (n int) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.Contains(to, "inotify") {
			n++
		}
	}
	return n
}

// Followers share an instance, of the same log and of others, and it goes with the last of them.
func TestFollowersShareInotify(t *testing.T) {
	before := inotifyInstances(t)
	watches := &Watches{}
	paths := []string{logFile(t, line(1, Stdout, "F", "one")), logFile(t, line(1, Stdout, "F", "one")), logFile(t, line(1, Stdout, "F", "one"))}
	var followers []*follower
	for i := range 60 {
		followers = append(followers, startFollow(t, paths[i%3], Options{Watches: watches}))
	}
	for _, f := range followers {
		f.await(t, "one\n")
	}
	for _, path := range paths {
		appendTo(t, path, line(2, Stdout, "F", "two"))
	}
	for _, f := range followers {
		f.await(t, "one\ntwo\n")
	}
	if n := inotifyInstances(t) - before; n != 1 {
		t.Errorf("%d followers have %d inotify instances", len(followers), n)
	}
	end := func(all []*follower) {
		for _, f := range all {
			close(f.exited)
		}
		for _, f := range all {
			if err := <-f.result; err != nil {
				t.Error(err)
			}
		}
	}
	end(followers[:30])
	for _, path := range paths {
		appendTo(t, path, line(3, Stdout, "F", "three"))
	}
	for _, f := range followers[30:] {
		f.await(t, "one\ntwo\nthree\n")
	}
	end(followers[30:])
	if n := inotifyInstances(t) - before; n != 0 {
		t.Errorf("%d inotify instances are left", n)
	}
	again := startFollow(t, paths[0], Options{Watches: watches})
	again.await(t, "one\ntwo\nthree\n")
	appendTo(t, paths[0], line(4, Stdout, "F", "four"))
	again.await(t, "one\ntwo\nthree\nfour\n")
	end([]*follower{again})
}

// A directory that is made again is watched again, although somebody still follows what was in the
// first.
func TestWatchOfADirectoryMadeAgain(t *testing.T) {
	watches := &Watches{}
	path := filepath.Join(t.TempDir(), "main", "0.log")
	write := func(text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write(line(1, Stdout, "F", "one"))
	first := startFollow(t, path, Options{Watches: watches})
	first.await(t, "one\n")
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	write(line(2, Stdout, "F", "two"))
	second := startFollow(t, path, Options{Watches: watches})
	second.await(t, "two\n")
	appendTo(t, path, line(3, Stdout, "F", "three"))
	second.await(t, "two\nthree\n")
	for _, f := range []*follower{first, second} {
		close(f.exited)
		if err := <-f.result; err != nil {
			t.Error(err)
		}
	}
}

// What cannot be watched is no failure, and leaves no instance behind.
func TestWatchOfNothing(t *testing.T) {
	before := inotifyInstances(t)
	watches := &Watches{}
	if d, err := watches.watch(filepath.Join(t.TempDir(), "nothing")); d != nil || err == nil {
		t.Errorf("got %v, %v", d, err)
	}
	if n := inotifyInstances(t) - before; n != 0 {
		t.Errorf("%d inotify instances are left", n)
	}
}
