package shims

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/bundle/podshim/plan"

	_ "github.com/opencontainers/cgroups/devices" // device rules; without it, they are an error
)

// cgroupRoot is the mount point of the hierarchies.
const cgroupRoot = "/sys/fs/cgroup"

// unified reports whether the host has only cgroup v2.
func unified() bool { return cgroups.IsCgroup2UnifiedMode() }

// bySystemd reports whether systemd creates the cgroup of that name, slice:prefix:name. Other names
// are paths.
func bySystemd(name string) bool { return !filepath.IsAbs(name) }

// hierarchies returns the directories of the v1 hierarchies by controller. The library needs some
// fifty system calls for that each time.
var hierarchies = sync.OnceValues(func() (map[string]string, error) {
	m, err := manager.New(&cgroups.Cgroup{Path: "/", Resources: &cgroups.Resources{}})
	if err != nil {
		return nil, err
	}
	return m.GetPaths(), nil
})

// cgroup is a container's cgroup in all hierarchies, with its limits in runc's form.
type cgroup struct {
	cgroups.Manager
	limits *cgroups.Resources
	name   string
}

// cgroupOf returns the cgroup of a specification, which need not exist.
func cgroupOf(spec *specs.Spec) (*cgroup, error) {
	name := spec.Linux.CgroupsPath
	config := configOf(spec)
	var paths map[string]string // nil: the library finds them
	if !unified() && !bySystemd(name) {
		tops, err := hierarchies()
		if err != nil {
			return nil, fmt.Errorf("cgroups: %w", err)
		}
		paths = make(map[string]string, len(tops))
		for controller, top := range tops {
			paths[controller] = filepath.Join(top, filepath.Clean(name)) // not above its top
		}
	}
	m, err := manager.NewWithPaths(config, paths)
	if err != nil {
		return nil, fmt.Errorf("cgroup %s: %w", name, err)
	}
	return &cgroup{m, config.Resources, name}, nil
}

// cgroupAt returns the cgroup with a name, without limits.
func cgroupAt(name string) (*cgroup, error) {
	return cgroupOf(&specs.Spec{Linux: &specs.Linux{CgroupsPath: name}})
}

// create creates the cgroup with its limits. The container's first process joins it by itself,
// before release is called.
func (g *cgroup) create(program func() (string, error)) (release func(), err error) {
	pid, release := -1, func() {}
	if bySystemd(g.name) {
		path, err := program()
		if err == nil {
			pid, release, err = startHolder(path)
		}
		if err != nil {
			return nil, fmt.Errorf("cgroup %s: start a process for it: %w", g.name, err)
		}
	}
	if err = g.Apply(pid); err == nil {
		err = g.Set(g.limits)
	}
	if err != nil {
		release()
		return nil, errors.Join(fmt.Errorf("cgroup %s: %w", g.name, err), g.Destroy())
	}
	return release, nil
}

// startHolder starts a process that waits until it is released: systemd creates no cgroup without a
// process.
func startHolder(program string) (pid int, release func(), err error) {
	cmd := exec.Command(program, "hold")
	cmd.Env = []string{}
	var in io.WriteCloser
	if in, err = cmd.StdinPipe(); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return 0, nil, err
	}
	return cmd.Process.Pid, func() {
		in.Close()
		_ = cmd.Wait() // it may have been killed with its cgroup
	}, nil
}

// dirs returns the directories of the cgroup in each hierarchy.
func (g *cgroup) dirs() []plan.Cgroup {
	var out []plan.Cgroup
	paths := g.GetPaths()
	for _, controller := range slices.Sorted(maps.Keys(paths)) {
		dir := filepath.Clean(paths[controller])
		if slices.ContainsFunc(out, func(o plan.Cgroup) bool { return o.Dir == dir }) {
			continue
		}
		hierarchy := ""
		if controller != "" { // version 2, with or without v1 hierarchies
			hierarchy, _ = g.split(dir)
		}
		out = append(out, plan.Cgroup{Hierarchy: hierarchy, Dir: dir})
	}
	return out
}

// split splits a directory into its v1 hierarchy and the path in it.
func (g *cgroup) split(dir string) (hierarchy, at string) {
	hierarchy, at, _ = strings.Cut(strings.TrimPrefix(dir, cgroupRoot+"/"), "/")
	return hierarchy, "/" + at
}

// stat returns metrics in the form that containerd reads: that of containerd/cgroups, of either
// version.
func (g *cgroup) stat() (any, error) {
	if unified() {
		m, err := cgroup2.Load(strings.TrimPrefix(g.Path(""), cgroupRoot))
		if err != nil {
			return nil, err
		}
		return m.Stat()
	}
	m, err := g.v1()
	if err != nil {
		return nil, err
	}
	return m.Stat(cgroup1.IgnoreNotExist)
}

// v1Hierarchy returns containerd's view of the v1 hierarchies, for which it reads the mount table.
var v1Hierarchy = sync.OnceValues(cgroup1.Default)

// v1 returns the cgroup for operations that only exist for version 1.
func (g *cgroup) v1() (cgroup1.Cgroup, error) {
	_, at := g.split(g.Path("devices"))
	return cgroup1.Load(cgroup1.StaticPath(at), cgroup1.WithHierarchy(v1Hierarchy))
}

// frozen reports whether the processes in the cgroup are frozen.
func (g *cgroup) frozen() bool {
	state, err := g.GetFreezerState()
	return err == nil && state == cgroups.Frozen
}

// loadCgroup returns the cgroup directories that a further process of a container joins: of its
// cgroup, or of a child to which its first process has moved, because a v2 cgroup with enabled
// controllers for children accepts no processes.
func loadCgroup(name string, first uint32) ([]plan.Cgroup, error) {
	g, err := cgroupAt(name)
	if err != nil {
		return nil, err
	}
	if !g.Exists() {
		return nil, fmt.Errorf("cgroup %s: is gone", name)
	}
	dirs := g.dirs()
	if !unified() {
		return dirs, nil
	}
	own := g.Path("")
	if below, err := os.ReadFile(filepath.Join(own, "cgroup.subtree_control")); err != nil || len(below) == 0 {
		return dirs, err
	}
	of, err := cgroups.ParseCgroupFile(fmt.Sprintf("/proc/%d/cgroup", first))
	if err != nil {
		return nil, fmt.Errorf("cgroup of process %d: %w", first, err)
	}
	if at := filepath.Join(cgroupRoot, of[""]); strings.HasPrefix(at, own+"/") {
		dirs[0].Dir = at
	}
	return dirs, nil
}

// removeCgroup removes the cgroup if it exists.
func removeCgroup(name string) error {
	g, err := cgroupAt(name)
	if err == nil {
		err = g.Destroy()
	}
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", name, err)
	}
	return nil
}

// createParent creates the cgroup of a pod if it does not exist. It stays when the pod is removed,
// because the runtime does not own it.
func createParent(parent string) error {
	if parent == "" {
		return nil
	}
	config := &cgroups.Cgroup{Path: path.Join("/", parent), Resources: &cgroups.Resources{}}
	if slice := path.Base(parent); strings.HasSuffix(slice, ".slice") {
		config.Systemd, config.Name = true, slice
		if config.Parent = path.Base(path.Dir(config.Path)); !strings.HasSuffix(config.Parent, ".slice") {
			config.Parent = "-.slice"
		}
		config.Path = ""
	}
	m, err := manager.New(config)
	if err == nil && !m.Exists() {
		err = m.Apply(-1)
	}
	if err != nil {
		return fmt.Errorf("cgroup of the pod, %s: %w", parent, err)
	}
	return nil
}
