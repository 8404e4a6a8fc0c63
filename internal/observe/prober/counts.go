package prober

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/runtime/action"
)

// DurationBuckets are the upper bounds, in seconds, of the buckets of attempt durations:
// Prometheus' defaults, as in the kubelet's prober_probe_duration_seconds.
var DurationBuckets = [...]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// Count holds the results of the attempts of one probe since the agent started.
type Count struct {
	Pod       *v1.Pod // shared; must not be modified
	Container string
	Kind      string // Liveness, Readiness, Startup
	// Successful, Failed and Unknown count attempts by result; those with a warning are successful.
	Successful, Failed, Unknown uint64
	// Late counts attempts that began a second or more after their deadline.
	Late uint64
	// Seconds is the total duration of the attempts. Buckets count those that took no longer than
	// each of DurationBuckets.
	Seconds float64
	Buckets [len(DurationBuckets)]uint64
}

// Counts returns the counts of all present probes, ordered by namespace, pod, container and kind.
func (m *Manager) Counts() []Count {
	m.mu.Lock()
	var out []Count
	for _, pp := range m.pods {
		for _, c := range pp.containers {
			for _, p := range c.probes {
				if p != nil {
					out = append(out, p.counts.count(p))
				}
			}
		}
	}
	m.mu.Unlock()
	slices.SortFunc(out, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID),
			cmp.Compare(a.Container, b.Container), cmp.Compare(a.Kind, b.Kind))
	})
	return out
}

// counts are the counts of one probe; small, since there may be thousands.
type counts struct {
	successful, failed, unknown, late uint32
	took                              time.Duration
	buckets                           [len(DurationBuckets)]uint32 // not cumulative
}

func (c *counts) add(outcome action.Outcome, took time.Duration) {
	switch outcome {
	case action.Unknown:
		c.unknown++
	case action.Failure:
		c.failed++
	default:
		c.successful++
	}
	c.took += took
	if i, _ := slices.BinarySearch(DurationBuckets[:], took.Seconds()); i < len(c.buckets) {
		c.buckets[i]++
	}
}

func (c *counts) count(p *probe) Count {
	out := Count{
		Pod: p.container.pod.pod, Container: p.container.spec.Name, Kind: p.kind.title(),
		Successful: uint64(c.successful), Failed: uint64(c.failed), Unknown: uint64(c.unknown), Late: uint64(c.late), Seconds: c.took.Seconds(),
	}
	sum := uint64(0)
	for i, n := range c.buckets {
		sum += uint64(n)
		out.Buckets[i] = sum
	}
	return out
}
