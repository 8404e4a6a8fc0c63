package containerlogs

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/runtime/logs"
)

// isUnfinished reports whether the file is a remainder of an interrupted rewrite of a rotated file.
func isUnfinished(log, name string) bool {
	return strings.HasPrefix(name, log+".") && strings.HasSuffix(name, logs.UnfinishedSuffix)
}

// folder is the open directory of a container's logs. Entries other than regular files, which a
// container may have created, are ignored.
type folder struct {
	dir *os.File
	log string // the name of the log in it
}

func openFolder(path string) (*folder, error) {
	dir, err := logs.FilesOf(path).Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	return &folder{dir: dir, log: filepath.Base(path)}, nil
}

func (f *folder) Close() error { return f.dir.Close() }

func (f *folder) fd() int { return int(f.dir.Fd()) }

// read lists the files of the log.
func (f *folder) read() (contents, error) {
	if _, err := f.dir.Seek(0, io.SeekStart); err != nil {
		return contents{}, err
	}
	names, err := f.dir.Readdirnames(-1)
	if err != nil {
		return contents{}, err
	}
	var files []file
	for _, name := range names {
		var st unix.Stat_t
		if !strings.HasPrefix(name, f.log) || unix.Fstatat(f.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			files = append(files, file{name: name, size: st.Size})
		}
	}
	return sortContents(f.log, files), nil
}

// rename renames a file to a name that does not exist; otherwise the error is EEXIST.
func (f *folder) rename(from, to string) error {
	if err := unix.Renameat2(f.fd(), from, f.fd(), to, unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "rename", Old: f.path(from), New: f.path(to), Err: err}
	}
	return nil
}

func (f *folder) path(name string) string { return filepath.Join(f.dir.Name(), name) }

// remove removes files; a missing one is not an error.
func (f *folder) remove(names ...string) error {
	var errs []error
	for _, name := range names {
		if err := unix.Unlinkat(f.fd(), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, &os.PathError{Op: "unlink", Path: f.path(name), Err: err})
		}
	}
	return errors.Join(errs...)
}

func (f *folder) open(name string, flags int, mode uint32) (*os.File, error) {
	fd, err := unix.Openat(f.fd(), name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: f.path(name), Err: err}
	}
	file := os.NewFile(uintptr(fd), f.path(name))
	if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", f.path(name)), file.Close())
	}
	return file, nil
}

// create creates the live log file, unless the writer has created it already.
func (f *folder) create() error {
	file, err := f.open(f.log, unix.O_WRONLY|unix.O_CREAT, 0o640)
	if err != nil {
		return err
	}
	return file.Close()
}

// empty truncates the live log file. Runtimes append to it, so writing continues at its beginning.
func (f *folder) empty() error {
	file, err := f.open(f.log, unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(0), file.Close())
}

// compress replaces a part by a compressed one.
func (f *folder) compress(ctx context.Context, part file) error {
	to := part.part
	to.Compressed = true
	return f.rewrite(part.name, to.Name(f.log), func(w io.Writer, from *os.File) error {
		z := gzip.NewWriter(w)
		if _, err := io.Copy(z, untilDone{ctx, from}); err != nil {
			return err
		}
		return z.Close()
	})
}

// cut removes all of a file without writer except whole lines at its end, at most keep bytes.
func (f *folder) cut(ctx context.Context, name string, keep int64) error {
	return f.rewrite(name, name, func(w io.Writer, from *os.File) error {
		if _, err := from.Seek(-keep, io.SeekEnd); err != nil {
			return err
		}
		rest := bufio.NewReaderSize(untilDone{ctx, from}, copyBuffer)
		for {
			_, err := rest.ReadSlice('\n')
			if !errors.Is(err, bufio.ErrBufferFull) {
				break // the end of a line, or of the file
			}
		}
		_, err := io.Copy(w, rest)
		return err
	})
}

// copyBuffer is the write size: each write wakes the watchers of the directory.
const copyBuffer = 256 << 10

// rewrite writes the output of copy to another name, or the same, and removes the source. The
// target gets the source's mode, and its modification time, by which readers identify it (package
// logs).
func (f *folder) rewrite(from, to string, copy func(w io.Writer, from *os.File) error) (err error) {
	source, err := f.open(from, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer source.Close()
	unfinished := strings.TrimSuffix(to, logs.CompressedSuffix) + logs.UnfinishedSuffix
	if err := f.remove(unfinished); err != nil {
		return err
	}
	target, err := f.open(unfinished, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, target.Close())
		if err != nil {
			err = errors.Join(err, f.remove(unfinished))
		}
	}()
	w := bufio.NewWriterSize(target, copyBuffer)
	if err := copy(w, source); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &st); err != nil {
		return err
	}
	if st.Nlink == 0 {
		return os.ErrNotExist // its container was removed
	}
	if err := errors.Join(
		unix.Fchmod(int(target.Fd()), st.Mode&0o7777), unix.Fchown(int(target.Fd()), int(st.Uid), int(st.Gid)),
		target.Sync(), // a power failure must not leave an empty file in place of a whole one
		unix.UtimesNanoAt(f.fd(), unfinished, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW),
	); err != nil {
		return err
	}
	if err := unix.Renameat(f.fd(), unfinished, f.fd(), to); err != nil {
		return &os.LinkError{Op: "rename", Old: f.path(unfinished), New: f.path(to), Err: err}
	}
	if from == to {
		return nil
	}
	return f.remove(from)
}

// untilDone reads a file until the context is done.
type untilDone struct {
	ctx  context.Context
	file io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.file.Read(p)
}
