package lifecycle

import "time"

// The reasons of container states and pods that users see. The strings are part of the Kubernetes
// API: tools match on them, so they never change.

// Waiting reasons (ContainerStateWaiting.reason) of a container that has no error.
const (
	ContainerCreating       = "ContainerCreating"
	PodInitializing         = "PodInitializing"
	RestartingAllContainers = "RestartingAllContainers"
)

// Waiting reasons of a container whose last start failed.
const (
	CrashLoopBackOff           = "CrashLoopBackOff"
	ErrImagePull               = "ErrImagePull"
	ImagePullBackOff           = "ImagePullBackOff"
	ErrImageNeverPull          = "ErrImageNeverPull"
	InvalidImageName           = "InvalidImageName"
	ImageInspectError          = "ImageInspectError"
	RegistryUnavailable        = "RegistryUnavailable"
	SignatureValidationFailed  = "SignatureValidationFailed"
	CreateContainerConfigError = "CreateContainerConfigError"
	CreateContainerError       = "CreateContainerError"
	RunContainerError          = "RunContainerError"
	PostStartHookError         = "PostStartHookError"
)

// Terminated reasons (ContainerStateTerminated.reason). All but ContainerStatusUnknown come from
// the runtime as a rule.
const (
	Completed          = "Completed"
	Error              = "Error"
	OOMKilled          = "OOMKilled"
	ContainerCannotRun = "ContainerCannotRun"
	// ContainerStatusUnknown is the reason of a container that ran and that the runtime no longer
	// knows.
	ContainerStatusUnknown = "ContainerStatusUnknown"
)

// Reasons of pods that ended for another cause than their containers (PodStatus.reason).
const (
	DeadlineExceeded = "DeadlineExceeded"
	Evicted          = "Evicted"
	Preempting       = "Preempting"
	// Terminated: the machine was about to be turned off.
	Terminated = "Terminated"
)

// UnknownExitCode is the exit code of a container whose end nobody saw: 128 + SIGKILL.
const UnknownExitCode = 137

// StartError is why the last attempt to start a container failed. It becomes the container's
// Waiting state.
type StartError struct {
	Reason  string
	Message string
	// BackOffUntil is the time before which no further attempt is made; zero when there is none.
	BackOffUntil time.Time
}
