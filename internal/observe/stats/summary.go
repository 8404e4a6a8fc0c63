package stats

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"berth/internal/host/cgroupstat"
)

// Scope selects the parts of a summary.
type Scope int

const (
	// Full is everything.
	Full Scope = iota
	// CPUAndMemory leaves out the slow parts: disks, networks, volumes (only_cpu_and_memory=true).
	CPUAndMemory
)

// walkLimit bounds how long one request waits for directories that were never walked. They are left
// out until a later request.
const walkLimit = 5 * time.Second

// Summary returns the usage of node and pods in the form of the Summary API, or an error if any
// part fails.
func (c *Collector) Summary(ctx context.Context, scope Scope) (*summary.Summary, error) {
	r, err := c.Read(ctx)
	if err != nil {
		return nil, err
	}
	m := c.proc.machine()
	s := &summary.Summary{Node: c.nodeStats(r, m, scope), Pods: []summary.PodStats{}}
	var root fileSystem
	if scope == Full {
		if root, err = statfs(c.cfg.RootDir); err != nil {
			return nil, fmt.Errorf("file system of the node: %w", err)
		}
		s.Node.Fs = fsOf(root, root.capacity-root.free, root.inodes-root.inodesFree)
		s.Node.Fs.Time = metav1.NewTime(r.Root.Time)
		if s.Node.Runtime, err = c.runtimeStats(ctx); err != nil {
			return nil, err
		}
	}
	wait, cancel := context.WithTimeout(ctx, walkLimit)
	defer cancel()
	if scope == Full {
		for i := range r.Pods {
			c.claimed.begin(c.podOf(&r.Pods[i]))
		}
	}
	for i := range r.Pods {
		p := podStats(&r.Pods[i], scope)
		if scope == Full {
			c.addStorage(wait, &r.Pods[i], &p, root)
		}
		s.Pods = append(s.Pods, p)
	}
	return s, nil
}

func (c *Collector) nodeStats(r *Readings, m machine, scope Scope) summary.NodeStats {
	n := summary.NodeStats{
		NodeName: c.cfg.NodeName, StartTime: metav1.NewTime(m.boot), CPU: cpuStats(r.Root, scope), Memory: memoryStats(r.Root, scope),
	}
	if scope == CPUAndMemory {
		n.StartTime = metav1.NewTime(r.Root.Created)
	}
	at := metav1.NewTime(r.Root.Time)
	if mem := r.Root.Memory; mem != nil && m.memory > 0 {
		n.Memory.AvailableBytes = ptr.To(m.memory - min(mem.WorkingSet(), m.memory))
	}
	n.Swap = &summary.SwapStats{Time: at, SwapAvailableBytes: ptr.To(m.swapFree), SwapUsageBytes: ptr.To(m.swap - min(m.swapFree, m.swap))}
	for _, name := range []string{summary.SystemContainerKubelet, summary.SystemContainerRuntime, summary.SystemContainerMisc} {
		if g := r.System[name]; g != nil {
			ct := containerStats(name, g.Created, g, scope)
			if name == summary.SystemContainerKubelet {
				ct.StartTime = metav1.NewTime(c.cfg.Started)
			}
			n.SystemContainers = append(n.SystemContainers, ct)
		}
	}
	if len(r.Classes) > 0 {
		n.SystemContainers = append(n.SystemContainers, containerStats(summary.SystemContainerPods, r.Classes[0].Created, r.Classes[0], scope))
	}
	if scope == CPUAndMemory {
		return n
	}
	n.IO = ioStats(r.Root)
	n.Network = networkStats(r.Time, r.Network)
	n.Rlimit = &summary.RlimitStats{Time: at, MaxPID: &m.maxTasks, NumOfRunningProcesses: &m.tasks}
	return n
}

func podStats(p *Pod, scope Scope) summary.PodStats {
	out := summary.PodStats{
		PodRef:    summary.PodReference{Name: p.Name, Namespace: p.Namespace, UID: string(p.UID)},
		StartTime: metav1.NewTime(p.StartedAt), Containers: []summary.ContainerStats{},
		CPU: cpuStats(p.Reading, scope), Memory: memoryStats(p.Reading, scope), Swap: swapStats(p.Reading),
	}
	var processes uint64
	for i := range p.Containers {
		ct := &p.Containers[i]
		out.Containers = append(out.Containers, containerStats(ct.Name, ct.CreatedAt, ct.Reading, scope))
		if ct.Reading != nil && ct.Reading.Pids != nil {
			processes += ct.Reading.Pids.Processes
		}
	}
	if scope == Full {
		out.IO = ioStats(p.Reading)
		out.ProcessStats = &summary.ProcessStats{ProcessCount: &processes}
		if p.Network != nil && p.Reading != nil {
			out.Network = networkStats(p.Reading.Time, p.Network)
		}
	}
	return out
}

func containerStats(name string, started time.Time, r *Reading, scope Scope) summary.ContainerStats {
	out := summary.ContainerStats{
		Name: name, StartTime: metav1.NewTime(started), CPU: cpuStats(r, scope), Memory: memoryStats(r, scope), Swap: swapStats(r),
	}
	if scope == Full {
		out.IO = ioStats(r)
	}
	return out
}

