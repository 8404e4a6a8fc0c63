package agent

import (
	"context"
	"errors"
	"sync"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroups"
	"berth/internal/embedded"
	"berth/internal/pod"
)

// facts is what only the running runtime tells, and what depends on it: the cgroup driver. It stands in for containerManager until then.
type facts struct {
	mu            sync.RWMutex
	name, version string           // guarded by mu
	cgroups       ContainerManager // guarded by mu; nil until the runtime answered
	strictGroups  bool             // guarded by mu; the runtime honours supplementalGroupsPolicy
}

var errNotReady = errors.New("the container runtime has not answered yet")

// set keeps the runtime's facts; make builds containerManager unless there is one.
func (f *facts) set(name, version string, make func() (ContainerManager, error)) error {
	f.mu.RLock()
	c := f.cgroups
	f.mu.RUnlock()
	if c == nil {
		var err error
		if c, err = make(); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.name, f.version, f.cgroups = name, version, c
	return nil
}

// setFeatures keeps what the runtime can do.
func (f *facts) setFeatures(r *runtimeapi.RuntimeFeatures) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.strictGroups = r.GetSupplementalGroupsPolicy()
}

func (f *facts) hasStrictGroups() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.strictGroups
}

func (f *facts) runtimeName() string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.name
}

func (f *facts) runtimeVersion() string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.version
}

func (f *facts) get() ContainerManager {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.cgroups
}

// EnsurePod makes the pod's cgroup.
func (f *facts) EnsurePod(ctx context.Context, p *v1.Pod) error {
	if c := f.get(); c != nil {
		return c.EnsurePod(ctx, p)
	}
	return errNotReady
}

// PodParent returns the pod's cgroup in the form of the driver.
func (f *facts) PodParent(p *v1.Pod) string {
	if c := f.get(); c != nil {
		return c.PodParent(p)
	}
	return ""
}

// PodPath returns the cgroup of a pod, "" for one that has none.
func (f *facts) PodPath(uid pod.UID) string {
	if q, ok := f.get().(interface{ PodPath(pod.UID) string }); ok {
		return q.PodPath(uid)
	}
	return ""
}

// QoSPath returns the cgroup of a class of pods, "" while it is not known.
func (f *facts) QoSPath(class v1.PodQOSClass) string {
	if q, ok := f.get().(interface{ QoSPath(v1.PodQOSClass) string }); ok {
		return q.QoSPath(class)
	}
	return ""
}

// ResizePod changes one value of the pod's cgroup.
func (f *facts) ResizePod(ctx context.Context, p *v1.Pod, part cgroups.PodPart) error {
	if c := f.get(); c != nil {
		return c.ResizePod(ctx, p, part)
	}
	return errNotReady
}

// PodMemoryUsage returns the bytes of memory that the pod uses.
func (f *facts) PodMemoryUsage(p *v1.Pod) (int64, error) {
	if c := f.get(); c != nil {
		return c.PodMemoryUsage(p)
	}
	return 0, errNotReady
}

// KillPod kills what runs in the pod's cgroup.
func (f *facts) KillPod(ctx context.Context, uid pod.UID) error {
	if c := f.get(); c != nil {
		return c.KillPod(ctx, uid)
	}
	return errNotReady
}

// KillContainer kills what runs in the cgroup of a container.
func (f *facts) KillContainer(ctx context.Context, uid pod.UID, id pod.ContainerID) error {
	if c := f.get(); c != nil {
		return c.KillContainer(ctx, uid, id)
	}
	return errNotReady
}

// RemovePod removes the pod's cgroup.
func (f *facts) RemovePod(ctx context.Context, uid pod.UID) error {
	if c := f.get(); c != nil {
		return c.RemovePod(ctx, uid)
	}
	return errNotReady
}

// IsOccupied reports whether a process is in the pod's cgroup.
func (f *facts) IsOccupied(uid pod.UID) (bool, error) {
	if o, ok := f.get().(interface {
		IsOccupied(uid pod.UID) (bool, error)
	}); ok {
		return o.IsOccupied(uid)
	}
	return false, nil
}

// Processes returns what runs in the pod's cgroup.
func (f *facts) Processes(uid pod.UID) ([]cgroups.Process, error) {
	if l, ok := f.get().(interface {
		Processes(uid pod.UID) ([]cgroups.Process, error)
	}); ok {
		return l.Processes(uid)
	}
	return nil, nil
}

// List returns the pods that have a cgroup.
func (f *facts) List() ([]pod.UID, error) {
	if l, ok := f.get().(interface{ List() ([]pod.UID, error) }); ok {
		return l.List()
	}
	return nil, nil
}

// EmptyContainers returns the cgroups of sandboxes and containers without a process, by their ids.
func (f *facts) EmptyContainers() (map[string][]string, error) {
	if c, ok := f.get().(embedded.Cgroups); ok {
		return c.EmptyContainers()
	}
	return nil, nil
}

// RemoveEmpty removes the cgroups of one of them.
func (f *facts) RemoveEmpty(dirs []string) error {
	if c, ok := f.get().(embedded.Cgroups); ok {
		return c.RemoveEmpty(dirs)
	}
	return nil
}

// RemoveQoS removes the cgroups above those of pods.
func (f *facts) RemoveQoS() error {
	if r, ok := f.get().(interface{ RemoveQoS() error }); ok {
		return r.RemoveQoS()
	}
	return nil
}
