package pod

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// Status is the observed state of one pod in one reading of the runtime.
type Status struct {
	UID       UID
	Name      string
	Namespace string
	// ReadAt is when the reading began, Reading its number in the order of starts: the status
	// includes all changes of the runtime before the reading began.
	ReadAt  time.Time
	Reading Reading
	// IPs of the newest ready sandbox, primary first; empty for host network and before the network
	// is up.
	IPs []string
	// Sandboxes, newest first (attempt, then creation time, then ID).
	Sandboxes []SandboxStatus
	// Containers of every type and incarnation, newest first.
	Containers []ContainerStatus
}

// Reading numbers readings in the order of their starts. It is a counter and not a time, so that
// neither a coarse clock nor a clock change can make an old reading appear new.
type Reading uint64

// SandboxStatus is one observed pod sandbox.
type SandboxStatus struct {
	ID          SandboxID
	Attempt     uint32
	Ready       bool
	CreatedAt   time.Time
	HostNetwork bool
	IPs         []string
	// RuntimeHandler runs the sandbox (RuntimeClass, KEP-585); "" is the runtime's default.
	RuntimeHandler string
}

// ContainerState is the runtime's state of a container.
type ContainerState int

// The states of a container (CRI ContainerState).
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
	// CutOff: the container is StateCreated and will never start, since its start was interrupted
	// before there was a process.
	CutOff bool
	// Attempt is the restart count of this incarnation.
	Attempt    uint32
	CreatedAt  time.Time
	StartedAt  time.Time // zero unless started
	FinishedAt time.Time // zero unless exited
	ExitCode   int32
	Reason     string
	Message    string
	// Image is the name that the container was created from, ImageRef what the runtime resolved it
	// to.
	Image    string
	ImageRef string
	LogPath  string
	// LogFollowsPath: the log writer opens LogPath again before each write, as the podshim does:
	// log rotation only needs a new file, and no call of the runtime.
	LogFollowsPath bool
	// TerminationLog is the host's file for the container's termination message, "" if it has none.
	TerminationLog string
	// RecursiveReadOnly are the container's paths of recursively read-only mounts.
	RecursiveReadOnly []string
	// ImageVolumes are the runtime's references of mounted images, by path in the container.
	ImageVolumes map[string]string
	// Hash is the container's spec hash at creation (annotation io.kubernetes.container.hash).
	Hash string
	// UserUID, UserGID and SupplementalGroups are the identity of the first process, if HasUser.
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

// IsTerminal reports whether the phase is Succeeded or Failed.
func IsTerminal(p v1.PodPhase) bool { return p == v1.PodSucceeded || p == v1.PodFailed }
