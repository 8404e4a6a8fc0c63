package stats

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// walksAtOnce bounds the directories that are walked at a time, so that a question does not take the disk from pods.
	walksAtOnce = 2
	// maxLinked bounds the files of several names that one walk remembers; those beyond count once per name.
	maxLinked = 1 << 16
)

// size is what a directory takes on its file system.
type size struct{ bytes, inodes uint64 }

// inode identifies a file.
type inode struct{ dev, ino uint64 }

// walk adds up what a directory takes: blocks and inodes, itself included, of its own file system alone; a file with several names counts once,
// what vanishes meanwhile not at all.
func walk(ctx context.Context, root string) (size, error) {
	var s size
	var top unix.Stat_t
	if err := unix.Lstat(root, &top); err != nil {
		return s, &fs.PathError{Op: "lstat", Path: root, Err: err}
	}
	linked := map[inode]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if cerr := ctx.Err(); cerr != nil {
			return cerr
		}
		if err != nil {
			if path != root && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
				return nil
			}
			return err
		}
		var st unix.Stat_t
		switch err := unix.Lstat(path, &st); {
		case errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return err
		case st.Dev != top.Dev:
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if st.Nlink > 1 && !d.IsDir() {
			i := inode{st.Dev, st.Ino}
			if linked[i] {
				return nil
			}
			if len(linked) < maxLinked {
				linked[i] = true
			}
		}
		s.bytes += uint64(st.Blocks) * 512
		s.inodes++
		return nil
	})
	return s, err
}

// filesOf adds up the files that are directly in a directory; nothing when it is not there.
func filesOf(dir string) size {
	var s size
	entries, err := os.ReadDir(dir)
	if err != nil {
		return s
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(dir, e.Name()), &st) == nil {
			s.bytes += uint64(st.Blocks) * 512
			s.inodes++
		}
	}
	return s
}

// fileSystem is a file system's capacity.
type fileSystem struct {
	at                        time.Time
	capacity, available, free uint64 // bytes
	inodes, inodesFree        uint64
}

// statfs returns the file system that the path is in.
func statfs(path string) (fileSystem, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return fileSystem{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	block := uint64(st.Frsize)
	return fileSystem{
		at: time.Now(), capacity: st.Blocks * block, available: st.Bavail * block, free: st.Bfree * block, inodes: st.Files, inodesFree: st.Ffree,
	}, nil
}
