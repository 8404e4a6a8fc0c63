package agenttest

import (
	"context"
	"os"
	"sync/atomic"

	mount "k8s.io/mount-utils"

	"berth/agent"
	"berth/internal/host/inotify"
	"berth/internal/host/tuning"
	"berth/internal/localapi/auth"
	"berth/internal/pod"
	"berth/internal/resources/machine/machinetest"
	"berth/internal/runtime/containerlogs"
	"berth/internal/runtime/cri/critest"
)

// DiskSize is the size of the disk of images, in bytes.
const DiskSize = 100 << 30

// parts are what a machine in memory consists of.
type parts struct {
	Runtime *critest.Runtime
	Cgroups *Cgroups
	// Network is what answers at the ports of pods.
	Network *Network
	// Usage is what the machine has left.
	Usage *Usage
	// DiskUsed is how much of the disk of images is in use, in percent.
	DiskUsed atomic.Int64

	uplink  *uplink
	mounts  *mountTable // what is mounted on the machine
	logind  Logind
	sockets hostSockets
	kernel  kernel
	// shape is how the CPUs and the memory of the machine lie.
	shape machinetest.Shape
	// pluginWatches tell of the sockets of plugins.
	pluginWatches pluginWatches
}

func newParts(r *critest.Runtime) *parts {
	return &parts{
		Runtime: r, Cgroups: &Cgroups{runtime: r, pods: map[pod.UID]*podCgroup{}, deaf: map[string]bool{}}, Network: newNetwork(r), Usage: newUsage(r),
		uplink: newUplink(), mounts: &mountTable{FakeMounter: mount.NewFakeMounter(nil)}, kernel: newKernel(), shape: usualShape,
	}
}

// outside returns the machine as an agent sees it. Manifests, and the agent's socket, are those of
// the real one.
func (p *parts) outside() agent.Outside {
	return agent.Outside{
		DialCRI: p.Runtime.Dialer(), Cgroups: p.Cgroups, Kernel: p.kernel, Mounter: p.mounts,
		Plugins:       p.pluginWatches.watch,
		Layout:        p.layout,
		LogWrites:     func() (containerlogs.Writes, error) { return quietLogs{}, nil },
		ListenPlugins: listenPlugins,
		Tuning:        quietTuning{}, Chains: quietChains{}, HostPorts: &p.sockets, Readings: p.Usage, Logind: p.logind.connect,
		Machine: nodeMachine, Network: p.uplink.network(), Dial: p.Network.Dial,
		Random: func() float64 { return 0.5 }, // so that each run tells the same times
		Disk: func(string) (capacity, available uint64, err error) {
			return DiskSize, DiskSize / 100 * uint64(100-p.DiskUsed.Load()), nil
		},
	}
}

type quietWatch struct{}

// quietChains is an iptables that has all chains.
type quietChains struct{}

func (quietChains) Run(context.Context, string, ...string) (string, error) {
	return "", nil
}

func (quietChains) Follow(ctx context.Context, _ []string, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}

// quietTuning is a machine that is as it should be.
type quietTuning struct{ tuning.Machine }

func (quietTuning) ReadSysctl(string) (int, error) { return 0, nil }
func (quietTuning) WriteSysctl(string, int) error  { return nil }
func (quietTuning) SetOOMScore(int) error          { return nil }
func (quietTuning) RaiseOpenFiles(uint64) error    { return nil }

// quietLogs is a watch that never tells of a write to a log.
type quietLogs struct{}

func (quietLogs) Watch(*os.File) (id int, err error) { return 0, nil }
func (quietLogs) Forget(int) error                   { return nil }
func (quietLogs) Written() <-chan int                { return nil }
func (quietLogs) Close() error                       { return nil }

func (quietWatch) Add(string) error { return nil }
func (quietWatch) Remove(string)    {}

// quietRules is a watch that never tells of a change of rules.
type quietRules struct{}

func watchNothing() (auth.Watcher, error) { return quietRules{}, nil }

func (quietRules) Add(string) error             { return nil }
func (quietRules) Events() <-chan inotify.Event { return nil }
func (quietRules) Close() error                 { return nil }

func (quietWatch) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
