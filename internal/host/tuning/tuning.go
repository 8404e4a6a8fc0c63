// Package tuning applies the settings of the KubeletConfiguration for the machine's kernel and the
// agent's own process: six kernel settings, the OOM score, the limit of open files, cgroups of
// daemons.
//
// Owns: which kernel settings pods need.
// Reads: kernel settings below /proc/sys, the limits of the agent's process.
// Never: writes to a cgroup itself (package cgroups does), changes anything that is not configured.
package tuning

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Settings are the settings to apply. The zero value of a field changes nothing.
type Settings struct {
	Kernel KernelPolicy
	// OOMScore is the agent's own (proc_pid_oom_score_adj(5)); nil does not change it.
	OOMScore *int
	// OpenFiles is the minimum limit of the agent's open files; 0 does not change it.
	OpenFiles uint64
	// AgentCgroup is the cgroup of the agent, SystemCgroup that of the machine's daemons without a
	// cgroup; "" moves nothing.
	AgentCgroup, SystemCgroup string
}

// KernelPolicy is what happens if kernel settings are not as pods need them.
type KernelPolicy int

// Policies: protectKernelDefaults: false is SetKernel, true is DemandKernel.
const (
	LeaveKernel KernelPolicy = iota
	SetKernel
	DemandKernel
)

// Machine applies the settings.
type Machine interface {
	Sysctls
	Process
	// Group creates a cgroup, if it does not exist.
	Group(cgroup string) (Group, error)
}

// Sysctls are the kernel settings, by names such as vm.overcommit_memory.
type Sysctls interface {
	ReadSysctl(name string) (int, error)
	WriteSysctl(name string, value int) error
}

// Process is the agent's own process.
type Process interface {
	SetOOMScore(score int) error
	// RaiseOpenFiles raises the limit of open files to at least n.
	RaiseOpenFiles(n uint64) error
}

// Group is a cgroup, in each hierarchy.
type Group interface {
	// Join moves the agent into it.
	Join() error
	// Gather moves the processes without a cgroup into it, except kernel threads and the first
	// process, and returns their number.
	Gather() (moved int, err error)
}

// Tuner applies Settings.
type Tuner struct {
	Settings
	Machine Machine
	Log     *slog.Logger
}

// Start applies the settings once. Call it before the agent starts child processes, which inherit
// them. It logs settings that cannot be applied; only DemandKernel results in an error.
func (t *Tuner) Start() error {
	if err := t.kernel(); err != nil {
		return err
	}
	if t.OpenFiles > 0 {
		if err := t.Machine.RaiseOpenFiles(t.OpenFiles); err != nil {
			t.Log.Warn("maxOpenFiles is not reached", "error", err)
		}
	}
	if t.OOMScore != nil {
		if err := t.Machine.SetOOMScore(*t.OOMScore); err != nil {
			t.Log.Warn("oomScoreAdj is not set: when memory runs out, the agent is killed like any other process", "oomScoreAdj", *t.OOMScore, "error", err)
		}
	}
	if t.AgentCgroup != "" {
		g, err := t.Machine.Group(t.AgentCgroup)
		if err == nil {
			err = g.Join()
		}
		if err != nil {
			t.Log.Warn("kubeletCgroups: the agent stays in the cgroup in which it was started", "cgroup", t.AgentCgroup, "error", err)
		}
	}
	return nil
}

// GathersDaemons reports whether Run has anything to do.
func (t *Tuner) GathersDaemons() bool { return t.SystemCgroup != "" }

// gatherPeriod is the interval between searches for daemons without a cgroup.
const gatherPeriod = time.Minute

// Run moves the machine's daemons into their cgroup until ctx is done. It logs an error once, until
// it changes.
func (t *Tuner) Run(ctx context.Context) error {
	ticker := time.NewTicker(gatherPeriod)
	defer ticker.Stop()
	lastLogged := ""
	for {
		moved, err := t.gather()
		if moved > 0 {
			t.Log.Info("processes were moved into systemCgroups", "cgroup", t.SystemCgroup, "processes", moved)
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != lastLogged {
			t.Log.Warn("systemCgroups: processes stay where they are", "cgroup", t.SystemCgroup, "error", err)
		}
		lastLogged = text
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (t *Tuner) gather() (moved int, err error) {
	g, err := t.Machine.Group(t.SystemCgroup)
	if err != nil {
		return 0, err
	}
	return g.Gather()
}

// kernel applies the policy for kernel settings.
func (t *Tuner) kernel() error {
	if t.Kernel == LeaveKernel {
		return nil
	}
	wrong := compare(needed, t.Machine.ReadSysctl)
	if t.Kernel == DemandKernel {
		return demand(wrong)
	}
	var set []string
	var failed []error
	for _, d := range wrong {
		if err := t.Machine.WriteSysctl(d.name, d.want); err != nil {
			failed = append(failed, errors.Join(d.err, err))
			continue
		}
		set = append(set, d.change())
	}
	if len(set) > 0 {
		t.Log.Info("kernel settings were changed to what pods need; protectKernelDefaults: true has the agent leave them", "settings", set)
	}
	if len(failed) > 0 {
		t.Log.Warn("kernel settings are not what pods need, and cannot be set", "error", errors.Join(failed...))
	}
	return nil
}
