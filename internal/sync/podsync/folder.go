package podsync

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/host/safepath"
	"berth/internal/pod"
)

// removeDir removes the pod's directory and its content, including files that a container wrote
// there. It removes symbolic links without following them. Volumes are unmounted by then; if one is
// still mounted, removeDir returns an error and leaves the mounted content untouched.
func (s *Syncer) removeDir(uid pod.UID) error { return s.files().Remove(s.podDir(uid)) }

// unlinkSymlinks removes symbolic links in place of the pod's directory or of the agent's
// directories in it: the agent creates none there, and teardown must not follow any. No process of
// the pod runs that could recreate them.
func (s *Syncer) unlinkSymlinks(uid pod.UID) error {
	dir := s.podDir(uid)
	paths := []string{dir}
	if entries, err := s.files().ReadDir(dir); err == nil { // fails for a link or a missing one
		for _, e := range entries {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	for _, path := range paths {
		st, err := s.files().Lstat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			err = s.files().Unlink(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// OnDisk returns the pods that have a directory.
func (s *Syncer) OnDisk() ([]pod.UID, error) {
	entries, err := s.files().ReadDir(filepath.Join(s.RootDir, "pods"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pod folders: %w", err)
	}
	var out []pod.UID
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, pod.UID(e.Name()))
		}
	}
	return out, nil
}

// files is rooted at RootDir: a container may have write access to pod directories.
func (s *Syncer) files() safepath.Root { return safepath.Root(s.RootDir) }

func (s *Syncer) podDir(uid pod.UID) string { return filepath.Join(s.RootDir, "pods", string(uid)) }
