package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	mount "k8s.io/mount-utils"
)

// isMounted reports whether something is mounted at the path. It asks the mount table alone: what is mounted may be readable to nobody here, its
// server may never answer, and a bind mount looks like its directory.
func (m *Manager) isMounted(path string) (bool, error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(path)) // the mount table shows real paths
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	real := filepath.Join(parent, filepath.Base(path))
	points, err := m.mounter.List()
	if err != nil {
		return false, fmt.Errorf("read mount table: %w", err)
	}
	return slices.ContainsFunc(points, func(mp mount.MountPoint) bool { return unescapeMount.Replace(mp.Path) == real }), nil
}
