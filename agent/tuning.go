package agent

import (
	"context"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/config"
	"berth/internal/host/iptables"
	"berth/internal/host/tuning"
	"berth/internal/record/events"
)

// tuningOf returns the configured settings of the kernel and the agent's process.
func tuningOf(k *config.Kubelet) tuning.Settings {
	score := int(*k.OOMScoreAdj)
	s := tuning.Settings{
		Kernel: tuning.SetKernel, OOMScore: &score, OpenFiles: uint64(k.MaxOpenFiles), AgentCgroup: k.KubeletCgroups, SystemCgroup: k.SystemCgroups,
	}
	if k.ProtectKernelDefaults {
		s.Kernel = tuning.DemandKernel
	}
	return s
}

func newTuner(b *base) *tuning.Tuner {
	machine := b.out.Tuning
	if machine == nil {
		machine = tuning.Host{Proc: "/proc"}
	}
	return &tuning.Tuner{Settings: b.settings.tuning, Machine: machine, Log: b.cfg.Log}
}

// reconcileChains maintains the iptables chains that other programs expect of a kubelet.
func reconcileChains(b *base) func(context.Context) error {
	k := iptables.Keeper{Machine: b.out.Chains, Log: b.cfg.Log}
	if k.Machine == nil {
		k.Machine = iptables.Host{}
	}
	return k.Run
}

// swapsFile lists the swap areas (proc_swaps(5)): a title, and a line for each.
const swapsFile = "/proc/swaps"

// swaps reports whether swapsFile lists a swap area.
func swaps(content []byte) bool { return strings.Count(string(content), "\n") > 1 }

// reportSwappedMemory warns if memory-backed volumes, which hold Secrets, may be swapped to disk:
// swap is on, and tmpfs has no noswap option.
func (g *dependencies) reportSwappedMemory(swapsFile string, noswap func() bool) {
	content, err := os.ReadFile(swapsFile)
	if err != nil || !swaps(content) || noswap() {
		return
	}
	const message = "the machine swaps, and tmpfs of its kernel cannot be kept out of that (noswap, from Linux 6.4 on): " +
		"volumes in memory, such as those of Secrets, may be written to a disk; turn swap off, encrypt it, or take a newer kernel"
	g.cfg.Log.Warn(message)
	g.recorder.NodeEvent(v1.EventTypeWarning, "PossibleMemoryBackedVolumesOnDisk", message)
}

// cgroupV1 is the message for a host with cgroup v1 (KEP-5573: removal of cgroup v1).
const cgroupV1 = "cgroup v1 support is unsupported and will be removed in a future release"

// tellCgroupV1 records a warning for a host with cgroup v1.
func tellCgroupV1(r *events.Recorder, version int) {
	if version == 1 {
		r.NodeEvent(v1.EventTypeWarning, "CgroupV1", cgroupV1)
	}
}
