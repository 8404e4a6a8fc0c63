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
	// clockGrain bounds the resolution of file times: a file changed twice within it may look
	// unchanged after the second time.
	clockGrain = 100 * time.Millisecond
)

// errChanging says that the file was written while it was read.
var errChanging = errors.New("the file is being written")

// fileID tells whether a path leads to the same file or folder as before.
type fileID struct{ dev, ino uint64 }

// stamp tells whether a file has changed without reading it.
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

// file is one manifest as last read. It is replaced, never changed.
type file struct {
	stamp stamp
	// again: the stamp does not prove that the content is known (read within the clock's grain, or
	// not at all).
	again  bool
	sum    [sha256.Size]byte // of the content; zero when it was never read
	places []place           // the links on the way to it
	manifest.Decoded
}

// read returns what the manifest stands for, given what it stood for before (nil if nothing), and
// whether it is a manifest at all: folders and what does not exist are none. The error is
// errChanging only; everything else that is wrong with the file is among its problems.
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
	case !fi.Mode().IsRegular(): // to open it may hang, or never end
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

// irregular says what is wrong with a path that is no file and no folder.
func irregular(fi os.FileInfo) string {
	return fmt.Sprintf("is neither a file nor a folder (mode %s)", fi.Mode())
}

// keepUnread fills next for a file that cannot be read: its pods stay. It is tried again at the
// next look.
func (s *fileSource) keepUnread(path string, old, next *file, err error) *file {
	if pathErr, ok := errors.AsType[*os.PathError](err); ok {
		err = fmt.Errorf("%s: %w", pathErr.Op, pathErr.Err) // the path is in the problem already
	}
	next.again = true
	next.Decoded = s.keepGood(path, old, manifest.Decoded{Problems: []manifest.Problem{s.problem(path, manifest.SeverityError, "cannot be read: "+err.Error())}})
	return next
}

// keepGood returns what the file stands for when it was found to be now: as far as that is refused,
// what it was before, or what was kept of it when it was not looked at before.
func (s *fileSource) keepGood(path string, old *file, now manifest.Decoded) manifest.Decoded {
	if old != nil {
		return orLastGood(old.Objects, now)
	}
	if now.Refusal() < 0 && !s.lastGood.differs(path, now.Objects) {
		return now
	}
	kept, err := s.lastGood.restore(path)
	if err != nil {
		now.Problems = append(now.Problems, s.problem(path, manifest.SeverityWarning, err.Error()))
	}
	return orLastGood(kept, now)
}

// readRegular reads a regular file of at most maxManifest bytes and returns its stamp after the
// last byte was read.
func readRegular(path string) (content []byte, after stamp, err error) {
	// Non-blocking: a FIFO put in the file's place since it was looked at would hold up the source
	// for good.
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

// isIgnored reports whether a folder's entry of this name is never a manifest: hidden files, and
// what editors leave behind while they write (name~, #name#, *.swp, *.swo, *.swx, and vim's probe
// file 4913). Differs from the kubelet, which ignores names with a leading dot only.
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
