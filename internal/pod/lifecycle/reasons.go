package lifecycle

import "time"

// The reasons of container states and pods that users see. The strings are part of the Kubernetes
// API: tools match them, so they must not change.

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

// Terminated reasons (ContainerStateTerminated.reason). All but ContainerStatusUnknown usually come
// from the runtime.
const (
	Completed          = "Completed"
	Error              = "Error"
	OOMKilled          = "OOMKilled"
	ContainerCannotRun = "ContainerCannotRun"
	// ContainerStatusUnknown: the container ran, and no longer exists in the runtime.
	ContainerStatusUnknown = "ContainerStatusUnknown"
)

// Reasons of pods that terminated for another cause than their containers (PodStatus.reason).
const (
	DeadlineExceeded = "DeadlineExceeded"
	Evicted          = "Evicted"
	Preempting       = "Preempting"
	// Terminated: the machine was about to shut down.
	Terminated = "Terminated"
)

// UnknownExitCode is the exit code of a container whose exit was not observed: 128 + SIGKILL.
const UnknownExitCode = 137

// StartError is why the last attempt to start a container failed. It becomes the container's
// Waiting state.
type StartError struct {
	Reason  string
	Message string
	// BackOffUntil is the time before which the start is not retried; zero: there is none.
	BackOffUntil time.Time
}
