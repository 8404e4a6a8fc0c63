package podsync

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"berth/internal/beneath"
	"berth/internal/pod"
)

// removeDir removes the pod's folder. Volumes are gone by then; a folder that still holds one is an error, never deleted.
func (s *Syncer) removeDir(uid pod.UID) error {
	dir := s.podDir(uid)
	for _, d := range []string{"containers", "etc-hosts"} { // only the agent's own files are below
		if err := s.files().Remove(filepath.Join(dir, d)); err != nil {
			return err
		}
	}
	for _, d := range []string{"volumes", "plugins"} {
		if err := s.files().RemoveEmpty(filepath.Join(dir, d)); err != nil {
			return err
		}
	}
	return s.removeEmptyTree(dir)
}

// removeEmptyTree removes a folder that has nothing in it but folders, which have nothing in them either: an earlier agent made such of a pod whose
// UID was a path.
func (s *Syncer) removeEmptyTree(dir string) error {
	entries, err := s.files().ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue // its folder is not empty, which is said next
		}
		if err := s.removeEmptyTree(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return s.files().RemoveEmpty(dir)
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
func (s *Syncer) files() beneath.Root { return beneath.Root(s.RootDir) }

func (s *Syncer) podDir(uid pod.UID) string { return filepath.Join(s.RootDir, "pods", string(uid)) }
