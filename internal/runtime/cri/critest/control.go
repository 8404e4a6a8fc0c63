package critest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sandbox is a snapshot of a sandbox for tests.
type Sandbox struct {
	ID        string
	Metadata  *runtimeapi.PodSandboxMetadata
	Config    *runtimeapi.PodSandboxConfig // as passed by the client
	Handler   string
	Ready     bool
	IP        string // empty in the host network and after the stop
	CreatedAt time.Time
}

// Container is a snapshot of a container for tests.
type Container struct {
	ID         string
	SandboxID  string
	Pod        *runtimeapi.PodSandboxMetadata
	Name       string
	Attempt    uint32
	Config     *runtimeapi.ContainerConfig // as passed by the client, with updated resources
	State      runtimeapi.ContainerState
	CreatedAt  time.Time
	StartedAt  time.Time // zero before the start
	FinishedAt time.Time // zero before the exit
	ExitCode   int32
	Reason     string
	Message    string
	LogPath    string
}

// Sandboxes returns the sandboxes, oldest first.
func (r *Runtime) Sandboxes() []Sandbox {
	return r.sandboxesThat(func(*sandbox) bool { return true })
}

// SandboxesOf returns the sandboxes of a pod, oldest first.
func (r *Runtime) SandboxesOf(podUID string) []Sandbox {
	return r.sandboxesThat(func(sb *sandbox) bool { return sb.config.Metadata.Uid == podUID })
}

func (r *Runtime) sandboxesThat(match func(*sandbox) bool) []Sandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []Sandbox
	for _, sb := range r.sandboxes.all {
		if !match(sb) {
			continue
		}
		found = append(found, Sandbox{
			ID:        sb.id,
			Metadata:  proto.CloneOf(sb.config.Metadata),
			Config:    proto.CloneOf(sb.config),
			Handler:   sb.handler,
			Ready:     sb.state == runtimeapi.PodSandboxState_SANDBOX_READY,
			IP:        sb.ip,
			CreatedAt: sb.createdAt,
		})
	}
	slices.SortFunc(found, func(a, b Sandbox) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	return found
}

// Containers returns the containers, oldest first.
func (r *Runtime) Containers() []Container {
	return r.containersThat(func(*container) bool { return true })
}

// ContainersOf returns the containers of a pod in all its sandboxes, oldest first.
func (r *Runtime) ContainersOf(podUID string) []Container {
	return r.containersThat(func(c *container) bool { return c.sandbox.config.Metadata.Uid == podUID })
}

