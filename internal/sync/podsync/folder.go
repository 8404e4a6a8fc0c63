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

// removeDir removes the pod's folder with what a container has put there, if it was given the
// folder: a link itself, and never what it leads to. Volumes are gone by then; a folder in which
// one is still mounted is an error, and what is mounted is untouched.
func (s *Syncer) removeDir(uid pod.UID) error { return s.files().Remove(s.podDir(uid)) }

// unlinkStrangers removes the links that stand in the place of the pod's folder, or of one of the
// agent's own in it: the agent makes none there, and goes through none to take down what is behind.
// Nothing of the pod runs that could make them anew.
func (s *Syncer) unlinkStrangers(uid pod.UID) error {
	dir := s.podDir(uid)
	paths := []string{dir}
	if entries, err := s.files().ReadDir(dir); err == nil { // a link, or nothing, has none
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

// OnDisk returns the pods that have a folder.
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

// files are those of pods: a container may have been given its pod's folder, or all of them.
func (s *Syncer) files() safepath.Root { return safepath.Root(s.RootDir) }

func (s *Syncer) podDir(uid pod.UID) string { return filepath.Join(s.RootDir, "pods", string(uid)) }
