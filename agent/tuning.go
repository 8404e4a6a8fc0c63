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

// tuningOf returns what the configuration says of the kernel and of the agent's process.
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

// reconcileChains keeps the chains that other programs expect of a kubelet in iptables.
func reconcileChains(b *base) func(context.Context) error {
	k := iptables.Keeper{Machine: b.out.Chains, Log: b.cfg.Log}
	if k.Machine == nil {
		k.Machine = iptables.Host{}
	}
	return k.Run
}

// swapsFile lists what the machine swaps to (proc_swaps(5)): a title, and a line for each.
const swapsFile = "/proc/swaps"

// swaps reports whether a machine with that swapsFile swaps.
func swaps(content []byte) bool { return strings.Count(string(content), "\n") > 1 }

// reportSwappedMemory warns where volumes in memory, with Secrets in them, may reach a disk:
// with such a swapsFile, and a tmpfs that has no option to be kept out of that.
func (g *ground) reportSwappedMemory(swapsFile string, noswap func() bool) {
	content, err := os.ReadFile(swapsFile)
	if err != nil || !swaps(content) || noswap() {
		return
	}
	const message = "the machine swaps, and tmpfs of its kernel cannot be kept out of that (noswap, from Linux 6.4 on): " +
		"volumes in memory, such as those of Secrets, may be written to a disk; turn swap off, encrypt it, or take a newer kernel"
	g.cfg.Log.Warn(message)
	g.recorder.NodeEvent(v1.EventTypeWarning, "PossibleMemoryBackedVolumesOnDisk", message)
}

// cgroupV1 is what is to be known of such a host (KEP-5573: cgroup v1 goes).
const cgroupV1 = "cgroup v1 support is unsupported and will be removed in a future release"

// tellCgroupV1 warns of a host with version 1 of cgroups.
func tellCgroupV1(r *events.Recorder, version int) {
	if version == 1 {
		r.NodeEvent(v1.EventTypeWarning, "CgroupV1", cgroupV1)
	}
}
