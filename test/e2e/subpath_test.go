//go:build e2e

package e2e

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/record/journal"
	"berth/internal/runtime/crispec"
	"berth/internal/storage/mounts"
	"berth/internal/storage/volumes"
)

// subpaths is a volume with a pod for it, outside of any agent.
type subpaths struct {
	t       *testing.T
	root    string // the agent's
	volume  string // what a container may change as it likes
	outside string // what it must never reach; it holds the file precious
	pod     *v1.Pod
}

func newSubpaths(t *testing.T) *subpaths {
	t.Helper()
	s := &subpaths{t: t, root: t.TempDir(), pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "11111111-2222-3333-4444-777777777777"}}}
	s.volume, s.outside = filepath.Join(s.root, "volume"), filepath.Join(s.root, "outside")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(s.root, "pods", string(s.pod.UID)), 0o750), os.Mkdir(s.volume, 0o755), os.Mkdir(s.outside, 0o700),
		os.WriteFile(filepath.Join(s.outside, "precious"), []byte("precious"), 0o600),
		// The group first: to change it clears setgid.
		os.Chown(s.volume, -1, 4242), os.Chmod(s.volume, 0o777|fs.ModeSetgid),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := s.manager().Teardown(context.Background(), s.pod.UID); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(filepath.Join(s.root, "pods", string(s.pod.UID), "volume-subpaths")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("volume-subpaths is left: %v", err)
		}
		if b, err := os.ReadFile(filepath.Join(s.outside, "precious")); err != nil || string(b) != "precious" {
			t.Errorf("the host's file: %q, %v", b, err)
		}
		if entries, err := os.ReadDir(s.outside); err != nil || len(entries) != 1 {
			t.Errorf("outside the volume: %v, %v; want nothing but precious", entries, err)
		}
	})
	return s
}

// manager is volumeManager of a new agent.
func (s *subpaths) manager() *volumes.Manager {
	s.t.Helper()
	log := slog.New(slog.DiscardHandler)
	m, err := volumes.New(volumes.Config{Root: s.root, Mounter: mounts.New(s.root, s.t.TempDir()), Log: log, Journal: journal.New(log)})
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

func (s *subpaths) bind(path string) (string, error) {
	return s.manager().BindSubpath(s.t.Context(), s.pod, crispec.Subpath{Volume: "v", Root: s.volume, Container: "c", Index: 1, Path: path})
}

func (s *subpaths) mustBind(path string) string {
	s.t.Helper()
	target, err := s.bind(path)
	if err != nil {
		s.t.Fatal(err)
	}
	return target
}

func (s *subpaths) in(path string) string { return filepath.Join(s.volume, path) }

// must fails the test at the first error.
func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	return st.Ino
}

func TestSubpathBinds(t *testing.T) {
	s := newSubpaths(t)
	target := s.mustBind("a/b//./c/")
	if want := filepath.Join(s.root, "pods", string(s.pod.UID), "volume-subpaths/v/c/1"); target != want {
		t.Errorf("bound at %s, want %s", target, want)
	}
	for _, d := range []string{"a", "a/b", "a/b/c"} {
		var st unix.Stat_t
		must(t, unix.Stat(s.in(d), &st))
		if st.Mode&0o7777 != 0o2777 || st.Gid != 4242 {
			t.Errorf("%s: mode %o, group %d; want those of the volume, 2777 and 4242", d, st.Mode&0o7777, st.Gid)
		}
	}
	must(t, os.WriteFile(filepath.Join(target, "file"), []byte("1"), 0o600))
	if _, err := os.Stat(s.in("a/b/c/file")); err != nil {
		t.Error(err)
	}

	// What a container does to its volume does not move what was bound.
	was := inode(t, target)
	must(t, os.Rename(s.in("a"), s.in("away")), os.Symlink(s.outside, s.in("a")))
	if inode(t, target) != was {
		t.Error("the bound directory follows the path")
	}
	must(t, os.Remove(s.in("a")))

	// A file, by a link that stays in the volume, takes the directory's place; then another file
	// the file's.
	must(t, os.Mkdir(s.in("..data"), 0o755), os.WriteFile(s.in("..data/key"), []byte("old"), 0o600), os.Symlink("..data/key", s.in("key")))
	read := func(want string) {
		t.Helper()
		if got, err := os.ReadFile(target); err != nil || string(got) != want {
			t.Errorf("the file shows %q, %v; want %q", got, err, want)
		}
	}
	s.mustBind("key")
	read("old")
	must(t, os.WriteFile(s.in("..data/next"), []byte("new"), 0o600), os.Rename(s.in("..data/next"), s.in("..data/key")))
	read("old") // until the container's next start
	s.mustBind("key")
	read("new")
	s.mustBind(".")
	if inode(t, target) != inode(t, s.volume) {
		t.Error("the path . is not the volume")
	}

	// One that was deleted is made again.
	must(t, os.RemoveAll(s.in("away")))
	s.mustBind("away/b")
	if entries, err := os.ReadDir(target); err != nil || len(entries) != 0 {
		t.Errorf("the new directory: %v, %v", entries, err)
	}
}

