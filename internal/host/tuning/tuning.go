// Package tuning sets what the KubeletConfiguration says of the machine's kernel and of the agent's
// own process: six kernel settings, the OOM score, the limit of open files, cgroups of daemons.
//
// Owns: which kernel settings pods need.
// Reads: kernel settings below /proc/sys, the limits of the agent's process.
// Never: writes to a cgroup itself (package cgroups does), sets anything that was not asked for.
package tuning

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Settings are what to set. nil, and the zero value of each field, leaves everything as it is.
type Settings struct {
	Kernel KernelPolicy
	// OOMScore is the agent's own (proc_pid_oom_score_adj(5)); nil leaves it.
	OOMScore *int
	// OpenFiles is how many files the agent may have open at least; 0 leaves the limit.
	OpenFiles uint64
	// AgentCgroup is that of the agent, SystemCgroup that of the daemons of the machine that are in
	// no other; "" moves nothing.
	AgentCgroup, SystemCgroup string
}

// KernelPolicy is what is done about kernel settings that are not as pods need them.
type KernelPolicy int

// The policies: protectKernelDefaults: false is SetKernel, true is DemandKernel.
const (
	LeaveKernel KernelPolicy = iota
	SetKernel
	DemandKernel
)

// Machine is what is set.
type Machine interface {
	Sysctls
	Process
	// Group makes a cgroup, if it is not there.
	Group(cgroup string) (Group, error)
}

// Sysctls are the kernel's settings, by names such as vm.overcommit_memory.
type Sysctls interface {
	ReadSysctl(name string) (int, error)
	WriteSysctl(name string, value int) error
}

// Process is the agent's own process.
type Process interface {
	SetOOMScore(score int) error
	// RaiseOpenFiles has the process open so many files at least.
	RaiseOpenFiles(n uint64) error
}

// Group is a cgroup, in each hierarchy.
type Group interface {
	// Join moves the agent into it.
	Join() error
	// Gather moves those processes into it that are in no cgroup, but for threads of the kernel and
	// the first process, and returns how many.
	Gather() (moved int, err error)
}

// Tuner sets what Settings say.
type Tuner struct {
	Settings
	Machine Machine
	Log     *slog.Logger
}

// Start sets everything once, before the agent starts anything else: what it starts inherits. What
// cannot be set is warned of; only kernel settings that are demanded are an error.
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

// gatherPeriod is how often daemons are looked for that are in no cgroup.
const gatherPeriod = time.Minute

// Run gathers the daemons of the machine in their cgroup until ctx is done. An error that stays the
// same is told once.
func (t *Tuner) Run(ctx context.Context) error {
	ticker := time.NewTicker(gatherPeriod)
	defer ticker.Stop()
	told := ""
	for {
		moved, err := t.gather()
		if moved > 0 {
			t.Log.Info("processes were moved into systemCgroups", "cgroup", t.SystemCgroup, "processes", moved)
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != told {
			t.Log.Warn("systemCgroups: processes stay where they are", "cgroup", t.SystemCgroup, "error", err)
		}
		told = text
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

// kernel has the kernel's settings as pods need them.
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
