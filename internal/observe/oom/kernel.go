package oom

import (
	"context"
	"os"
	"strings"

	"berth/internal/host/cgroupstat"
)

// Record is one record of the kernel log. Its text is empty if the kernel did not write it.
type Record struct {
	Seq  uint64
	Text string
}

// Kernel is the source of kills.
type Kernel interface {
	KernelLog
	Counters
}

// KernelLog reads kills from the kernel log.
type KernelLog interface {
	// Boot identifies the boot of the kernel: sequence numbers and counters are valid for one boot.
	Boot() string
	// Log calls put with each record with a higher sequence number than after, at most about a
	// second after it is written, or immediately after an element of now, until ctx is done. An
	// after of 0 starts at the current end, and the first record is one without text with that
	// position. It fails if the log cannot be read.
	Log(ctx context.Context, after uint64, now <-chan struct{}, put func(Record)) error
}

// Counters are the kernel's kill counters, by cgroup.
type Counters interface {
	// Watch returns a watch on counters, which calls wake, from another goroutine, with the
	// cgroup's path when a counter may have changed. It does not block.
	Watch(wake func(path string)) (Watch, error)
	// Containers returns the cgroup of each container of a pod's cgroup, by container id.
	Containers(pod string) (map[string]string, error)
	// Kills returns the number of killed processes of the cgroup.
	Kills(path string) (uint64, error)
	// Memory returns the peak usage of the cgroup, and its limit.
	Memory(path string) (peak, limit uint64, err error)
}

// Watch watches the counters of cgroups.
type Watch interface {
	// Add starts watching the cgroup.
	Add(path string) error
	// Remove stops watching the cgroup, which may be removed already.
	Remove(path string)
	// Run serves until ctx is done, and closes the watch.
	Run(ctx context.Context) error
}

// NewKernel returns this host's kernel.
func NewKernel() (Kernel, error) {
	h, err := cgroupstat.Detect()
	if err != nil {
		return nil, err
	}
	return host{h}, nil
}

type host struct{ h cgroupstat.Hierarchy }

func (host) Boot() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // nothing is restored then
	}
	return strings.TrimSpace(string(b))
}

func (k host) Containers(pod string) (map[string]string, error) { return k.h.List(pod) }

func (k host) Kills(path string) (uint64, error) { return k.h.OOMKills(path) }

func (k host) Memory(path string) (peak, limit uint64, err error) {
	g := k.h.Open(path)
	defer g.Close()
	s, err := g.Read()
	if err != nil || s.Memory == nil {
		return 0, 0, err
	}
	return max(s.Memory.Peak, s.Memory.Usage), s.Memory.Limit, nil
}

func (k host) Watch(wake func(path string)) (Watch, error) {
	if k.h.Version == 2 {
		return newEventFiles(k.h, wake)
	}
	return newEventfds(k.h, wake)
}
