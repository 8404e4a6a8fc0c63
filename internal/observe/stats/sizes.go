package stats

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host/safepath"
	"berth/internal/pod"
)

const (
	// maxWalks bounds concurrent directory walks, to leave the disk to pods.
	maxWalks = 2
	// maxLinked bounds the hard-linked files that one walk deduplicates; those beyond count once
	// per name.
	maxLinked = 1 << 16
)

// folders are the agent's root directory and the directory of pod logs.
type folders struct {
	root safepath.Root // a container may have been given its pod's directory, or all of them
	logs string
}

// podDir is the directory of a pod, logsOf that of its logs.
func (d folders) podDir(uid pod.UID) string {
	return filepath.Join(string(d.root), "pods", string(uid))
}

func (d folders) logsOf(namespace, name string, uid pod.UID) string {
	return filepath.Join(d.logs, namespace+"_"+name+"_"+string(uid))
}

// Size is the disk usage of files.
type Size struct{ Bytes, Inodes uint64 }

// Plus adds two sizes.
func (s Size) Plus(o Size) Size { return Size{s.Bytes + o.Bytes, s.Inodes + o.Inodes} }

type inode struct{ dev, ino uint64 }

// walk sums the usage of a directory: blocks and inodes, including its own, within one file system;
// a hard-linked file counts once, and a file that vanishes meanwhile is skipped.
func (d folders) walk(ctx context.Context, path string) (Size, error) {
	var s Size
	dir, err := d.open(path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return s, err
	}
	defer dir.Close()
	linked := map[inode]bool{}
	err = safepath.Walk(ctx, dir, func(st *unix.Stat_t) {
		if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			i := inode{st.Dev, st.Ino}
			if linked[i] {
				return
			}
			if len(linked) < maxLinked {
				linked[i] = true
			}
		}
		s.Bytes += uint64(st.Blocks) * 512
		s.Inodes++
	})
	return s, err
}

// open opens the path, without following links where containers may have created them.
func (d folders) open(path string, flags int) (*os.File, error) {
	if d.root.Contains(path) {
		return d.root.OpenFile(path, flags, 0)
	}
	return os.OpenFile(path, flags, 0)
}

// logsIn sums the files directly in a log directory; zero if it does not exist.
func (d folders) logsIn(path string) Size {
	var s Size
	dir, err := safepath.Root(filepath.Dir(d.logs)).Open(path)
	if err != nil {
		return s
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return s
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		var st unix.Stat_t
		if unix.Fstatat(int(dir.Fd()), e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			s.Bytes += uint64(st.Blocks) * 512
			s.Inodes++
		}
	}
	return s
}

// fileSystem is the capacity of a file system.
type fileSystem struct {
	kind                      int64 // as in statfs(2)
	at                        time.Time
	capacity, available, free uint64 // bytes
	inodes, inodesFree        uint64
}

// statfs returns the file system of a path of the host.
func statfs(path string) (fileSystem, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return fileSystem{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return fileSystemOf(&st), nil
}

// statfs returns the file system of a directory of a pod, or of the agent.
func (d folders) statfs(path string) (fileSystem, error) {
	f, err := d.open(path, unix.O_PATH)
	if err != nil {
		return fileSystem{}, err
	}
	defer f.Close()
	return statfsOf(f)
}

func statfsOf(f *os.File) (fileSystem, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return fileSystem{}, &fs.PathError{Op: "fstatfs", Path: f.Name(), Err: err}
	}
	return fileSystemOf(&st), nil
}

func fileSystemOf(st *unix.Statfs_t) fileSystem {
	block := uint64(st.Frsize)
	return fileSystem{
		kind: int64(st.Type), at: time.Now(), capacity: st.Blocks * block, available: st.Bavail * block, free: st.Bfree * block, inodes: st.Files, inodesFree: st.Ffree,
	}
}

// space returns the free space of the path's file system.
func (d folders) space(path string) (Space, error) {
	f, err := d.open(path, unix.O_PATH)
	if err != nil {
		return Space{}, err
	}
	defer f.Close()
	s, err := statfsOf(f)
	if err != nil {
		return Space{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Space{}, &fs.PathError{Op: "fstat", Path: path, Err: err}
	}
	return Space{Path: path, Device: st.Dev, Free: s.free}, nil
}
