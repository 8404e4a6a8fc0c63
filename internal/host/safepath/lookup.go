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

// ErrNoOpenat2 means that the kernel does not support safe path lookups.
var ErrNoOpenat2 = errors.New("the kernel has no openat2, which looks up paths in volumes safely: use Linux 5.6 or later")

// LookupTries is the maximum number of lookups of one path: the kernel returns EAGAIN for a lookup
// that was disturbed by any rename on the host.
const LookupTries = 64

// OpenRoot opens, as O_PATH, the root directory of lookups: that of a volume, whose path is the
// agent's own, or a hostPath, which may be a symbolic link.
func OpenRoot(root string) (int, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: root, Err: err}
	}
	return fd, nil
}

// Lookup opens the path inside the directory root. It follows symbolic links within root; absolute
// links and links that lead out of root are an error (EXDEV).
func Lookup(root int, path string, flags uint64) (int, error) {
	how := &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := openat2(root, path, how)
	if err != nil && !errors.Is(err, ErrNoOpenat2) {
		return -1, &fs.PathError{Op: "openat2", Path: path, Err: err}
	}
	return fd, err
}

// openat2 looks the path up and retries interrupted lookups.
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

// MakeDirs creates the missing directories of the path inside the directory root, with the mode of
// root. It creates nothing outside of root: each directory is created in one that was looked up or
// created before, and not through symbolic links.
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

// openExisting opens the longest prefix of the path that is an existing directory, and returns the
// remaining elements.
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

// makeIn creates the directory name in parent, unless it exists, and opens it.
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

// openUp sets the mode of a new directory, which the umask has reduced. If another process has
// replaced the directory meanwhile, its mode does not change: the directory may be inaccessible to
// that process.
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

// ReadFile returns the content of the regular file at the path inside the volume directory root, of
// at most limit bytes. The last element must not be a symbolic link. The error for a nonexistent
// file wraps fs.ErrNotExist.
func ReadFile(root, path string, limit int64) ([]byte, error) {
	dir, err := OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	// Non-blocking, because opening a named pipe waits for its writer.
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

// Self returns a path to the file of the descriptor. It is valid only in this process.
func Self(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
