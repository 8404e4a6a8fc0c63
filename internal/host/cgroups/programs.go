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

// Programs makes the cgroups of a program of the agent's own: one for each of its processes, beside
// kubepods, with a limit of memory. With version 1 it is in the hierarchy of memory alone. With
// systemd, too, it is made through cgroupfs.
type Programs struct {
	root, name string
	memory     int64

	mu sync.Mutex // held while a number is chosen
}

// NewPrograms says where the cgroups are, how they begin, and how many bytes each may use; swap
// counts, too. Nothing is made yet.
func NewPrograms(root, name string, memory int64) *Programs {
	return &Programs{root: path.Join("/", root), name: name, memory: memory}
}

// Program is the cgroup of one process.
type Program struct {
	dir     string // of the hierarchy that limits memory
	version int
	memory  int64
}

// Make makes a cgroup with its limit, in which nothing runs.
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
		c.Resources.MemorySwap = p.memory // with memory, as version 1 counts
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

// parent returns the directory in which the cgroups are, in the hierarchy that limits memory.
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

// Start starts a process that is in the cgroup from its first instruction on. With version 1 that
// is a property of the thread that calls, which must end then, and must not be the first one of the
// process.
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

// Exceeded is an error if the kernel has killed a process of the cgroup for its use of memory.
func (p *Program) Exceeded() error {
	file := "memory.oom_control"
	if p.version == 2 {
		file = "memory.events"
	}
	kills, err := fscommon.GetValueByKey(p.dir, file, "oom_kill")
	if err != nil || kills == 0 { // what cannot be read, or is not counted, is no kill
		return nil
	}
	return fmt.Errorf("it used more than %d MiB of memory", p.memory>>20)
}

// Remove kills what is left in the cgroup, and removes it. It blocks until that is done, for 2.3
// seconds at most and no longer than ctx.
func (p *Program) Remove(ctx context.Context) error {
	return removeProgram(ctx, p.dir)
}

func removeProgram(ctx context.Context, dir string) error {
	if err := untilGone(ctx, func() error { return killAndRemove([]string{dir}) }); err != nil {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}

// RemoveLeft removes the cgroups that an agent has left which was cut off, and kills what is in
// them. No other agent has the root.
func (p *Programs) RemoveLeft(ctx context.Context) error {
	parent, _, err := p.parent()
	if err != nil {
		return nil // there was never one
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
