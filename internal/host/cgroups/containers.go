package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	lib "github.com/opencontainers/cgroups"
)

// containerID matches the ID in the name of a container's cgroup: 32 bytes in hexadecimal. With the
// driver cgroupfs it is the whole name.
var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// EmptyContainers returns the cgroup directories of containers and sandboxes without processes, by
// ID, in every hierarchy. A runtime leaves them behind when it crashes. Cgroups with processes may
// belong to another agent.
func (m *Manager) EmptyContainers() (map[string][]string, error) {
	found := map[string][]string{}
	for _, class := range classes {
		pods, err := m.tree.listClass(class)
		if err != nil {
			return nil, err
		}
		for _, dirs := range pods {
			for _, d := range dirs {
				entries, err := os.ReadDir(d)
				if err != nil && !gone(err) {
					return nil, fmt.Errorf("list cgroups of containers: %w", err)
				}
				for _, e := range entries {
					if id := containerID.FindString(e.Name()); id != "" && e.IsDir() {
						found[id] = append(found[id], filepath.Join(d, e.Name()))
					}
				}
			}
		}
	}
	for id, dirs := range found {
		for _, d := range dirs {
			pids, err := lib.GetAllPids(d)
			if err != nil && !gone(err) {
				return nil, fmt.Errorf("list processes of %s: %w", d, err)
			}
			if len(pids) > 0 {
				delete(found, id)
			}
		}
	}
	return found, nil
}

// RemoveEmpty removes directories of one container that EmptyContainers returned. EBUSY means that
// it has a process now.
func (m *Manager) RemoveEmpty(dirs []string) error {
	var errs []error
	for _, d := range dirs {
		errs = append(errs, removeTree(d))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the cgroup of a container: %w", err)
	}
	return nil
}
