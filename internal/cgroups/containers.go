package cgroups

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// containerID is the part of a container's cgroup that is its id: 32 bytes in hexadecimal, all of the name with the driver cgroupfs.
var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// Containers returns the directories of the containers' and sandboxes' cgroups below those of pods, in every hierarchy, by their ids. A runtime makes
// them, and leaves them when it is cut off.
func (m *Manager) Containers() (map[string][]string, error) {
	found := map[string][]string{}
	for _, class := range classes {
		pods, err := m.listClass(class)
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
	return found, nil
}

// RemoveContainer removes directories of one container that Containers returned, after killing what still runs there. EBUSY means that some of it has
// not ended yet.
func (m *Manager) RemoveContainer(dirs []string) error {
	if err := killAndRemove(dirs); err != nil {
		return fmt.Errorf("remove the cgroup of a container: %w", err)
	}
	return nil
}
