package eviction

import (
	"context"
)

// readProcesses reads available memory and tasks.
func (m *Manager) readProcesses(ctx context.Context) (observed, error) {
	u, err := m.Readings.Use(ctx)
	if err != nil {
		return nil, err
	}
	m.processes.free = map[Signal]uint64{MemoryAvailable: u.Free, AllocatableMemoryAvailable: u.PodsFree}
	out := observed{MemoryAvailable: u.Memory, AllocatableMemoryAvailable: u.PodsMemory, PIDAvailable: u.Tasks}
	for s, room := range out {
		if room.Capacity == 0 {
			delete(out, s)
		}
	}
	return out, nil
}

// rankProcesses ranks pods by their current memory or tasks.
func (m *Manager) rankProcesses(ctx context.Context, of *met) ([]candidate, error) {
	uses, err := m.Readings.PodUses(ctx)
	if err != nil {
		return nil, err
	}
	what := of.Signal.resource()
	out := m.processes.candidates(of)
	for i := range out {
		if u, ok := uses[out[i].pod.UID]; ok {
			out[i].addProcesses(what, &u)
		}
	}
	rank(what, out)
	return out, nil
}
