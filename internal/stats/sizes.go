package stats

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// walksAtOnce bounds the directories that are walked at a time, so that a question does not take the disk from pods.
	walksAtOnce = 2
	// maxSizes bounds the sizes that are remembered.
	maxSizes = 4096
	// maxLinked bounds the files of several names that one walk remembers; those beyond count once per name.
	maxLinked = 1 << 16
)

// size is what a directory takes on its file system.
type size struct {
	bytes, inodes uint64
	at            time.Time
}

// sizes remembers what directories take. A directory is walked when somebody asks and what is known is too old; the walk goes on when the
// question is over, so that the next one finds its result.
type sizes struct {
	log   *slog.Logger
	slots chan struct{} // capacity walksAtOnce
	walks sync.WaitGroup

	mu    sync.Mutex
	ctx   context.Context    // guarded by mu; of Run, nil before and after
	known map[string]*walked // guarded by mu
}

// walked is a directory that was, or is being, walked.
type walked struct {
	size size
	done chan struct{} // closed when the walk under way ends; nil: there is none
	ok   bool          // size is known
}

func newSizes(log *slog.Logger) *sizes {
	return &sizes{log: log, slots: make(chan struct{}, walksAtOnce), known: map[string]*walked{}}
}

// run lets walks begin until ctx is done, and waits for those under way.
func (s *sizes) run(ctx context.Context) {
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.ctx = nil
	s.mu.Unlock()
	s.walks.Wait()
}

// clear forgets what is known.
func (s *sizes) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for path, w := range s.known {
		if w.done == nil {
			delete(s.known, path)
		}
	}
}

// get returns what the directory takes, at most maxAge old if ctx gives the time, else what is known; false when nothing is.
func (s *sizes) get(ctx context.Context, path string, maxAge time.Duration) (size, bool) {
	s.mu.Lock()
	w := s.known[path]
	if w == nil {
		if len(s.known) >= maxSizes {
			s.mu.Unlock()
			return size{}, false
		}
		w = &walked{}
		s.known[path] = w
	}
	if w.ok && time.Since(w.size.at) < maxAge {
		defer s.mu.Unlock()
		return w.size, true
	}
	if w.done == nil && s.ctx != nil {
		w.done = make(chan struct{})
		of := s.ctx
		s.walks.Go(func() { s.walk(of, path, w) })
	}
	done := w.done
	s.mu.Unlock()
	if done != nil {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.size, w.ok
}

func (s *sizes) walk(ctx context.Context, path string, w *walked) {
	var got size
	err := ctx.Err()
	select {
	case s.slots <- struct{}{}:
		got, err = walk(ctx, path)
		<-s.slots
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(w.done)
	w.done = nil
	switch {
	case errors.Is(err, fs.ErrNotExist):
		delete(s.known, path)
	case err == nil:
		w.size, w.ok = got, true
	case ctx.Err() == nil:
		s.log.Debug("size of a directory not found", "path", path, "error", err)
	}
}

// inode identifies a file.
type inode struct{ dev, ino uint64 }

// walk adds up what a directory takes: blocks and inodes, itself included, of its own file system alone; a file with several names counts once,
// what vanishes meanwhile not at all.
func walk(ctx context.Context, root string) (size, error) {
	s := size{at: time.Now()}
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
	s := size{at: time.Now()}
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
