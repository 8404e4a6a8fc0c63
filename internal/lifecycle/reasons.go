package lifecycle

import "time"

// Reason is a user-visible reason of a container's state or of a pod. The strings are part of the Kubernetes API: tools match on
// them, so they never change.
type Reason = string

// Waiting reasons (ContainerStateWaiting.reason) of a container that has no error.
const (
	ContainerCreating       Reason = "ContainerCreating"
	PodInitializing         Reason = "PodInitializing"
	RestartingAllContainers Reason = "RestartingAllContainers"
)

// Waiting reasons of a container whose last start failed.
const (
	CrashLoopBackOff           Reason = "CrashLoopBackOff"
	ErrImagePull               Reason = "ErrImagePull"
	ImagePullBackOff           Reason = "ImagePullBackOff"
	ErrImageNeverPull          Reason = "ErrImageNeverPull"
	InvalidImageName           Reason = "InvalidImageName"
	ImageInspectError          Reason = "ImageInspectError"
	RegistryUnavailable        Reason = "RegistryUnavailable"
	SignatureValidationFailed  Reason = "SignatureValidationFailed"
	CreateContainerConfigError Reason = "CreateContainerConfigError"
	PreCreateHookError         Reason = "PreCreateHookError"
	CreateContainerError       Reason = "CreateContainerError"
	PreStartHookError          Reason = "PreStartHookError"
	RunContainerError          Reason = "RunContainerError"
	PostStartHookError         Reason = "PostStartHookError"
)

// Terminated reasons (ContainerStateTerminated.reason). All but ContainerStatusUnknown come from the runtime as a rule.
const (
	Completed          Reason = "Completed"
	Error              Reason = "Error"
	OOMKilled          Reason = "OOMKilled"
	ContainerCannotRun Reason = "ContainerCannotRun"
	// ContainerStatusUnknown is the reason of a container that ran and that the runtime no longer knows.
	ContainerStatusUnknown Reason = "ContainerStatusUnknown"
)

// Reasons of pods that ended for another cause than their containers (PodStatus.reason).
const (
	DeadlineExceeded Reason = "DeadlineExceeded"
	Evicted          Reason = "Evicted"
	Preempting       Reason = "Preempting"
)

// UnknownExitCode is the exit code of a container whose end nobody saw: 128 + SIGKILL.
const UnknownExitCode = 137

// StartError is why the last attempt to start a container failed. It becomes the container's Waiting state.
type StartError struct {
	Reason  Reason
	Message string
	// BackOffUntil is the time before which no further attempt is made; zero when there is none.
	BackOffUntil time.Time
}
