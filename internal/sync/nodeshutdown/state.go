package nodeshutdown

import (
	"encoding/json"
	"errors"
	"sync"
	"time"

	"berth/internal/checkpoint"
	"berth/internal/health"
)

// errShuttingDown is why the Node is not ready.
var errShuttingDown = errors.New("node is shutting down")

// State stores whether the machine is shutting down. The zero value is no. The manager writes it;
// it is safe for concurrent use.
type State struct {
	mu    sync.Mutex
	began time.Time // guarded by mu; zero: no shutdown
}

// ShuttingDown reports whether the machine is about to shut down.
func (s *State) ShuttingDown() bool { return s.Err() != nil }

// Err returns why the node admits no pods and since when, or nil.
func (s *State) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began.IsZero() {
		return nil
	}
	return health.Since(errShuttingDown, s.began)
}

// Began returns when the shutdown began, zero if there is none.
func (s *State) Began() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began
}

func (s *State) set(began time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = began
}

// past is the persisted state: when the last shutdown began, and when its pods had terminated. The
// format is the kubelet's.
type past struct {
	Start time.Time `json:"startTime,omitzero"`
	End   time.Time `json:"endTime,omitzero"`
}

// unfinished reports whether the machine shut down before all groups were done.
func (p past) unfinished() bool { return p.End.Before(p.Start) }

func readPast(path string) (p past, err error) {
	err = checkpoint.Read(path, "times of the last shutdown", func(b []byte) error { return json.Unmarshal(b, &p) })
	return p, err
}

func (p past) write(path string) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return checkpoint.Write(path, 0o644, b)
}
