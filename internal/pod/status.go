package pod

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// Status is what the runtime showed of one pod in one reading.
type Status struct {
	UID       UID
	Name      string
	Namespace string
	// ReadAt is when the reading began, Reading its place in the order of beginnings: a change that
	// the runtime made before the reading began is in the status.
	ReadAt  time.Time
	Reading Reading
	// IPs of the newest ready sandbox, primary first; empty for host network and before the network
	// is up.
	IPs []string
	// Sandboxes, newest first (attempt, then creation time, then id).
	Sandboxes []SandboxStatus
	// Containers of every kind and incarnation, newest first.
	Containers []ContainerStatus
}

// Reading numbers readings in the order of their beginnings. It is a counter and not a time, so
// that neither a coarse clock nor a clock that is set can make an old observation look new.
type Reading uint64

// SandboxStatus is one observed pod sandbox.
type SandboxStatus struct {
	ID          SandboxID
	Attempt     uint32
	Ready       bool
	CreatedAt   time.Time
	HostNetwork bool
	IPs         []string
	// RuntimeHandler is what runs the sandbox (RuntimeClass, KEP-585); "" is the runtime's default.
	RuntimeHandler string
}

// ContainerState is the runtime's word on a container.
type ContainerState int

// The states of a container as the runtime tells them (CRI ContainerState).
const (
	StateUnknown ContainerState = iota
	StateCreated
	StateRunning
	StateExited
)

func (s ContainerState) String() string {
	return [...]string{"unknown", "created", "running", "exited"}[s]
}

// ContainerStatus is one observed incarnation of a container.
type ContainerStatus struct {
	ID        ContainerID
	SandboxID SandboxID
	Name      string
	State     ContainerState
	// CutOff: it is StateCreated and will never be started, since its start was cut off before
	// there was a process.
	CutOff bool
	// Attempt is the restart count of this incarnation.
	Attempt    uint32
	CreatedAt  time.Time
	StartedAt  time.Time // zero unless started
	FinishedAt time.Time // zero unless exited
	ExitCode   int32
	Reason     string
	Message    string
	// Image is the name that the container was made from, ImageRef what the runtime resolved it to.
	Image    string
	ImageRef string
	LogPath  string
	// LogFollowsPath reports that the writer of the log opens LogPath again before each write, as
	// the podshim does: a new file there is all that a rotation needs, and the runtime has no part
	// in it.
	LogFollowsPath bool
	// TerminationLog is the host's file for the container's termination message, "" when it has
	// none.
	TerminationLog string
	// RecursiveReadOnly are the container's paths where the mount and all that is mounted below it
	// are read-only.
	RecursiveReadOnly []string
	// ImageVolumes are the images that are mounted, as the runtime knows them, by the paths in the
	// container.
	ImageVolumes map[string]string
	// Hash is the container's spec hash at creation (annotation io.kubernetes.container.hash).
	Hash string
	// UserUID, UserGID and SupplementalGroups are what the first process runs as, when HasUser.
	HasUser            bool
	UserUID, UserGID   int64
	SupplementalGroups []int64
	// Annotations as set at creation: enough to stop the container without its pod's spec.
	Annotations map[string]string
}

// FindContainer returns the newest incarnation of the named container, or nil.
func (s *Status) FindContainer(name string) *ContainerStatus {
	for i := range s.Containers {
		if s.Containers[i].Name == name {
			return &s.Containers[i]
		}
	}
	return nil
}

// ReadySandbox returns the newest sandbox if it is ready, or nil.
func (s *Status) ReadySandbox() *SandboxStatus {
	if len(s.Sandboxes) > 0 && s.Sandboxes[0].Ready {
		return &s.Sandboxes[0]
	}
	return nil
}

// Active reports whether the runtime has a ready sandbox or a running container of the pod.
func (s *Status) Active() bool {
	for i := range s.Sandboxes {
		if s.Sandboxes[i].Ready {
			return true
		}
	}
	for i := range s.Containers {
		if s.Containers[i].State == StateRunning {
			return true
		}
	}
	return false
}

// IsTerminal reports whether a pod of the phase has ended for good.
func IsTerminal(p v1.PodPhase) bool { return p == v1.PodSucceeded || p == v1.PodFailed }
