package journal

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Subject is what an entry is about: a pod, or a manifest that did not become one (then Name is its
// file or URL and UID is empty).
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
	Component string        `json:"component"`           // who decided: config, admission, eviction, worker, runtime, image, volume, status, logs, shutdown, scheduler; event, quarantine
	Decision  string        `json:"decision"`            // what was decided, one line
	Why       string        `json:"why,omitempty"`       // the inputs that led to it
	Took      time.Duration `json:"took,omitempty"`      // nanoseconds; 0 when nothing was waited for
	Error     string        `json:"error,omitempty"`     // how it failed
	Container string        `json:"container,omitempty"` // the container it is about, if one
	Count     int           `json:"count,omitempty"`     // how often in a row; 0 and 1 mean once
}

// Step is one step of a pod's start.
type Step uint8

// The steps of a start. Image, Created, Started, Hook and Startup are those of one container each;
// the others are the pod's.
const (
	Seen     Step = iota // the pod's first entry; nobody marks it
	Admitted             // it may run here
	Cgroup               // its cgroup is there
	Volumes              // its volumes are mounted
	Sandbox              // its sandbox runs
	Image                // a container's image is present
	Created              // a container was created
	Started              // a container's process was started
	Ready                // the pod is ready for the first time
	Hook                 // a container's postStart hook has ended well
	Startup              // a container has passed its startup probe
	Bound                // it has a node, for which it waited
	steps                // new steps come before it: the numbers are on disk
)

var stepNames = [steps]string{"seen", "admitted", "cgroup", "volumes", "sandbox", "image", "created", "started", "ready", "postStart hook", "startup probe", "bound"}

func (s Step) String() string {
	if s >= steps {
		return fmt.Sprintf("step %d", uint8(s))
	}
	return stepNames[s]
}

// rank orders steps that were done at once. Bound comes before those with smaller numbers.
func (s Step) rank() Step {
	if s == Bound {
		return Seen
	}
	return s
}

// MarshalText returns the step's name.
func (s Step) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *Step) UnmarshalText(text []byte) error {
	for i, name := range stepNames {
		if name == string(text) {
			*s = Step(i)
			return nil
		}
	}
	return fmt.Errorf("%q is no step of a pod's start", text)
}

// Milestone says when a step of a pod's first start was done.
type Milestone struct {
	Step      Step      `json:"step"`
	Container string    `json:"container,omitempty"`
	Time      time.Time `json:"time"`
}

// End is how one incarnation of a container ended.
type End struct {
	Container string `json:"container"`
	// ID is the runtime's; two ends with one ID are one.
	ID string `json:"id"`
	// Restart is the incarnation's restart count.
	Restart  int       `json:"restart"`
	ExitCode int       `json:"exitCode"`
	Reason   string    `json:"reason,omitempty"`  // Completed, Error, OOMKilled, …
	Message  string    `json:"message,omitempty"` // the runtime's own words, at most 1 KiB
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
	// Log is the end of its log: at most ten lines and 2 KiB.
	Log string `json:"log,omitempty"`
}

// Next is what will happen to a pod without any further event.
type Next struct {
	Time      time.Time `json:"time"`
	Container string    `json:"container,omitempty"`
	What      string    `json:"what"`           // "start", "kill": what happens then
	Rule      string    `json:"rule,omitempty"` // why then: "crash-loop back-off 20s of at most 5m0s after 3 restarts"
}

// Timeline is all that the journal has of one pod or manifest.
type Timeline struct {
	Subject Subject `json:"subject"`
	// Seen is when the journal first heard of it.
	Seen time.Time `json:"seen"`
	// Milestones are the steps of its first start, in the order in which they were done.
	Milestones []Milestone `json:"marks,omitempty"`
	// Ends are the last ends of each container, oldest first.
	Ends    []End   `json:"ends,omitempty"`
	Next    []Next  `json:"next,omitempty"`
	Entries []Entry `json:"entries"`
}