func TestSubpathRefusals(t *testing.T) {
	s := newSubpaths(t)
	must(t,
		os.Symlink(s.outside, s.in("absolute")), os.Symlink(s.in("real"), s.in("absolute-inside")), os.Symlink("../outside", s.in("out")),
		os.Symlink("..", s.in("up")), os.Symlink("nowhere", s.in("dangling")), os.Symlink("loop", s.in("loop")),
		os.Symlink("/proc/self/root", s.in("magic")), os.Mkdir(s.in("real"), 0o755), os.WriteFile(s.in("file"), nil, 0o600),
	)
	for _, path := range []string{
		"absolute", "absolute/precious", "absolute/new", "absolute/new/newer", "absolute-inside", "out", "out/precious", "out/new", "up", "up/outside", "up/new",
		"dangling", "dangling/new", "loop", "loop/new", "magic", "magic/etc", "file/new", "../outside", "real/../../outside", "..", "../new",
		s.outside, "/", "real/" + strings.Repeat("x", 256), "real/\x00",
	} {
		_, err := s.bind(path)
		var refused *volumes.SubpathError
		if !errors.As(err, &refused) {
			t.Errorf("%q: %v, want a refusal", path, err)
			continue
		}
		if text := err.Error(); text != `failed to prepare subPath for volumeMount "v" of container "c"` && text != `failed to create subPath directory for volumeMount "v" of container "c"` {
			t.Errorf("%q: the error tells more than it should: %s", path, text)
		}
	}
	for _, path := range []string{"nowhere", "new"} {
		if _, err := os.Lstat(s.in(path)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was made: %v", path, err)
		}
	}
}

// raceFor is how long a container races with the agent; TEST_SUBPATH_RACE sets another time.
func raceFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("TEST_SUBPATH_RACE")
	if text == "" {
		return time.Minute
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("TEST_SUBPATH_RACE: %v", err)
	}
	return d
}

// yield lets everything else of the machine go before the calling goroutine, which must end on its
// thread.
func yield(t *testing.T) {
	runtime.LockOSThread()
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 19); err != nil {
		t.Error(err)
	}
}

// A container exchanges a directory on the path for a link to the host, and moves it about, as fast
// as it can. The race runs beside the longest other test, and takes only what that leaves.
func TestSubpathRace(t *testing.T) {
	t.Parallel()
	s := newSubpaths(t)
	must(t, os.Mkdir(s.in("dir"), 0o777), os.Symlink("../outside", s.in("link")), os.Mkdir(s.in("deep"), 0o777))
	until := time.Now().Add(raceFor(t))
	ctx, cancel := context.WithDeadline(t.Context(), until)
	defer cancel()
	raced := make(chan int)
	go func() {
		yield(t)
		n := 0
		for ; ctx.Err() == nil; n++ {
			// Errors are the race's own: what is to be exchanged or removed is just not there.
			_ = unix.Renameat2(unix.AT_FDCWD, s.in("dir"), unix.AT_FDCWD, s.in("link"), unix.RENAME_EXCHANGE)
			switch n % 7 {
			case 1:
				_ = unix.Rename(s.in("dir"), s.in("deep/dir"))
				_ = unix.Rename(s.in("deep/dir"), s.in("dir"))
			case 4:
				_ = os.RemoveAll(s.in("dir/new"))
				_ = os.RemoveAll(s.in("link/new"))
			}
		}
		raced <- n
	}()
	m := s.manager()
	yield(t)
	bound, refused := 0, 0
	for i := 0; ctx.Err() == nil; i++ {
		path := []string{"dir/new/newer", "dir/new", "dir"}[i%3]
		target, err := m.BindSubpath(t.Context(), s.pod, crispec.Subpath{Volume: "v", Root: s.volume, Container: "c", Index: i % 2, Path: path})
		if err != nil {
			var e *volumes.SubpathError
			if !errors.As(err, &e) {
				t.Fatal(err)
			}
			refused++
			continue
		}
		bound++
		if _, err := os.Lstat(filepath.Join(target, "precious")); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("after %d tries %s shows the host's directory: %v", i, path, err)
		}
	}
	t.Logf("%d exchanges; bound %d times, refused %d times", <-raced, bound, refused)
	if bound == 0 || refused == 0 {
		t.Errorf("bound %d times and refused %d times: there was no race", bound, refused)
	}
}

// A mount of the host that a part of a volume shares survives the pod.
func TestSubpathKeepsTheHostsMounts(t *testing.T) {
	s := newSubpaths(t)
	part := s.in("part")
	inner := filepath.Join(part, "inner")
	must(t, os.Mkdir(part, 0o755), unix.Mount("tmpfs", part, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() {
		must(t, unix.Unmount(part, unix.MNT_DETACH))
	})
	must(t, unix.Mount("", part, "", unix.MS_SHARED, ""), os.Mkdir(inner, 0o755))
	for _, propagation := range []runtimeapi.MountPropagation{
		runtimeapi.MountPropagation_PROPAGATION_PRIVATE, runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL,
	} {
		target, err := s.manager().BindSubpath(t.Context(), s.pod, crispec.Subpath{Volume: "v", Root: s.volume, Container: "c", Path: "part", Propagation: propagation})
		must(t, err, unix.Mount("tmpfs", inner, "tmpfs", 0, "size=1m"), os.WriteFile(filepath.Join(inner, "file"), nil, 0o600))
		if _, err := os.Stat(filepath.Join(target, "inner/file")); err != nil {
			t.Errorf("%v: the host's new mount does not come in: %v", propagation, err)
		}
		must(t, s.manager().Teardown(t.Context(), s.pod.UID))
		if _, err := os.Stat(filepath.Join(inner, "file")); err != nil {
			t.Errorf("%v: the pod's end unmounted the host's filesystem: %v", propagation, err)
		}
		must(t, unix.Unmount(inner, 0))
	}
}
