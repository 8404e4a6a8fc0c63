package pod

import (
	"maps"
	"sync"
)

// State is the lifecycle state of a pod. It only moves forward, as the documentation of package
// podworkers shows.
type State int

// The states of a pod worker.
const (
	Waiting State = iota
	Syncing
	Terminating
	Terminated
	Finished
)

func (s State) String() string {
	return [...]string{"Waiting", "Syncing", "Terminating", "Terminated", "Finished"}[s]
}

// Lifecycle is the state of a pod's worker.
type Lifecycle struct {
	State State
	// Evicted: killed to reclaim resources. Deleted: its deletion was requested. Orphan: no source
	// has it.
	Evicted, Deleted, Orphan bool
	// TerminationBegun: the worker has started to stop containers; before that, termination is only
	// requested.
	TerminationBegun bool
	// RuntimeOnly: the pod exists only in the runtime, without a spec.
	RuntimeOnly bool
}

// States stores the lifecycles of pods for other components (whether containers may run, or files
// can be removed). podWorkers is its only writer. It is safe for concurrent use.
type States struct {
	changed Publisher[UID] // publishes with mu held

	mu    sync.RWMutex
	pods  map[UID]Lifecycle // guarded by mu
	known bool              // guarded by mu; latch: the workers have every desired pod
}

// NewStates returns an empty table.
func NewStates() *States { return &States{pods: map[UID]Lifecycle{}} }

// Subscribe returns an inbox that receives every pod whose lifecycle is set or removed. Call it
// before any is set.
func (s *States) Subscribe() *Inbox[UID] {
	in, _ := s.changed.Subscribe()
	return in
}

// Follow returns an inbox that receives every pod whose lifecycle is set or removed from now on,
// and a function that unsubscribes.
func (s *States) Follow() (changed *Inbox[UID], cancel func()) { return s.changed.Subscribe() }

// Set stores the pod's lifecycle.
func (s *States) Set(uid UID, l Lifecycle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[uid] = l
	s.changed.Publish(uid)
}

// Forget removes the pod.
func (s *States) Forget(uid UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, uid)
	s.changed.Publish(uid)
}

// SetKnown latches that every source was seen and dispatched; from then on, an unknown UID is a
// removed pod.
func (s *States) SetKnown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = true
}

// Known reports whether SetKnown was called.
func (s *States) Known() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.known
}

// Get returns the pod's lifecycle and whether it has one.
func (s *States) Get(uid UID) (Lifecycle, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	l, ok := s.pods[uid]
	return l, ok
}

// List returns the lifecycles of all pods.
func (s *States) List() map[UID]Lifecycle {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.pods)
}

// CouldHaveRunningContainers reports whether containers of the pod may run now or later. Before
// SetKnown, it returns true for a pod without a lifecycle.
func (s *States) CouldHaveRunningContainers(uid UID) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if l, ok := s.pods[uid]; ok {
		return l.State < Terminated
	}
	return !s.known
}
