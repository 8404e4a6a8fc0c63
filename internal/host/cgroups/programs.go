package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	lib "github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fscommon"
	libmanager "github.com/opencontainers/cgroups/manager"
	"golang.org/x/sys/unix"
)

// Programs creates cgroups for processes of a child program of the agent: one for each process,
// beside kubepods, with a memory limit. With version 1 only the memory hierarchy is used. They are
// created through cgroupfs even with systemd.
type Programs struct {
	root, name string
	memory     int64

	mu sync.Mutex // held while a number is chosen
}

// NewPrograms returns a Programs that creates cgroups below root with names that begin with name.
// memory is the limit of each in bytes, including swap. It creates nothing yet.
func NewPrograms(root, name string, memory int64) *Programs {
	return &Programs{root: path.Join("/", root), name: name, memory: memory}
}

// Program is the cgroup of one process.
type Program struct {
	dir     string // in the hierarchy of the memory controller
	version int
	memory  int64
}

// Make creates an empty cgroup with its limit.
func (p *Programs) Make() (*Program, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	parent, version, err := p.parent()
	if err != nil {
		return nil, err
	}
	name := p.name + "-1"
	for n := 2; lib.PathExists(filepath.Join(parent, name)); n++ {
		name = p.name + "-" + strconv.Itoa(n)
	}
	c := &lib.Cgroup{Path: path.Join(p.root, name), Resources: &lib.Resources{Memory: p.memory, SkipDevices: true}}
	if SwapAccounted() {
		c.Resources.MemorySwap = p.memory // version 1 counts memory and swap together
	}
	made := &Program{dir: filepath.Join(parent, name), version: version, memory: p.memory}
	controller := "memory"
	if version == 2 {
		controller = ""
	}
	g, err := libmanager.NewWithPaths(c, map[string]string{controller: made.dir})
	if err == nil {
		err = g.Apply(-1)
	}
	if err == nil {
		err = g.Set(c.Resources)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make cgroup %s: %w", c.Path, err), removeTree(made.dir))
	}
	return made, nil
}

// parent returns the parent directory of the cgroups in the memory hierarchy.
func (p *Programs) parent() (dir string, version int, err error) {
	g, err := open(p.root)
	if err != nil {
		return "", 0, fmt.Errorf("cgroup %s: %w", p.root, err)
	}
	if version, _ = Detect(); version == 2 {
		return g.Path(""), version, nil
	}
	if dir = g.Path("memory"); dir == "" {
		return "", 0, fmt.Errorf("cgroup %s: the controller of memory is not mounted, so that nothing can be limited", p.root)
	}
	return dir, version, nil
}

// Start starts a process in the cgroup. With version 1 it moves the calling thread there, which
// must exit afterwards and must not be the main thread.
func (p *Program) Start(cmd *exec.Cmd) error {
	if p.version == 1 {
		if err := lib.WriteFile(p.dir, "tasks", strconv.Itoa(unix.Gettid())); err != nil {
			return fmt.Errorf("move into cgroup %s: %w", p.dir, err)
		}
		return cmd.Start()
	}
	dir, err := os.Open(p.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	return cmd.Start()
}

// Exceeded returns an error if the kernel has OOM-killed a process of the cgroup.
func (p *Program) Exceeded() error {
	file := "memory.oom_control"
	if p.version == 2 {
		file = "memory.events"
	}
	kills, err := fscommon.GetValueByKey(p.dir, file, "oom_kill")
	if err != nil || kills == 0 { // treat unreadable or missing counters as no kill
		return nil
	}
	return fmt.Errorf("it used more than %d MiB of memory", p.memory>>20)
}

// Remove kills the processes in the cgroup, and removes it. It blocks until that is done, for at
// most 2.3 seconds and no longer than ctx.
func (p *Program) Remove(ctx context.Context) error {
	return removeProgram(ctx, p.dir)
}

func removeProgram(ctx context.Context, dir string) error {
	if err := untilGone(ctx, func() error { return killAndRemove([]string{dir}) }); err != nil {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}

// RemoveLeft removes the cgroups that a crashed agent left behind, and kills their processes. No
// other agent uses the root.
func (p *Programs) RemoveLeft(ctx context.Context) error {
	parent, _, err := p.parent()
	if err != nil {
		return nil // there are no cgroups
	}
	entries, err := os.ReadDir(parent)
	if err != nil {
		return ignoreGone(err)
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool {
		number, ours := strings.CutPrefix(e.Name(), p.name+"-")
		_, err := strconv.ParseUint(number, 10, 32)
		return !ours || err != nil || !e.IsDir()
	})
	var errs []error
	for _, e := range entries {
		errs = append(errs, removeProgram(ctx, filepath.Join(parent, e.Name())))
	}
	return errors.Join(errs...)
}
