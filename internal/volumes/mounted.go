package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	mount "k8s.io/mount-utils"
)

// isMounted reports whether something is mounted at the path. It asks the mount table alone: what is mounted may be readable to nobody here, its
// server may never answer, and a bind mount looks like its directory.
func (m *Manager) isMounted(path string) (bool, error) {
	real, err := m.files.Real(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	points, err := m.mounter.List()
	if err != nil {
		return false, fmt.Errorf("read mount table: %w", err)
	}
	return slices.ContainsFunc(points, func(mp mount.MountPoint) bool { return unescapeMount.Replace(mp.Path) == real }), nil
}
