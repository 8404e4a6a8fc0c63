package pod

import (
	"maps"
	"sync"
)

// State is where the life of a pod stands. It moves one way only, as the doc of package podworkers
// shows.
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

// Lifecycle is what the worker of one pod has decided.
type Lifecycle struct {
	State State
	// Evicted: killed to reclaim resources. Deleted: its deletion was asked for. Orphan: no source
	// wants it any more.
	Evicted, Deleted, Orphan bool
	// TerminationBegun: the worker has started to stop containers, as opposed to termination being
	// only requested.
	TerminationBegun bool
	// RuntimeOnly: known from the runtime, without a spec.
	RuntimeOnly bool
}

// States answers the lifecycle questions of other components (may containers run, may files go).
// podWorkers is its only writer.
type States struct {
	changed Publisher[UID] // publishes with mu held

	mu    sync.RWMutex
	pods  map[UID]Lifecycle // guarded by mu
	known bool              // guarded by mu; latch: the workers know every pod that the sources want
}

// NewStates returns a table without pods.
func NewStates() *States { return &States{pods: map[UID]Lifecycle{}} }

// Subscribe returns an inbox that gets every pod whose lifecycle is set or forgotten. It is called
// before any is.
func (s *States) Subscribe() *Inbox[UID] {
	in, _ := s.changed.Subscribe()
	return in
}

// Follow returns an inbox that gets every pod whose lifecycle is set or forgotten from now on, and
// the function that ends this.
func (s *States) Follow() (changed *Inbox[UID], cancel func()) { return s.changed.Subscribe() }

// Set records the pod's lifecycle.
func (s *States) Set(uid UID, l Lifecycle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods[uid] = l
	s.changed.Publish(uid)
}

// Forget drops the pod.
func (s *States) Forget(uid UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, uid)
	s.changed.Publish(uid)
}

// SetKnown latches that every source was seen and dispatched; from then on an unknown UID is a pod
// that is gone.
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

// List returns the lifecycle of every pod that has one.
func (s *States) List() map[UID]Lifecycle {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.pods)
}

// CouldHaveRunningContainers reports whether containers of the pod may run now or later. They may
// of a pod that has no lifecycle until SetKnown was called.
func (s *States) CouldHaveRunningContainers(uid UID) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if l, ok := s.pods[uid]; ok {
		return l.State < Terminated
	}
	return !s.known
}
