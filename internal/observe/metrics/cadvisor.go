package metrics

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/observe/stats"
)

// cadvisorLabels are the labels of every container metric, empty if unknown.
var cadvisorLabels = []string{"id", "name", "image", "container", "pod", "namespace"}

var (
	cadvisorScrapeError = desc("container_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise")
	machineScrapeError  = desc("machine_scrape_error", "1 if there was an error while getting machine metrics, 0 otherwise.")
	machineLabels       = []string{"machine_id", "system_uuid", "boot_id"}
	machineCores        = desc("machine_cpu_cores", "Number of logical CPU cores.", machineLabels...)
	machinePhysical     = desc("machine_cpu_physical_cores", "Number of physical CPU cores.", machineLabels...)
	machineSockets      = desc("machine_cpu_sockets", "Number of CPU sockets.", machineLabels...)
	machineBooks        = desc("machine_cpu_books", "Number of CPU books.", machineLabels...)
	machineDrawers      = desc("machine_cpu_drawers", "Number of CPU drawers.", machineLabels...)
	machineMemory       = desc("machine_memory_bytes", "Amount of memory installed on the machine.", machineLabels...)
	machineSwap         = desc("machine_swap_bytes", "Amount of swap memory available on the machine.", machineLabels...)
	versionDesc         = desc("cadvisor_version_info", "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.",
		"kernelVersion", "osVersion", "dockerVersion", "cadvisorVersion", "cadvisorRevision")
)

// Machine is the source of the machine_ metrics.
type Machine struct {
	ID, SystemUUID, BootID string
	CPUs                   int
	Topology               stats.Topology
	Memory, Swap           int64 // bytes
	Kernel, OSImage        string
}

// Cadvisor collects /metrics/cadvisor.
type Cadvisor struct {
	Readings Readings
	// Kills returns the number of OOM-killed processes of a container.
	Kills func(container string) uint64
	// Files counts the open files of a cgroup's processes; false if unknown.
	Files func(cgroup string) (stats.Files, bool)
	// Disks reads the machine's file systems.
	Disks func() ([]stats.Disk, error)
	// Machine reads the machine.
	Machine func() (Machine, error)
	Log     *slog.Logger
}

// Describe implements prometheus.Collector.
func (c Cadvisor) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
	for _, d := range []*prometheus.Desc{cadvisorScrapeError, machineScrapeError, machineCores, machinePhysical, machineSockets, machineBooks, machineDrawers, machineMemory, machineSwap, versionDesc} {
		ch <- d
	}
}

// Collect reads the usage.
func (c Cadvisor) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	c.collectMachine(ch)
	all, err := c.Readings.Read(ctx)
	failed := 0.0
	if err != nil {
		failed = 1
		c.Log.Warn("/metrics/cadvisor: use not read", "error", err)
	}
	ch <- prometheus.MustNewConstMetric(cadvisorScrapeError, gauge, failed)
	if err != nil {
		return
	}
	disks, err := c.Disks()
	if err != nil {
		c.Log.Debug("/metrics/cadvisor: filesystems not read", "error", err)
	}
	for _, t := range c.targets(all, disks) {
		for i := range families {
			f := &families[i]
			f.samples(t, func(v float64, labels ...string) {
				m := prometheus.MustNewConstMetric(descs[i], f.kind, v, append(append([]string(nil), t.labels...), labels...)...)
				if !f.undated {
					m = at(t.Time, m)
				}
				ch <- m
			})
		}
	}
}

func (c Cadvisor) collectMachine(ch chan<- prometheus.Metric) {
	m, err := c.Machine()
	failed := 0.0
	if err != nil {
		failed = 1
		c.Log.Debug("/metrics/cadvisor: machine not read as a whole", "error", err)
	}
	ch <- prometheus.MustNewConstMetric(machineScrapeError, gauge, failed)
	labels := []string{m.ID, m.SystemUUID, m.BootID}
	ch <- prometheus.MustNewConstMetric(machineCores, gauge, float64(m.CPUs), labels...)
	for d, n := range map[*prometheus.Desc]int{machinePhysical: m.Topology.Cores, machineSockets: m.Topology.Sockets, machineBooks: m.Topology.Books, machineDrawers: m.Topology.Drawers} {
		ch <- prometheus.MustNewConstMetric(d, gauge, float64(n), labels...)
	}
	ch <- prometheus.MustNewConstMetric(machineMemory, gauge, float64(m.Memory), labels...)
	ch <- prometheus.MustNewConstMetric(machineSwap, gauge, float64(m.Swap), labels...)
	ch <- prometheus.MustNewConstMetric(versionDesc, gauge, 1, m.Kernel, m.OSImage, "", "", "")
}

// targets returns all cgroups with samples: the root, those of QoS classes, and each pod's own, its
// sandbox's and its containers'.
func (c Cadvisor) targets(all *stats.Readings, disks []stats.Disk) []target {
	out := []target{{Reading: all.Root, labels: []string{"/", "", "", "", "", ""}, root: true, interfaces: all.Network, disks: disks}}
	add := func(r *stats.Reading, t target, labels ...string) {
		if r == nil {
			return
		}
		t.Reading, t.labels = r, append([]string{r.Path}, labels...)
		out = append(out, t)
	}
	for _, g := range all.Classes {
		add(g, target{}, "", "", "", "", "")
	}
	for i := range all.Pods {
		p := &all.Pods[i]
		add(p.Reading, target{}, "", "", "", p.Name, p.Namespace)
		if s := p.Sandbox; s != nil {
			add(s.Reading, target{interfaces: p.Network, files: c.filesOf(s.Reading)}, string(s.ID), "", "", p.Name, p.Namespace)
		}
		for j := range p.Containers {
			ct := &p.Containers[j]
			add(ct.Reading, target{kills: c.Kills(string(ct.ID)), files: c.filesOf(ct.Reading)}, string(ct.ID), ct.Image, ct.Name, p.Name, p.Namespace)
		}
	}
	return out
}

func (c Cadvisor) filesOf(r *stats.Reading) *stats.Files {
	if r == nil {
		return nil
	}
	f, ok := c.Files(r.Path)
	if !ok {
		return nil
	}
	return &f
}

// deviceName returns /dev/<name> of a block device, or "" if it does not exist.
func deviceName(major, minor uint32) string {
	link, err := os.Readlink("/sys/dev/block/" + strconv.FormatUint(uint64(major), 10) + ":" + strconv.FormatUint(uint64(minor), 10))
	if err != nil {
		return ""
	}
	return "/dev/" + filepath.Base(link)
}
