package containermanager_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/config"
	"berth/internal/host/inotify"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/resources/containermanager"
	"berth/internal/resources/cpumanager"
	"berth/internal/resources/devicemanager"
	"berth/internal/resources/devicemanager/devicetest"
	"berth/internal/resources/dra"
	"berth/internal/resources/machine"
	"berth/internal/resources/machine/machinetest"
	"berth/internal/resources/memorymanager"
	"berth/internal/resources/topologymanager"
)

const (
	gi = 1 << 30
	// reservedCPUs and reservedMemory are what the host keeps.
	reservedCPUs   = 1
	reservedMemory = gi
)

// world is a machine in a bubble: its sockets and its runtime are in memory, its files are files.
type world struct {
	t        *testing.T
	r        *rand.Rand
	dir      string
	machine  machine.Machine
	cpu      cpumanager.Config
	memory   memorymanager.Config
	topology topologymanager.Config

	*containermanager.ContainerManager
	end func() // ends the agent

	api    *kubetest.Server
	client *kube.Client

	mu      sync.Mutex
	sockets map[string]*bufconn.Listener // guarded by mu
	runs    map[pod.ContainerID]running  // guarded by mu
}

// running is a container that runs.
type running struct {
	uid  pod.UID
	name string
	cpus string
	at   time.Time
}

var (
	machines   = []string{"laptop", "virtual", "small EPYC", "sub-NUMA", "sockets in nodes", "memory node", "offline", "idle node", "no NUMA", "ARM"}
	policies   = []string{topologymanager.None, topologymanager.BestEffort, topologymanager.Restricted, topologymanager.SingleNUMANode}
	scopes     = []string{topologymanager.ContainerScope, topologymanager.PodScope}
	cpuOptions = []string{
		"full-pcpus-only", "strict-cpu-reservation", "prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa", "align-by-socket", "distribute-cpus-across-cores",
	}
)

func oneOf[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

// newWorld draws a machine, policies and options.
func newWorld(t *testing.T, r *rand.Rand) *world {
	w := &world{t: t, r: r, dir: t.TempDir(), api: kubetest.New(), sockets: map[string]*bufconn.Listener{}, runs: map[pod.ContainerID]running{}}
	shape := machinetest.Known[oneOf(r, machines)]
	shape.Memory, shape.HugePages = 8*gi, map[int64]int64{gi: 2}
	w.machine = shape.Machine()
	log := slog.New(slog.DiscardHandler)
	var err error
	if w.client, err = kube.Open(kube.Config{REST: w.api.Config(), Log: log}); err != nil {
		t.Fatal(err)
	}
	w.memory = memorymanager.Config{
		Policy: oneOf(r, []string{memorymanager.Static, memorymanager.Static, memorymanager.None}), Machine: &w.machine,
		Reserved:                   []config.MemoryReservation{{NumaNode: int32(w.machine.Nodes[0].ID), Limits: v1.ResourceList{v1.ResourceMemory: *resource.NewQuantity(reservedMemory, resource.BinarySI)}}},
		NodeAllocatableReservation: v1.ResourceList{v1.ResourceMemory: *resource.NewQuantity(reservedMemory, resource.BinarySI)},
		StateFile:                  filepath.Join(w.dir, "memory_manager_state"), Journal: journal.New(log), Log: log,
	}
	w.drawTopology()
	w.cpu = cpumanager.Config{
		Gates: cpumanager.Gates{BetaOptions: true, AlphaOptions: true}, Machine: &w.machine, ReservedMilliCPU: 1000 * reservedCPUs,
		StateFile: filepath.Join(w.dir, "cpu_manager_state"), Runtime: w, Newest: w.newest, Log: log,
	}
	for {
		w.drawCPUs()
		if _, err := cpumanager.New(w.cpu); err == nil { // not all options go with each other
			return w
		}
	}
}

func (w *world) drawTopology() {
	w.topology = topologymanager.Config{
		Policy: oneOf(w.r, policies), Scope: oneOf(w.r, scopes), Machine: &w.machine, Note: func(*v1.Pod, string, string, string) {},
	}
	if w.r.IntN(2) == 0 {
		w.topology.Options = map[string]string{"prefer-closest-numa-nodes": "true"}
	}
	if _, err := topologymanager.New(w.topology); err != nil {
		w.topology.Options = nil // the machine does not tell of distances
	}
}

func (w *world) drawCPUs() {
	w.cpu.Policy, w.cpu.Options, w.cpu.TopologyPolicy = cpumanager.Static, map[string]string{}, w.topology.Policy
	if w.r.IntN(6) == 0 {
		w.cpu.Policy = cpumanager.None
		return
	}
	for range w.r.IntN(4) {
		w.cpu.Options[oneOf(w.r, cpuOptions)] = "true"
	}
}

// build reads what the files say.
func (w *world) build() *containermanager.ContainerManager {
	w.t.Helper()
	nodes := topologymanager.Nodes(0)
	for _, n := range w.machine.Nodes {
		nodes |= topologymanager.NodesOf(n.ID)
	}
	log := slog.New(slog.DiscardHandler)
	devices, err := devicemanager.New(devicemanager.Config{
		Dir: w.dir, Nodes: nodes, Changed: pod.NewInbox[pod.UID](), Listen: w.listen, Dial: w.dial, Journal: journal.New(log), Log: log,
		CapacityChanged: func() {},
		Watch:           func() (devicemanager.Watch, error) { return watch(make(chan inotify.Event)), nil },
	})
	var cpus *cpumanager.CPUManager
	var memory *memorymanager.Manager
	var topology *topologymanager.Manager
	var claims *dra.Manager
	c := w.cpu
	c.Changed, c.Journal = pod.NewInbox[pod.UID](), journal.New(log)
	if err == nil {
		cpus, err = cpumanager.New(c)
	}
	if err == nil {
		memory, err = memorymanager.New(w.memory)
	}
	if err == nil {
		claims, err = dra.New(dra.Config{
			API: kube.PodObjects{Client: w.client}, NodeName: "here", StateFile: filepath.Join(w.dir, "dra_manager_state"), HealthFile: filepath.Join(w.dir, "dra_health_state"),
			Reporting: dra.ReportNothing, Dial: w.dial, Journal: journal.New(log), Log: log,
		})
	}
	if err == nil {
		err = errors.Join(devices.Load(), cpus.Load(), memory.Load(), claims.Load())
	}
	if err == nil {
		c := w.topology
		c.Providers = []topologymanager.Provider{devices, cpus, memory}
		topology, err = topologymanager.New(c)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.cpu.Changed = c.Changed
	return containermanager.New(containermanager.Config{Devices: devices, CPUs: cpus, Memory: memory, Topology: topology, Claims: claims})
}

// start starts an agent.
func (w *world) start() {
	w.t.Helper()
	_ = os.Remove(filepath.Join(w.dir, "kubelet.sock"))
	w.ContainerManager = w.build()
	ctx, cancel := context.WithCancel(context.Background())
	runs := []func(context.Context) error{w.Run, w.Devices.Run, w.CPUs.Run, w.Claims.Run}
	done := make(chan error, len(runs))
	for _, run := range runs {
		go func() { done <- run(ctx) }()
	}
	w.end = func() {
		w.end = func() {}
		cancel()
		for range runs {
			if err := <-done; !errors.Is(err, context.Canceled) {
				w.t.Errorf("Run: %v", err)
			}
		}
	}
	w.mu.Lock()
	for _, c := range w.runs {
		w.cpu.Changed.Put(c.uid)
	}
	w.mu.Unlock()
	synctest.Wait()
}

// watch is a folder in which nothing happens.
type watch chan inotify.Event

func (watch) Add(string) error               { return nil }
func (w watch) Events() <-chan inotify.Event { return w }
func (watch) Close() error                   { return nil }

func (w *world) listen(path string) (net.Listener, error) {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, err
	}
	return w.open(path), nil
}

func (w *world) open(path string) net.Listener {
	l := bufconn.Listen(64 << 10)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sockets[path] = l
	return l
}

func (w *world) dial(ctx context.Context, path string) (net.Conn, error) {
	w.mu.Lock()
	l := w.sockets[path]
	w.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("connect %s: no such file or directory", filepath.Base(path))
	}
	return l.DialContext(ctx)
}

