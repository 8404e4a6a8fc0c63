package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// PodPart is a value of a pod's cgroup that an in-place resize changes.
type PodPart int

// Parts of a pod's cgroup.
const (
	MemoryLimit   PodPart = iota // bytes
	MemoryRequest                // bytes that are protected under memory QoS
	CPULimit                     // the quota, in microseconds per period
	CPURequest                   // CPU shares
)

func (p PodPart) String() string {
	return [...]string{"memory limit", "memory request", "CPU limit", "CPU request"}[p]
}

// of returns the values with only this part.
func (p PodPart) of(v podValues) podValues {
	switch p {
	case MemoryLimit:
		return podValues{memory: v.memory}
	case MemoryRequest:
		return podValues{protection: v.protection}
	case CPULimit:
		return podValues{quota: v.quota, period: v.period}
	default:
		return podValues{shares: v.shares}
	}
}

// PodValue returns the part's value in the cgroup of a pod with these resources, with the default
// period; 0 means no limit or no request.
func PodValue(p *v1.Pod, part PodPart) int64 {
	if part == MemoryRequest {
		return podRequests(p)[v1.ResourceMemory]
	}
	v := part.of(computePodValues(p, Settings{}))
	return v.memory + v.quota + int64(v.shares) // all but one are zero
}

// noLimit removes a limit.
const noLimit = -1

// ResizePod writes one part of the pod's cgroup from the pod's resources, and does not change the
// others.
func (m *Manager) ResizePod(ctx context.Context, p *v1.Pod, part PodPart) error {
	if ctx.Err() != nil {
		return fmt.Errorf("resize cgroup of pod %s/%s: %w", p.Namespace, p.Name, context.Cause(ctx))
	}
	defer m.tree.metrics.operated(update, time.Now())
	class := QOSClass(p)
	n := podName(m.tree.root, class, p.UID)
	v := part.of(computePodValues(p, m.settings))
	if part == MemoryLimit && v.memory == 0 {
		v.memory = noLimit
	}
	g, err := m.tree.open(n, v)
	if err == nil {
		err = g.Apply(-1) // the cgroup exists
	}
	r := m.tree.host().resources(v)
	if part == CPULimit && v.quota == 0 && m.tree.host().has["cpu"] {
		r.CpuQuota, r.CpuPeriod = noLimit, QuotaPeriod
	}
	if err == nil {
		err = g.Set(r)
	}
	if err != nil {
		return fmt.Errorf("resize cgroup %s: %s: %w", n.path(m.tree.driver), part, err)
	}
	m.noteRequests(p, class, g)
	return m.syncClasses()
}

// PodMemoryUsage returns the pod's memory usage in bytes, including caches; 0 on a host without the
// memory controller.
func (m *Manager) PodMemoryUsage(p *v1.Pod) (int64, error) {
	n := podName(m.tree.root, QOSClass(p), p.UID)
	dirs, err := m.tree.dirs(n)
	if err != nil {
		return 0, fmt.Errorf("memory usage of cgroup %s: %w", n.path(m.tree.driver), err)
	}
	for _, d := range dirs {
		for _, file := range []string{"memory.current", "memory.usage_in_bytes"} { // version 2, version 1
			b, err := os.ReadFile(filepath.Join(d, file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			var usage int64
			if err == nil {
				usage, err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
			}
			if err != nil {
				return 0, fmt.Errorf("memory usage of cgroup %s: %w", n.path(m.tree.driver), err)
			}
			return usage, nil
		}
	}
	return 0, nil
}
