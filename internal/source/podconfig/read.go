package podconfig

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/pod"
	"berth/internal/source/manifest"
)

const (
	// maxManifest is the size limit of a manifest in bytes.
	maxManifest = 10 << 20
	// clockGrain is the assumed maximum granularity of file times: the second of two changes within
	// it may be invisible.
	clockGrain = 100 * time.Millisecond
)

// errChanging is returned for a file that was written while it was read.
var errChanging = errors.New("the file is being written")

// fileID identifies a file or directory, to detect a replacement.
type fileID struct{ dev, ino uint64 }

// stamp detects changes of a file without reading it.
type stamp struct {
	id           fileID
	size         int64
	mtime, ctime int64 // nanoseconds
}

func stampOf(fi os.FileInfo) stamp {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{size: fi.Size(), mtime: fi.ModTime().UnixNano()}
	}
	return stamp{
		id:   fileID{dev: st.Dev, ino: st.Ino},
		size: st.Size, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(),
	}
}

// file is one manifest as last read. It is immutable.
type file struct {
	stamp stamp
	// again: the stamp does not prove that the content is current (read within the clock's
	// granularity, or not at all).
	again  bool
	sum    [sha256.Size]byte // of the content; zero if it was never read
	places []place           // the links on the way to it
	manifest.Decoded
}

// read returns the manifest, given its last version (nil if there is none), and whether it is a
// manifest: directories and missing files are not. The only error is errChanging; all other
// failures become problems of the file.
func (s *fileSource) read(path string, old *file) (f *file, isManifest bool, err error) {
	next := &file{}
	lfi, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, false, nil
	}
	if err == nil && lfi.Mode()&os.ModeSymlink != 0 {
		next.places, _, _ = resolve(path)
	}
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ELOOP):
		next.again = true
		next.Problems = []manifest.Problem{s.problem(path, manifest.SeverityWarning, "is a symbolic link that leads nowhere")}
		return next, true, nil
	case err != nil:
		return s.keepUnread(path, old, next, err), true, nil
	case fi.IsDir():
		return nil, false, nil
	case !fi.Mode().IsRegular(): // opening it may hang, reading never end
		next.again = true
		next.Problems = []manifest.Problem{s.problem(path, manifest.SeverityWarning, irregular(fi))}
		return next, true, nil
	}
	next.stamp = stampOf(fi)
	if old != nil && !old.again && old.stamp == next.stamp && slices.Equal(old.places, next.places) {
		return old, true, nil
	}
	now := time.Now()
	content, after, err := readRegular(path)
	if err != nil {
		return s.keepUnread(path, old, next, err), true, nil
	}
	if after != next.stamp {
		return nil, true, errChanging
	}
	next.again = now.Sub(time.Unix(0, next.stamp.ctime)) < clockGrain
	next.sum = sha256.Sum256(content)
	if old != nil && old.sum == next.sum {
		next.Decoded = old.Decoded
		return next, true, nil
	}
	next.Decoded = s.keepGood(path, old, s.decode(manifest.Origin{Source: pod.FileSource, Path: path}, content))
	return next, true, nil
}

// irregular describes a path that is neither a file nor a directory.
func irregular(fi os.FileInfo) string {
	return fmt.Sprintf("is neither a file nor a folder (mode %s)", fi.Mode())
}

// keepUnread fills next for an unreadable file: its pods stay. The next scan retries.
func (s *fileSource) keepUnread(path string, old, next *file, err error) *file {
	if pathErr, ok := errors.AsType[*os.PathError](err); ok {
		err = fmt.Errorf("%s: %w", pathErr.Op, pathErr.Err) // the problem has the path already
	}
	next.again = true
	next.Decoded = s.keepGood(path, old, manifest.Decoded{Problems: []manifest.Problem{s.problem(path, manifest.SeverityError, "cannot be read: "+err.Error())}})
	return next
}

// keepGood returns the effective content of the file: where it is rejected, the last version, or
// the persisted one if the file was not read before.
func (s *fileSource) keepGood(path string, old *file, now manifest.Decoded) manifest.Decoded {
	if old != nil {
		return orLastGood(old.Objects, now)
	}
	if now.Refusal() < 0 && !s.lastGood.differs(path, now.Objects) {
		return now
	}
	lastGood, err := s.lastGood.restore(path)
	if err != nil {
		now.Problems = append(now.Problems, s.problem(path, manifest.SeverityWarning, err.Error()))
	}
	return orLastGood(lastGood, now)
}

// readRegular reads a regular file of at most maxManifest bytes. It returns the file's stamp after
// the last byte was read.
func readRegular(path string) (content []byte, after stamp, err error) {
	// Non-blocking: a FIFO that replaced the file meanwhile would block the source forever.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, stamp{}, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, stamp{}, err
	}
	if !fi.Mode().IsRegular() {
		return nil, stamp{}, errors.New("not a regular file")
	}
	if content, err = io.ReadAll(io.LimitReader(f, maxManifest+1)); err != nil {
		return nil, stamp{}, err
	}
	if len(content) > maxManifest {
		return nil, stamp{}, fmt.Errorf("larger than the limit of %d bytes for a manifest", maxManifest)
	}
	if fi, err = f.Stat(); err != nil {
		return nil, stamp{}, err
	}
	return content, stampOf(fi), nil
}

// isIgnored reports whether a directory entry of this name is never a manifest: hidden files and
// temporary files of editors (name~, #name#, *.swp, *.swo, *.swx, and vim's probe file 4913).
// Differs from the kubelet, which ignores only names with a leading dot.
func isIgnored(name string) bool {
	switch {
	case strings.HasPrefix(name, "."),
		strings.HasSuffix(name, "~"),
		strings.HasPrefix(name, "#") && strings.HasSuffix(name, "#"),
		strings.HasSuffix(name, ".swp"), strings.HasSuffix(name, ".swo"), strings.HasSuffix(name, ".swx"),
		name == "4913":
		return true
	}
	return false
}