// register has the plugin register.
func (w *world) register(p *devicetest.Plugin) error {
	err := p.RegisterBy(w.t.Context(), func(ctx context.Context) (net.Conn, error) { return w.dial(ctx, filepath.Join(w.dir, "kubelet.sock")) })
	synctest.Wait()
	return err
}

// newest is what runs of the pod.
func (w *world) newest(uid pod.UID) (*pod.Status, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &pod.Status{UID: uid, Name: string(uid)}
	for id, c := range w.runs {
		if c.uid == uid {
			s.Containers = append(s.Containers, pod.ContainerStatus{ID: id, Name: c.name, State: pod.StateRunning, CreatedAt: c.at})
		}
	}
	return s, true
}

// UpdateContainerResources moves a container that runs.
func (w *world) UpdateContainerResources(_ context.Context, id pod.ContainerID, r *runtimeapi.LinuxContainerResources) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.runs[id]
	if !ok {
		return errors.New("not found")
	}
	c.cpus = r.GetCpusetCpus()
	w.runs[id] = c
	return nil
}

// run has the container run, or, without CPUs, end.
func (w *world) run(uid pod.UID, name string, change func(runs map[pod.ContainerID]running, id pod.ContainerID)) {
	w.mu.Lock()
	change(w.runs, pod.ContainerID(string(uid)+"/"+name))
	w.mu.Unlock()
	w.cpu.Changed.Put(uid)
	synctest.Wait()
}

// has says what the container has, of everything.
func has(m *containermanager.ContainerManager, uid pod.UID, container string) string {
	var out []string
	for _, d := range m.Devices.Devices(uid, container) {
		out = append(out, fmt.Sprintf("%s=%s@%v", d.Resource, d.ID, d.Nodes))
	}
	if cpus := m.CPUs.Exclusive(uid, container); !cpus.IsEmpty() {
		out = append(out, "cpus="+cpus.String())
	}
	for _, b := range m.Memory.Memory(uid, container) {
		out = append(out, fmt.Sprintf("%s=%d@%s", b.Type, b.Size, cpuset.New(b.NUMAAffinity...)))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
