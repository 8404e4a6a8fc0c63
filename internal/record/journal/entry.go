package journal

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Subject is the subject of an entry: a pod, or a manifest without a pod (then Name is its file or
// URL and UID is empty).
type Subject struct {
	UID             types.UID `json:"uid,omitempty"`
	Namespace, Name string
}

func (s Subject) String() string {
	if s.Namespace == "" {
		return s.Name
	}
	return s.Namespace + "/" + s.Name
}

// Entry is one decision.
type Entry struct {
	Time      time.Time     `json:"time"`
	Subject   Subject       `json:"subject"`
	Component string        `json:"component"`           // the component: config, admission, eviction, worker, runtime, image, volume, status, logs, shutdown, scheduler; event, quarantine
	Decision  string        `json:"decision"`            // the decision, one line
	Why       string        `json:"why,omitempty"`       // the inputs that led to it
	Took      time.Duration `json:"took,omitempty"`      // nanoseconds; 0 without a wait
	Error     string        `json:"error,omitempty"`     // the failure
	Container string        `json:"container,omitempty"` // the container, if any
	Count     int           `json:"count,omitempty"`     // in a row; 0 and 1 mean once
}

// Step is one step of a pod's start.
type Step uint8

// The steps of a start. Image, Created, Started, Hook and Startup belong to one container; the
// others to the pod.
const (
	Seen     Step = iota // the pod's first entry; never recorded as a milestone
	Admitted             // the pod was admitted
	Cgroup               // its cgroup exists
	Volumes              // its volumes are mounted
	Sandbox              // its sandbox is running
	Image                // a container's image is present
	Created              // a container was created
	Started              // a container's process was started
	Ready                // the pod is ready for the first time
	Hook                 // a container's postStart hook has succeeded
	Startup              // a container has passed its startup probe
	Bound                // the pod, which waited for a node, was bound
	steps                // new steps go before it: the numbers are on disk
)

var stepNames = [steps]string{"seen", "admitted", "cgroup", "volumes", "sandbox", "image", "created", "started", "ready", "postStart hook", "startup probe", "bound"}

func (s Step) String() string {
	if s >= steps {
		return fmt.Sprintf("step %d", uint8(s))
	}
	return stepNames[s]
}

// rank orders simultaneous steps. Bound precedes those with smaller numbers.
func (s Step) rank() Step {
	if s == Bound {
		return Seen
	}
	return s
}

// MarshalText returns the step's name.
func (s Step) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the output of MarshalText.
func (s *Step) UnmarshalText(text []byte) error {
	for i, name := range stepNames {
		if name == string(text) {
			*s = Step(i)
			return nil
		}
	}
	return fmt.Errorf("%q is no step of a pod's start", text)
}

// Milestone is the time of a step of a pod's first start.
type Milestone struct {
	Step      Step      `json:"step"`
	Container string    `json:"container,omitempty"`
	Time      time.Time `json:"time"`
}

// End is the exit of one incarnation of a container.
type End struct {
	Container string `json:"container"`
	// ID is the runtime's; exits with equal IDs are the same.
	ID string `json:"id"`
	// Restart is the incarnation's restart count.
	Restart  int       `json:"restart"`
	ExitCode int       `json:"exitCode"`
	Reason   string    `json:"reason,omitempty"`  // Completed, Error, OOMKilled, …
	Message  string    `json:"message,omitempty"` // from the runtime, at most 1 KiB
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
	// Log is the end of its log: at most ten lines and 2 KiB.
	Log string `json:"log,omitempty"`
}

// Next is a scheduled action for a pod, which needs no further event.
type Next struct {
	Time      time.Time `json:"time"`
	Container string    `json:"container,omitempty"`
	What      string    `json:"what"`           // the action: "start", "kill"
	Rule      string    `json:"rule,omitempty"` // its cause: "crash-loop back-off 20s of at most 5m0s after 3 restarts"
}

// Timeline is the journal of one pod or manifest.
type Timeline struct {
	Subject Subject `json:"subject"`
	// Seen is the time of its first record.
	Seen time.Time `json:"seen"`
	// Milestones are the steps of its first start, in chronological order.
	Milestones []Milestone `json:"marks,omitempty"`
	// Ends are the last exits of each container, oldest first.
	Ends    []End   `json:"ends,omitempty"`
	Next    []Next  `json:"next,omitempty"`
	Entries []Entry `json:"entries"`
}
