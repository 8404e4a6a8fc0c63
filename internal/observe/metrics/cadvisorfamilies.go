package metrics

import (
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/procfs/blockdevice"

	"berth/internal/host/cgroupstat"
	"berth/internal/observe/stats"
)

// target is a cgroup with its cAdvisor labels.
type target struct {
	*stats.Reading
	labels     []string
	root       bool
	interfaces []stats.Interface // of a sandbox and of the root
	kills      uint64
	files      *stats.Files // of a container or sandbox; nil: unknown
	disks      []stats.Disk // of the root
}

// emit sends a sample with the values of the metric's own labels.
type emit func(value float64, labels ...string)

type family struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string // besides cadvisorLabels
	undated    bool     // a setting, without timestamp
	samples    func(t target, send emit)
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// ofCPU, ofMemory and ofPids are metrics of one sample that requires the controller.
func ofCPU(f func(*cgroupstat.CPU) float64) func(target, emit) {
	return func(t target, send emit) {
		if t.CPU != nil {
			send(f(t.CPU))
		}
	}
}

func ofQuota(f func(*cgroupstat.CPU) float64) func(target, emit) {
	return func(t target, send emit) {
		if t.CPU != nil && t.CPU.Quota != 0 {
			send(f(t.CPU))
		}
	}
}

func ofMemory(f func(*cgroupstat.Memory) uint64) func(target, emit) {
	return func(t target, send emit) {
		if t.Memory != nil {
			send(float64(f(t.Memory)))
		}
	}
}

func ofPids(f func(*cgroupstat.Pids) uint64) func(target, emit) {
	return func(t target, send emit) {
		if t.Pids != nil {
			send(float64(f(t.Pids)))
		}
	}
}

func ofFiles(f func(*stats.Files) uint64) func(target, emit) {
	return func(t target, send emit) {
		if t.files != nil {
			send(float64(f(t.files)))
		}
	}
}

func ofIO(f func(cgroupstat.DeviceIO) uint64) func(target, emit) {
	return func(t target, send emit) {
		for _, d := range t.IO {
			send(float64(f(d)), deviceName(d.Major, d.Minor))
		}
	}
}

// ofRequests are the I/O requests of a cgroup, and for the root those to disks that its cgroup does
// not count.
func ofRequests(f func(cgroupstat.DeviceIO) uint64, g func(*blockdevice.IOStats) uint64) func(target, emit) {
	own := ofIO(f)
	return func(t target, send emit) {
		own(t, send)
		for _, d := range t.disks {
			if d.IO != nil && !slices.ContainsFunc(t.IO, func(o cgroupstat.DeviceIO) bool { return o.Major == d.Major && o.Minor == d.Minor }) {
				send(float64(g(d.IO)), d.Device)
			}
		}
	}
}

func ofDisks(f func(stats.Disk) uint64) func(target, emit) {
	return func(t target, send emit) {
		for _, d := range t.disks {
			send(float64(f(d)), d.Device)
		}
	}
}

func ofDiskIO(f func(*blockdevice.IOStats) float64) func(target, emit) {
	return func(t target, send emit) {
		for _, d := range t.disks {
			if d.IO != nil {
				send(f(d.IO), d.Device)
			}
		}
	}
}

// ofDiskTime converts the kernel's milliseconds to seconds.
func ofDiskTime(f func(*blockdevice.IOStats) uint64) func(target, emit) {
	return ofDiskIO(func(s *blockdevice.IOStats) float64 { return float64(f(s)) / 1e3 })
}

// ofCost converts microseconds of the kernel's cost-based I/O controller to seconds.
func ofCost(f func(*cgroupstat.IOCost) uint64) func(target, emit) {
	return func(t target, send emit) {
		for _, d := range t.IO {
			if d.Cost != nil {
				send(float64(f(d.Cost))/1e6, deviceName(d.Major, d.Minor))
			}
		}
	}
}

func ofInterfaces(f func(stats.Interface) uint64) func(target, emit) {
	return func(t target, send emit) {
		for _, i := range t.interfaces {
			send(float64(f(i)), i.Name)
		}
	}
}

