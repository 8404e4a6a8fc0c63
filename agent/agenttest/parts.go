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

// DiskSize is the size of the image filesystem in bytes.
const DiskSize = 100 << 30

// parts are the components of an in-memory node.
type parts struct {
	Runtime *critest.Runtime
	Cgroups *Cgroups
	// Network simulates the ports of pods.
	Network *Network
	// Usage is the available resources of the machine.
	Usage *Usage
	// DiskUsed is the usage of the image filesystem in percent.
	DiskUsed atomic.Int64

	uplink  *uplink
	mounts  *mountTable // mounts of the machine
	logind  Logind
	sockets hostSockets
	kernel  kernel
	// shape is the topology of CPUs and memory.
	shape machinetest.Shape
	// pluginWatches report the sockets of plugins.
	pluginWatches pluginWatches
}

func newParts(r *critest.Runtime) *parts {
	return &parts{
		Runtime: r, Cgroups: &Cgroups{runtime: r, pods: map[pod.UID]*podCgroup{}, deaf: map[string]bool{}}, Network: newNetwork(r), Usage: newUsage(r),
		uplink: newUplink(), mounts: &mountTable{FakeMounter: mount.NewFakeMounter(nil)}, kernel: newKernel(), shape: usualShape,
	}
}

// outside returns the machine as an agent's environment. Manifests and the agent's socket are real
// files.
func (p *parts) outside() agent.Environment {
	return agent.Environment{
		DialCRI: p.Runtime.Dialer(), Cgroups: p.Cgroups, Kernel: p.kernel, Mounter: p.mounts,
		Plugins:       p.pluginWatches.watch,
		Layout:        p.layout,
		LogWrites:     func() (containerlogs.Writes, error) { return quietLogs{}, nil },
		ListenPlugins: listenPlugins,
		Tuning:        quietTuning{}, Chains: quietChains{}, HostPorts: &p.sockets, Readings: p.Usage, Logind: p.logind.connect,
		Machine: nodeMachine, Network: p.uplink.network(), Dial: p.Network.Dial,
		Random: func() float64 { return 0.5 }, // for the same times in each run
		Disk: func(string) (capacity, available uint64, err error) {
			return DiskSize, DiskSize / 100 * uint64(100-p.DiskUsed.Load()), nil
		},
	}
}

type quietWatch struct{}

// quietChains is an iptables in which all chains exist.
type quietChains struct{}

func (quietChains) Run(context.Context, string, ...string) (string, error) {
	return "", nil
}

func (quietChains) Follow(ctx context.Context, _ []string, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}

// quietTuning is a machine that needs no tuning.
type quietTuning struct{ tuning.Machine }

func (quietTuning) ReadSysctl(string) (int, error) { return 0, nil }
func (quietTuning) WriteSysctl(string, int) error  { return nil }
func (quietTuning) SetOOMScore(int) error          { return nil }
func (quietTuning) RaiseOpenFiles(uint64) error    { return nil }

// quietLogs is a watch that never reports a write to a log.
type quietLogs struct{}

func (quietLogs) Watch(*os.File) (id int, err error) { return 0, nil }
func (quietLogs) Forget(int) error                   { return nil }
func (quietLogs) Written() <-chan int                { return nil }
func (quietLogs) Close() error                       { return nil }

func (quietWatch) Add(string) error { return nil }
func (quietWatch) Remove(string)    {}

// quietRules is a watch that never reports a change of rules.
type quietRules struct{}

func watchNothing() (auth.Watcher, error) { return quietRules{}, nil }

func (quietRules) Add(string) error             { return nil }
func (quietRules) Events() <-chan inotify.Event { return nil }
func (quietRules) Close() error                 { return nil }

func (quietWatch) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