func (r *Runtime) containersThat(match func(*container) bool) []Container {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []Container
	for _, c := range r.containers.all {
		if match(c) {
			found = append(found, c.copied())
		}
	}
	slices.SortFunc(found, func(a, b Container) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	return found
}

// copied returns a snapshot of the container. The caller holds the lock.
func (c *container) copied() Container {
	return Container{
		ID:         c.id,
		SandboxID:  c.sandbox.id,
		Pod:        proto.CloneOf(c.sandbox.config.Metadata),
		Name:       c.config.Metadata.Name,
		Attempt:    c.config.Metadata.Attempt,
		Config:     proto.CloneOf(c.config),
		State:      c.state,
		CreatedAt:  c.createdAt,
		StartedAt:  c.startedAt,
		FinishedAt: c.finishedAt,
		ExitCode:   c.exitCode,
		Reason:     c.reason,
		Message:    c.message,
		LogPath:    c.logPath,
	}
}

// Find returns the newest container for a reference: an ID, "container", "pod/container" or
// "namespace/pod/container".
func (r *Runtime) Find(ref string) (Container, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := find(r.containers, ref)
	if c == nil {
		return Container{}, false
	}
	return c.copied(), true
}

// find returns the newest container for a reference, or nil. The caller holds the lock.
func find(containers shelf[*container], ref string) *container {
	if c := containers.all[ref]; c != nil {
		return c
	}
	var newest *container
	for _, id := range slices.Sorted(maps.Keys(containers.all)) {
		c := containers.all[id]
		if !slices.Contains(c.references(), ref) {
			continue
		}
		if newest == nil || c.createdAt.After(newest.createdAt) {
			newest = c
		}
	}
	return newest
}

// findRunning returns the container for a reference, which must be running. The caller holds the
// lock.
func findRunning(containers shelf[*container], ref string) (*container, error) {
	c := find(containers, ref)
	switch {
	case c == nil:
		return nil, fmt.Errorf("no container %q", ref)
	case c.state != runtimeapi.ContainerState_CONTAINER_RUNNING:
		return nil, fmt.Errorf("container %q is in %s state", ref, c.state)
	}
	return c, nil
}

// findSandbox returns the newest sandbox for a reference: an ID, a pod's UID, "pod" or
// "namespace/pod". The caller holds the lock.
func findSandbox(sandboxes shelf[*sandbox], ref string) (*sandbox, error) {
	var newest *sandbox
	for _, id := range slices.Sorted(maps.Keys(sandboxes.all)) {
		sb := sandboxes.all[id]
		m := sb.config.Metadata
		if !slices.Contains([]string{sb.id, m.Uid, m.Name, m.Namespace + "/" + m.Name}, ref) {
			continue
		}
		if newest == nil || sb.createdAt.After(newest.createdAt) {
			newest = sb
		}
	}
	if newest == nil {
		return nil, fmt.Errorf("no sandbox %q", ref)
	}
	return newest, nil
}

// Kill terminates a running container's process with an exit code, as if it had exited by itself.
// It returns when the event was published, which blocks while a subscriber is behind.
func (r *Runtime) Kill(ref string, exitCode int32) error {
	return r.end(ref, exitCode, "")
}

// OOM terminates a running container like an OOM kill: exit code 137, reason OOMKilled.
func (r *Runtime) OOM(ref string) error {
	return r.end(ref, killedCode, "OOMKilled")
}

func (r *Runtime) end(ref string, exitCode int32, reason string) error {
	r.mu.Lock()
	c, err := findRunning(r.containers, ref)
	r.mu.Unlock()
	if err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	r.processes.exit(c, exitCode, reason)
	return nil
}

// KillSandbox kills the process of a ready sandbox: it becomes NOTREADY and keeps its IP. Its
// containers keep running, except those that share its process namespace (the default of CRI's
// NamespaceOption).
func (r *Runtime) KillSandbox(ref string) error {
	r.mu.Lock()
	sb, err := findSandbox(r.sandboxes, ref)
	if err == nil && sb.state != runtimeapi.PodSandboxState_SANDBOX_READY {
		err = fmt.Errorf("sandbox %q is in %s state", ref, sb.state)
	}
	if err != nil {
		r.mu.Unlock()
		return fmt.Errorf("kill sandbox: %w", err)
	}
	containers := sb.sorted()
	r.mu.Unlock()
	for _, c := range containers {
		if c.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() == runtimeapi.NamespaceMode_POD {
			r.processes.exit(c, killedCode, "")
		}
	}
	r.mu.Lock()
	r.endSandbox(sb)
	r.mu.Unlock()
	return nil
}

// LoseAddress removes the IP of a sandbox while it stays ready, without an event.
func (r *Runtime) LoseAddress(ref string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	sb, err := findSandbox(r.sandboxes, ref)
	if err != nil {
		return fmt.Errorf("lose address: %w", err)
	}
	r.takeAddress(sb)
	return nil
}

// takeAddress releases a sandbox's IP. The caller holds the lock.
func (r *Runtime) takeAddress(sb *sandbox) {
	delete(r.addressed, sb.ip)
	sb.ip = ""
}

// PodAt returns the name of the pod whose ready sandbox has the IP.
func (r *Runtime) PodAt(ip string) (name string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sb := r.addressed[ip]
	if sb == nil || sb.state != runtimeapi.PodSandboxState_SANDBOX_READY {
		return "", false
	}
	return sb.config.Metadata.GetName(), true
}

// RemoveBehindBack removes a container, or a sandbox with its containers, without an event.
func (r *Runtime) RemoveBehindBack(ref string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := find(r.containers, ref); c != nil {
		r.forget(c)
		return nil
	}
	sb, err := findSandbox(r.sandboxes, ref)
	if err != nil {
		return fmt.Errorf("remove: no container or sandbox %q", ref)
	}
	for _, c := range sb.sorted() {
		r.forget(c)
	}
	r.sandboxes.remove(sb.id)
	r.takeAddress(sb)
	r.names.release(sb.name)
	return nil
}

// forget removes a container in any state. The caller holds the lock.
func (r *Runtime) forget(c *container) {
	if c.alive() {
		c.state = runtimeapi.ContainerState_CONTAINER_EXITED
		c.disarm()
		c.closeLog()
		close(c.exited) // a StopContainer in progress returns
		close(c.exitPublished)
	}
	r.containers.remove(c.id)
	delete(c.sandbox.containers, c.id)
	r.names.release(c.name)
}

// MakeUnknown moves a running container to CONTAINER_UNKNOWN without an event, like a runtime that
// cannot reach the container's shim after a restart. Stopping it makes it EXITED with exit code 255
// and reason Unknown.
func (r *Runtime) MakeUnknown(ref string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := findRunning(r.containers, ref)
	if err != nil {
		return fmt.Errorf("make unknown: %w", err)
	}
	c.state = runtimeapi.ContainerState_CONTAINER_UNKNOWN
	return nil
}