// ofPressure is the stall total of a resource in seconds, from the kernel's microseconds.
func ofPressure(of func(*cgroupstat.Pressure) *cgroupstat.Stall, line func(*cgroupstat.Stall) cgroupstat.Stalled) func(target, emit) {
	return func(t target, send emit) {
		if t.Pressure == nil {
			return
		}
		if s := of(t.Pressure); s != nil {
			send(float64(line(s).Total) / 1e6)
		}
	}
}

// limit returns 0 for no limit.
func limit(n uint64) uint64 {
	if n == cgroupstat.Unlimited {
		return 0
	}
	return n
}

func constant(v float64) func(target, emit) { return func(_ target, send emit) { send(v) } }

var (
	cpuStall    = func(p *cgroupstat.Pressure) *cgroupstat.Stall { return p.CPU }
	memoryStall = func(p *cgroupstat.Pressure) *cgroupstat.Stall { return p.Memory }
	ioStall     = func(p *cgroupstat.Pressure) *cgroupstat.Stall { return p.IO }
	some        = func(s *cgroupstat.Stall) cgroupstat.Stalled { return s.Some }
	full        = func(s *cgroupstat.Stall) cgroupstat.Stalled { return s.Full }
)

// families are the metrics of containers, QoS classes and the root, with cAdvisor's names and help
// texts.
var families = []family{
	{"container_last_seen", "Last time a container was seen by the exporter", gauge, nil, false, func(t target, send emit) { send(float64(t.Time.Unix())) }},
	{"container_health_state", "The result of the container's health check", gauge, nil, false, constant(-1)}, // none: CRI has no such check
	{"container_start_time_seconds", "Start time of the container since unix epoch in seconds.", gauge, nil, true, func(t target, send emit) {
		send(float64(t.Created.Unix()))
	}},
	{"container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", counter, []string{"cpu"}, false, func(t target, send emit) {
		if t.CPU != nil && t.CPU.Usage > 0 {
			send(seconds(t.CPU.Usage), "total")
		}
	}},
	{"container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", counter, nil, false, ofCPU(func(c *cgroupstat.CPU) float64 { return seconds(c.User) })},
	{"container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds.", counter, nil, false, ofCPU(func(c *cgroupstat.CPU) float64 { return seconds(c.System) })},
	{"container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", counter, nil, false, ofQuota(func(c *cgroupstat.CPU) float64 { return float64(c.Periods) })},
	{"container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.", counter, nil, false, ofQuota(func(c *cgroupstat.CPU) float64 { return float64(c.ThrottledPeriods) })},
	{"container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled.", counter, nil, false, ofQuota(func(c *cgroupstat.CPU) float64 { return seconds(c.ThrottledTime) })},
	{"container_cpu_cfs_burst_periods_total", "Number of periods when burst occurs.", counter, nil, false, ofQuota(func(c *cgroupstat.CPU) float64 { return float64(c.Bursts) })},
	{"container_cpu_cfs_burst_seconds_total", "Total time duration the container has been bursted.", counter, nil, false, ofQuota(func(c *cgroupstat.CPU) float64 { return seconds(c.BurstTime) })},
	{"container_cpu_load_average_10s", "Value of container cpu load average over the last 10 seconds.", gauge, nil, false, constant(0)},
	{"container_cpu_load_d_average_10s", "Value of container cpu load.d average over the last 10 seconds.", gauge, nil, false, constant(0)},
	{"container_tasks_state", "Number of tasks in given state", gauge, []string{"state"}, false, func(_ target, send emit) {
		for _, s := range []string{"sleeping", "running", "stopped", "uninterruptible", "iowaiting"} {
			send(0, s)
		}
	}},
	{"container_spec_cpu_period", "CPU period of the container.", gauge, nil, true, ofCPU(func(c *cgroupstat.CPU) float64 { return float64(c.Period) })},
	{"container_spec_cpu_quota", "CPU quota of the container.", gauge, nil, true, ofQuota(func(c *cgroupstat.CPU) float64 { return float64(c.Quota) })},
	{"container_spec_cpu_shares", "CPU share of the container.", gauge, nil, true, ofCPU(func(c *cgroupstat.CPU) float64 { return float64(c.Shares) })},
	{"container_spec_memory_limit_bytes", "Memory limit for the container.", gauge, nil, true, ofMemory(func(m *cgroupstat.Memory) uint64 { return limit(m.Limit) })},
	{"container_spec_memory_reservation_limit_bytes", "Memory reservation limit for the container.", gauge, nil, true, ofMemory(func(m *cgroupstat.Memory) uint64 { return m.Reservation })},
	{"container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.", gauge, nil, true, ofMemory(func(m *cgroupstat.Memory) uint64 { return limit(m.SwapLimit) })},
	{"container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", gauge, nil, false, ofMemory(func(m *cgroupstat.Memory) uint64 { return m.Usage })},
	{"container_memory_working_set_bytes", "Current working set in bytes.", gauge, nil, false, ofMemory((*cgroupstat.Memory).WorkingSet)},
	{"container_memory_rss", "Size of RSS in bytes.", gauge, nil, false, ofMemory(func(m *cgroupstat.Memory) uint64 { return m.RSS })},
	{"container_memory_cache", "Number of bytes of page cache memory.", gauge, nil, false, ofMemory(func(m *cgroupstat.Memory) uint64 { return m.Cache })},
	{"container_memory_mapped_file", "Size of memory mapped files in bytes.", gauge, nil, false, ofMemory(func(m *cgroupstat.Memory) uint64 { return m.Mapped })},
	{"container_memory_swap", "Container swap usage in bytes.", gauge, nil, false, ofMemory(func(m *cgroupstat.Memory) uint64 { return m.Swap })},
	{"container_memory_kernel_usage", "Size of kernel memory allocated in bytes.", gauge, nil, false, ofMemory(func(m *cgroupstat.Memory) uint64 { return m.Kernel })},
	{"container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", gauge, nil, false, ofMemory(func(m *cgroupstat.Memory) uint64 { return m.Peak })},
	{"container_memory_total_active_file_bytes", "Current total active file in bytes.", gauge, nil, false, ofMemory(func(m *cgroupstat.Memory) uint64 { return m.ActiveFile })},
	{"container_memory_total_inactive_file_bytes", "Current total inactive file in bytes.", gauge, nil, false, ofMemory(func(m *cgroupstat.Memory) uint64 { return m.InactiveFile })},
	{"container_memory_failcnt", "Number of memory usage hits limits", counter, nil, false, ofMemory(func(m *cgroupstat.Memory) uint64 { return m.Failures })},
	{"container_memory_failures_total", "Cumulative count of memory allocation failures.", counter, []string{"failure_type", "scope"}, false, func(t target, send emit) {
		if t.Memory == nil {
			return
		}
		for _, scope := range []string{"container", "hierarchy"} {
			send(float64(t.Memory.Faults), "pgfault", scope)
			send(float64(t.Memory.MajorFaults), "pgmajfault", scope)
		}
	}},
	{"container_oom_events_total", "Count of out of memory events observed for the container", counter, nil, false, func(t target, send emit) { send(float64(t.kills)) }},
	{"container_fs_reads_bytes_total", "Cumulative count of bytes read", counter, []string{"device"}, false, ofIO(func(d cgroupstat.DeviceIO) uint64 { return d.ReadBytes })},
	{"container_fs_writes_bytes_total", "Cumulative count of bytes written", counter, []string{"device"}, false, ofIO(func(d cgroupstat.DeviceIO) uint64 { return d.WriteBytes })},
	{"container_fs_reads_total", "Cumulative count of reads completed", counter, []string{"device"}, false, ofRequests(func(d cgroupstat.DeviceIO) uint64 { return d.Reads }, func(s *blockdevice.IOStats) uint64 { return s.ReadIOs })},
	{"container_fs_writes_total", "Cumulative count of writes completed", counter, []string{"device"}, false, ofRequests(func(d cgroupstat.DeviceIO) uint64 { return d.Writes }, func(s *blockdevice.IOStats) uint64 { return s.WriteIOs })},
	{"container_fs_sector_reads_total", "Cumulative count of sector reads completed", counter, []string{"device"}, false, ofDiskIO(func(s *blockdevice.IOStats) float64 { return float64(s.ReadSectors) })},
	{"container_fs_sector_writes_total", "Cumulative count of sector writes completed", counter, []string{"device"}, false, ofDiskIO(func(s *blockdevice.IOStats) float64 { return float64(s.WriteSectors) })},
	{"container_fs_reads_merged_total", "Cumulative count of reads merged", counter, []string{"device"}, false, ofDiskIO(func(s *blockdevice.IOStats) float64 { return float64(s.ReadMerges) })},
	{"container_fs_writes_merged_total", "Cumulative count of writes merged", counter, []string{"device"}, false, ofDiskIO(func(s *blockdevice.IOStats) float64 { return float64(s.WriteMerges) })},
	{"container_fs_read_seconds_total", "Cumulative count of seconds spent reading", counter, []string{"device"}, false, ofDiskTime(func(s *blockdevice.IOStats) uint64 { return s.ReadTicks })},
	{"container_fs_write_seconds_total", "Cumulative count of seconds spent writing", counter, []string{"device"}, false, ofDiskTime(func(s *blockdevice.IOStats) uint64 { return s.WriteTicks })},
	{"container_fs_io_current", "Number of I/Os currently in progress", gauge, []string{"device"}, false, ofDiskIO(func(s *blockdevice.IOStats) float64 { return float64(s.IOsInProgress) })},
	{"container_fs_io_time_seconds_total", "Cumulative count of seconds spent doing I/Os", counter, []string{"device"}, false, ofDiskTime(func(s *blockdevice.IOStats) uint64 { return s.IOsTotalTicks })},
	{"container_fs_io_time_weighted_seconds_total", "Cumulative weighted I/O time in seconds", counter, []string{"device"}, false, ofDiskTime(func(s *blockdevice.IOStats) uint64 { return s.WeightedIOTicks })},
	{"container_fs_io_cost_usage_seconds_total", "Cumulative IOCost usage in seconds", counter, []string{"device"}, false, ofCost(func(c *cgroupstat.IOCost) uint64 { return c.Usage })},
	{"container_fs_io_cost_wait_seconds_total", "Cumulative IOCost wait in seconds", counter, []string{"device"}, false, ofCost(func(c *cgroupstat.IOCost) uint64 { return c.Wait })},
	{"container_fs_io_cost_indebt_seconds_total", "Cumulative IOCost debt in seconds", counter, []string{"device"}, false, ofCost(func(c *cgroupstat.IOCost) uint64 { return c.Debt })},
	{"container_fs_io_cost_indelay_seconds_total", "Cumulative IOCost delay in seconds", counter, []string{"device"}, false, ofCost(func(c *cgroupstat.IOCost) uint64 { return c.Delay })},
	{"container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.", gauge, []string{"device"}, false, ofDisks(func(d stats.Disk) uint64 { return d.Capacity - d.Free })},
	{"container_fs_limit_bytes", "Number of bytes that can be consumed by the container on this filesystem.", gauge, []string{"device"}, false, ofDisks(func(d stats.Disk) uint64 { return d.Capacity })},
	{"container_fs_inodes_free", "Number of available Inodes", gauge, []string{"device"}, false, ofDisks(func(d stats.Disk) uint64 { return d.InodesFree })},
	{"container_fs_inodes_total", "Number of Inodes", gauge, []string{"device"}, false, ofDisks(func(d stats.Disk) uint64 { return d.Inodes })},
	{"container_blkio_device_usage_total", "Blkio Device bytes usage", counter, []string{"device", "major", "minor", "operation"}, false, func(t target, send emit) {
		for _, d := range t.IO {
			labels := []string{deviceName(d.Major, d.Minor), strconv.FormatUint(uint64(d.Major), 10), strconv.FormatUint(uint64(d.Minor), 10)}
			send(float64(d.ReadBytes), append(labels, "Read")...)
			send(float64(d.WriteBytes), append(labels, "Write")...)
		}
	}},
	{"container_network_receive_bytes_total", "Cumulative count of bytes received", counter, []string{"interface"}, false, ofInterfaces(func(i stats.Interface) uint64 { return i.RxBytes })},
	{"container_network_receive_packets_total", "Cumulative count of packets received", counter, []string{"interface"}, false, ofInterfaces(func(i stats.Interface) uint64 { return i.RxPackets })},
	{"container_network_receive_packets_dropped_total", "Cumulative count of packets dropped while receiving", counter, []string{"interface"}, false, ofInterfaces(func(i stats.Interface) uint64 { return i.RxDropped })},
	{"container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", counter, []string{"interface"}, false, ofInterfaces(func(i stats.Interface) uint64 { return i.RxErrors })},
	{"container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", counter, []string{"interface"}, false, ofInterfaces(func(i stats.Interface) uint64 { return i.TxBytes })},
	{"container_network_transmit_packets_total", "Cumulative count of packets transmitted", counter, []string{"interface"}, false, ofInterfaces(func(i stats.Interface) uint64 { return i.TxPackets })},
	{"container_network_transmit_packets_dropped_total", "Cumulative count of packets dropped while transmitting", counter, []string{"interface"}, false, ofInterfaces(func(i stats.Interface) uint64 { return i.TxDropped })},
	{"container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", counter, []string{"interface"}, false, ofInterfaces(func(i stats.Interface) uint64 { return i.TxErrors })},
	{"container_processes", "Number of processes running inside the container.", gauge, nil, false, ofPids(func(p *cgroupstat.Pids) uint64 { return p.Processes })},
	{"container_file_descriptors", "Number of open file descriptors for the container.", gauge, nil, false, ofFiles(func(f *stats.Files) uint64 { return f.Descriptors })},
	{"container_sockets", "Number of open sockets for the container.", gauge, nil, false, ofFiles(func(f *stats.Files) uint64 { return f.Sockets })},
	{"container_ulimits_soft", "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice", gauge, []string{"ulimit"}, false, func(t target, send emit) {
		if t.files != nil && t.files.MaxOpen != nil {
			send(float64(*t.files.MaxOpen), "max_open_files")
		}
	}},
	{"container_threads", "Number of threads running inside the container", gauge, nil, false, ofPids(func(p *cgroupstat.Pids) uint64 { return p.Threads })},
	{"container_threads_max", "Maximum number of threads allowed inside the container, infinity if value is zero", gauge, nil, false, ofPids(func(p *cgroupstat.Pids) uint64 { return p.Max })},
	{"container_pressure_cpu_waiting_seconds_total", "Total time duration tasks in the container have waited due to CPU congestion.", counter, nil, false, ofPressure(cpuStall, some)},
	{"container_pressure_cpu_stalled_seconds_total", "Total time duration no tasks in the container could make progress due to CPU congestion.", counter, nil, false, ofPressure(cpuStall, full)},
	{"container_pressure_memory_waiting_seconds_total", "Total time duration tasks in the container have waited due to memory congestion.", counter, nil, false, ofPressure(memoryStall, some)},
	{"container_pressure_memory_stalled_seconds_total", "Total time duration no tasks in the container could make progress due to memory congestion.", counter, nil, false, ofPressure(memoryStall, full)},
	{"container_pressure_io_waiting_seconds_total", "Total time duration tasks in the container have waited due to IO congestion.", counter, nil, false, ofPressure(ioStall, some)},
	{"container_pressure_io_stalled_seconds_total", "Total time duration no tasks in the container could make progress due to IO congestion.", counter, nil, false, ofPressure(ioStall, full)},
}

// descs are the descriptions of families, in the same order.
var descs = func() []*prometheus.Desc {
	out := make([]*prometheus.Desc, len(families))
	for i, f := range families {
		out[i] = desc(f.name, f.help, append(append([]string(nil), cadvisorLabels...), f.labels...)...)
	}
	return out
}()
