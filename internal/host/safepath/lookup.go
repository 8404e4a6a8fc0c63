package safepath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoOpenat2 is the error on a kernel that cannot look a path up safely.
var ErrNoOpenat2 = errors.New("the kernel has no openat2, which looks up paths in volumes safely: use Linux 5.6 or later")

// LookupTries bounds the lookups of one path: the kernel gives up (EAGAIN) on one that a rename
// anywhere on the host has disturbed, and a path that somebody takes away again and again is never
// there.
const LookupTries = 64

// OpenRoot opens, for its path only, a directory that lookups begin at: that of a volume, whose
// path is the agent's own, or a hostPath, which may be a link.
func OpenRoot(root string) (int, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: root, Err: err}
	}
	return fd, nil
}

// Lookup opens what the path names inside the directory root. It follows links that stay inside;
// one that leads out, or an absolute one, is an error (EXDEV).
func Lookup(root int, path string, flags uint64) (int, error) {
	how := &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := openat2(root, path, how)
	if err != nil && !errors.Is(err, ErrNoOpenat2) {
		return -1, &fs.PathError{Op: "openat2", Path: path, Err: err}
	}
	return fd, err
}

// openat2 looks the path up, again where the kernel gave up.
func openat2(root int, path string, how *unix.OpenHow) (int, error) {
	var fd int
	err := error(unix.EAGAIN)
	for try := 0; try < LookupTries && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)); try++ {
		fd, err = unix.Openat2(root, path, how)
	}
	if errors.Is(err, unix.ENOSYS) {
		return -1, ErrNoOpenat2
	}
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// MakeDirs makes the directories of the path that are missing inside the directory root, with the
// mode of root. It makes nothing outside: each is made in a directory that was looked up, or made,
// before, and through no link.
func MakeDirs(root int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return fmt.Errorf("mode of the volume: %w", err)
	}
	elements := strings.Split(filepath.Clean(path), "/")
	parent, missing, err := openExisting(root, elements)
	if err != nil {
		return err
	}
	for _, name := range missing {
		next, err := makeIn(parent, name, st.Mode&0o7777)
		unix.Close(parent)
		if err != nil {
			return err
		}
		parent = next
	}
	unix.Close(parent)
	return nil
}

// openExisting opens the longest part of the path that exists as a directory, and returns the
// elements after it.
func openExisting(root int, elements []string) (fd int, missing []string, err error) {
	for n := len(elements) - 1; ; n-- {
		path := filepath.Join(elements[:n]...)
		if n == 0 {
			path = "."
		}
		fd, err = Lookup(root, path, unix.O_RDONLY|unix.O_DIRECTORY)
		if n > 0 && errors.Is(err, unix.ENOENT) {
			continue
		}
		return fd, elements[n:], err
	}
}

// makeIn makes the directory name in parent, unless another has just made it, and opens it.
func makeIn(parent int, name string, mode uint32) (int, error) {
	fail := func(op string, err error) (int, error) { return -1, &fs.PathError{Op: op, Path: name, Err: err} }
	made := unix.Mkdirat(parent, name, mode)
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return fail("mkdirat", made)
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail("openat", err)
	}
	if made != nil {
		return fd, nil
	}
	if err := openUp(fd, mode); err != nil {
		unix.Close(fd)
		return fail("fchmod", err)
	}
	return fd, nil
}

// openUp gives a new directory its mode, of which the umask has taken a part. A directory that
// somebody has put in its place meanwhile keeps the mode that it has: it may be one that is closed
// to him.
func openUp(fd int, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	inside, err := ReadNames(fd)
	if err != nil {
		return err
	}
	if len(inside) > 0 || int(st.Uid) != os.Geteuid() {
		return nil
	}
	return unix.Fchmod(fd, mode)
}

// ReadFile returns the regular file at the path inside the volume whose directory is root, of at
// most limit bytes. The last element must not be a link. What does not exist is an error that is
// fs.ErrNotExist.
func ReadFile(root, path string, limit int64) ([]byte, error) {
	dir, err := OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	// Without waiting, since to open a named pipe waits for its writer.
	fd, err := Lookup(dir, path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	return readRegular(f, path, limit)
}

func readRegular(f *os.File, path string, limit int64) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("it is not a regular file")}
	}
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(content)) > limit {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it is larger than %d bytes", limit)}
	}
	return content, nil
}

// Self is a path to what the descriptor refers to, which is followed by no other process.
func Self(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
