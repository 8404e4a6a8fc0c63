package keepers

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/bundle/keeper/plan"
)

// cgroupRoot is where the hierarchies are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// makeCgroup makes the container's cgroup in each hierarchy, with its limits. The container's first
// process enters them itself.
func makeCgroup(spec *specs.Spec) ([]plan.Cgroup, error) {
	limits := &specs.LinuxResources{Devices: plan.Devices()}
	if r := spec.Linux.Resources; r != nil {
		limits.CPU, limits.Memory = r.CPU, r.Memory
	}
	group, err := cgroup1.New(cgroup1.StaticPath(spec.Linux.CgroupsPath), limits)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cgroup %s: %w", spec.Linux.CgroupsPath, err), removeCgroup(spec.Linux.CgroupsPath))
	}
	return cgroupDirs(group, spec.Linux.CgroupsPath), nil
}

// cgroupDirs are the directories of a cgroup, of each hierarchy.
func cgroupDirs(group cgroup1.Cgroup, path string) []plan.Cgroup {
	var dirs []plan.Cgroup
	for _, s := range group.Subsystems() {
		if p, ok := s.(interface{ Path(string) string }); ok {
			dir := p.Path(path)
			hierarchy, _, _ := strings.Cut(strings.TrimPrefix(dir, cgroupRoot+"/"), "/")
			dirs = append(dirs, plan.Cgroup{Hierarchy: hierarchy, Dir: filepath.Clean(dir)})
		}
	}
	return dirs
}

// loadCgroup returns the directories of a container's cgroup that was made before.
func loadCgroup(path string) ([]plan.Cgroup, error) {
	group, err := cgroup1.Load(cgroup1.StaticPath(path))
	if err != nil {
		return nil, fmt.Errorf("cgroup %s: %w", path, err)
	}
	return cgroupDirs(group, path), nil
}

// removeCgroup takes the cgroup away, if there is one.
func removeCgroup(path string) error {
	group, err := cgroup1.Load(cgroup1.StaticPath(path))
	if errors.Is(err, cgroup1.ErrCgroupDeleted) {
		return nil
	}
	if err == nil {
		err = group.Delete()
	}
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", path, err)
	}
	return nil
}