func cpuStats(r *Reading, scope Scope) *summary.CPUStats {
	if r == nil || r.CPU == nil {
		return nil
	}
	out := &summary.CPUStats{Time: metav1.NewTime(r.Time), UsageNanoCores: r.NanoCores, UsageCoreNanoSeconds: ptr.To(r.CPU.Usage)}
	if r.Pressure != nil && scope == Full {
		out.PSI = psiStats(r.Pressure.CPU)
	}
	return out
}

func memoryStats(r *Reading, scope Scope) *summary.MemoryStats {
	if r == nil {
		return nil
	}
	m := r.Memory
	if m == nil { // the controller is not available
		return &summary.MemoryStats{Time: metav1.NewTime(r.Time), WorkingSetBytes: ptr.To[uint64](0)}
	}
	out := &summary.MemoryStats{
		Time: metav1.NewTime(r.Time), UsageBytes: ptr.To(m.Usage), WorkingSetBytes: ptr.To(m.WorkingSet()), RSSBytes: ptr.To(m.RSS),
		PageFaults: ptr.To(m.Faults), MajorPageFaults: ptr.To(m.MajorFaults),
	}
	if m.Limit != cgroupstat.Unlimited {
		out.AvailableBytes = ptr.To(m.Limit - min(m.WorkingSet(), m.Limit))
	}
	if r.Pressure != nil && scope == Full {
		out.PSI = psiStats(r.Pressure.Memory)
	}
	return out
}

func swapStats(r *Reading) *summary.SwapStats {
	if r == nil || r.Memory == nil {
		return nil
	}
	out := &summary.SwapStats{Time: metav1.NewTime(r.Time), SwapUsageBytes: ptr.To(r.Memory.Swap)}
	if limit := r.Memory.SwapLimit; limit != cgroupstat.Unlimited {
		out.SwapAvailableBytes = ptr.To(limit - min(r.Memory.Swap, limit))
	}
	return out
}

// ioStats has only the pressure (KEP-4205).
func ioStats(r *Reading) *summary.IOStats {
	if r == nil || r.Pressure == nil || r.Pressure.IO == nil {
		return nil
	}
	return &summary.IOStats{Time: metav1.NewTime(r.Time), PSI: psiStats(r.Pressure.IO)}
}

func psiStats(s *cgroupstat.Stall) *summary.PSIStats {
	if s == nil {
		return nil
	}
	of := func(x cgroupstat.Stalled) summary.PSIData {
		return summary.PSIData{Total: x.Total, Avg10: x.Avg10, Avg60: x.Avg60, Avg300: x.Avg300}
	}
	return &summary.PSIStats{Some: of(s.Some), Full: of(s.Full)}
}

// defaultInterface is the interface whose counters represent the whole network.
const defaultInterface = "eth0"

func networkStats(at time.Time, interfaces []Interface) *summary.NetworkStats {
	if interfaces == nil {
		return nil
	}
	out := &summary.NetworkStats{Time: metav1.NewTime(at)}
	for i := range interfaces {
		n := interfaces[i]
		s := summary.InterfaceStats{Name: n.Name, RxBytes: &n.RxBytes, RxErrors: &n.RxErrors, TxBytes: &n.TxBytes, TxErrors: &n.TxErrors}
		if n.Name == defaultInterface {
			out.InterfaceStats = s
		}
		out.Interfaces = append(out.Interfaces, s)
	}
	return out
}

// fsOf combines a file system's capacity with a usage.
func fsOf(f fileSystem, used, inodesUsed uint64) *summary.FsStats {
	return &summary.FsStats{
		Time: metav1.NewTime(f.at), AvailableBytes: &f.available, CapacityBytes: &f.capacity, UsedBytes: &used,
		InodesFree: &f.inodesFree, Inodes: &f.inodes, InodesUsed: &inodesUsed,
	}
}

// runtimeStats returns the file systems of images and writable layers, as reported by the runtime.
func (c *Collector) runtimeStats(ctx context.Context) (*summary.RuntimeStats, error) {
	info, err := c.cfg.Runtime.ImageFsInfo(ctx)
	if err != nil {
		return nil, fmt.Errorf("image file system: %w", err)
	}
	if len(info.GetImageFilesystems()) == 0 {
		return nil, nil
	}
	out := &summary.RuntimeStats{ImageFs: fsOfUsage(info.ImageFilesystems[0])}
	out.ContainerFs = out.ImageFs
	if of := info.GetContainerFilesystems(); len(of) > 0 && of[0].GetFsId().GetMountpoint() != "" {
		out.ContainerFs = fsOfUsage(of[0])
	}
	return out, nil
}

// fsOfUsage converts the usage of a runtime's directory, with the capacity of its file system.
func fsOfUsage(u *runtimeapi.FilesystemUsage) *summary.FsStats {
	out := &summary.FsStats{Time: metav1.NewTime(time.Unix(0, u.GetTimestamp()))}
	if v := u.GetUsedBytes(); v != nil {
		out.UsedBytes = &v.Value
	}
	if v := u.GetInodesUsed(); v != nil {
		out.InodesUsed = &v.Value
	}
	if f, err := statfs(u.GetFsId().GetMountpoint()); err == nil {
		out.AvailableBytes, out.CapacityBytes, out.Inodes, out.InodesFree = &f.available, &f.capacity, &f.inodes, &f.inodesFree
	}
	return out
}

// podOf returns the desired pod, or an empty one without volumes.
func (c *Collector) podOf(p *Pod) *v1.Pod {
	if spec, ok := c.cfg.Pod(p.UID); ok {
		return spec
	}
	return &v1.Pod{}
}
