package oom

import (
	"context"
	"os"
	"strings"

	"berth/internal/host/cgroupstat"
)

// Record is one record of the kernel log. Its text is empty if it is not the kernel's own.
type Record struct {
	Seq  uint64
	Text string
}

// Kernel is where kills are learned from.
type Kernel interface {
	KernelLog
	Counters
}

// KernelLog is what the kernel writes of kills.
type KernelLog interface {
	// Boot names this boot of the kernel: sequence numbers and counters of another one mean
	// nothing.
	Boot() string
	// Log hands over each record with a higher number than after, about a second after it is
	// written at the latest, or at once after now has told of something, until ctx is done; after 0
	// is from now on, and then the first record is one without text that says where that was. It
	// fails when the log cannot be read.
	Log(ctx context.Context, after uint64, now <-chan struct{}, put func(Record)) error
}

// Counters are what the kernel counts of kills, by cgroup.
type Counters interface {
	// Watch returns the watch on counters, which calls wake, from another goroutine, with the
	// cgroup's path when a counter may have changed. It does not wait.
	Watch(wake func(path string)) (Watch, error)
	// Containers returns the cgroup of each container of a pod's cgroup, by container id.
	Containers(pod string) (map[string]string, error)
	// Kills returns how many processes of the cgroup were killed.
	Kills(path string) (uint64, error)
	// Memory returns the most that the cgroup ever used, and its limit.
	Memory(path string) (peak, limit uint64, err error)
}

// Watch wakes for cgroups.
type Watch interface {
	// Add begins to watch the cgroup.
	Add(path string) error
	// Remove ends that; the cgroup may be gone.
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
		return "" // then nothing is taken over
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
