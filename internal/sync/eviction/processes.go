package eviction

import (
	"context"

	"berth/internal/host/pressure"
	"berth/internal/pod"
)

// processes reads available memory and tasks, and ranks pods by theirs.
type processes struct {
	readings Readings
}

func (ps *processes) measure(ctx context.Context) (reading, error) {
	u, err := ps.readings.Use(ctx)
	if err != nil {
		return reading{}, err
	}
	out := reading{
		free: map[Signal]uint64{MemoryAvailable: u.Free, AllocatableMemoryAvailable: u.PodsFree},
		left: observed{MemoryAvailable: u.Memory, AllocatableMemoryAvailable: u.PodsMemory, PIDAvailable: u.Tasks},
	}
	for s, amount := range out.left {
		if amount.Capacity == 0 {
			delete(out.left, s)
		}
	}
	return out, nil
}

func (ps *processes) reclaim(context.Context, *met) bool { return false }

func (ps *processes) rank(ctx context.Context, m *met, candidates func() []candidate) ([]candidate, error) {
	uses, err := ps.readings.PodUses(ctx)
	if err != nil {
		return nil, err
	}
	what := m.threshold.Signal.resource()
	out := candidates()
	for i := range out {
		if u, ok := uses[out[i].pod.UID]; ok {
			out[i].addProcesses(what, &u)
		}
	}
	rank(what, out)
	return out, nil
}

type noKernel struct{}

func (noKernel) Wake() <-chan struct{}       { return nil }
func (noKernel) Arm(int64, int64)            {}
func (noKernel) Coverage() pressure.Coverage { return pressure.Coverage{} }
func (noKernel) Hold(pod.UID) error          { return nil }
