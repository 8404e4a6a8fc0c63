package podmetrics

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

const (
	// leastWindow is the minimum time over which CPU usage is measured: the agent returns cached
	// readings for a second.
	leastWindow = 1100 * time.Millisecond
	// fresh is how long a reading is cached.
	fresh = 5 * time.Second
)

// meter shares usage readings among concurrent requests.
type meter struct {
	read func(context.Context) (*summary.Summary, error)
	slot chan struct{} // capacity 1; the holder of its element measures, and owns the fields below
	last *summary.Summary
	at   time.Time
}

func newMeter(read func(context.Context) (*summary.Summary, error)) *meter {
	m := &meter{read: read, slot: make(chan struct{}, 1)}
	m.slot <- struct{}{}
	return m
}

// measure returns a reading that is not older than fresh. CPU usage is the difference of two: the
// first request waits for the second reading, and concurrent ones wait for the first request.
func (m *meter) measure(ctx context.Context) (*summary.Summary, error) {
	select {
	case <-m.slot:
		defer func() { m.slot <- struct{}{} }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if m.last != nil && time.Since(m.at) < fresh {
		return m.last, nil
	}
	if _, err := m.read(ctx); err != nil {
		return nil, err
	}
	select {
	case <-time.After(leastWindow):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s, err := m.read(ctx)
	if err == nil {
		m.last, m.at = s, time.Now()
	}
	return s, err
}

// used returns the usage, false if it is incomplete: a container that has just started has no CPU
// usage.
func used(cpu *summary.CPUStats, memory *summary.MemoryStats) (v1.ResourceList, bool) {
	if cpu == nil || cpu.UsageNanoCores == nil || memory == nil || memory.WorkingSetBytes == nil {
		return nil, false
	}
	return v1.ResourceList{
		v1.ResourceCPU:    *resource.NewScaledQuantity(int64(*cpu.UsageNanoCores), resource.Nano),
		v1.ResourceMemory: *resource.NewQuantity(int64(*memory.WorkingSetBytes), resource.BinarySI),
	}, true
}

// nodeMetrics returns the metrics of the node, false if they are unknown.
func nodeMetrics(s *summary.Summary, labels map[string]string) (m metricsv1beta1.NodeMetrics, ok bool) {
	if m.Usage, ok = used(s.Node.CPU, s.Node.Memory); !ok {
		return m, false
	}
	m.ObjectMeta = metav1.ObjectMeta{Name: s.Node.NodeName, Labels: labels, CreationTimestamp: metav1.Now()}
	m.Timestamp, m.Window = s.Node.CPU.Time, metav1.Duration{Duration: leastWindow}
	return m, true
}

// podMetrics returns the metrics of a pod, false if those of a container are unknown, as the sum
// would be wrong.
func podMetrics(p *summary.PodStats, labels map[string]string) (m metricsv1beta1.PodMetrics, ok bool) {
	m.ObjectMeta = metav1.ObjectMeta{Namespace: p.PodRef.Namespace, Name: p.PodRef.Name, Labels: labels, CreationTimestamp: metav1.Now()}
	m.Window = metav1.Duration{Duration: leastWindow}
	for i := range p.Containers {
		c := &p.Containers[i]
		usage, ok := used(c.CPU, c.Memory)
		if !ok {
			return m, false
		}
		m.Timestamp = c.CPU.Time
		m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: c.Name, Usage: usage})
	}
	return m, len(m.Containers) > 0
}
