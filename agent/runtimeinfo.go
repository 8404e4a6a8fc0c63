package agent

import (
	"context"
	"errors"
	"sync"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/runtime/embedded"
	"berth/internal/runtime/kuberuntime"
	"berth/internal/sync/podsync"
)

// ContainerManager manages the cgroups of pods.
type ContainerManager interface {
	podsync.Cgroups
	kuberuntime.Cgroups
	embedded.Cgroups
	PodCgroups
	NodeCgroups
}

// PodCgroups reads the cgroups of pods.
type PodCgroups interface {
	// PodPath returns the cgroup of a pod, "" for one that has none.
	PodPath(uid pod.UID) string
	// List returns the pods that have a cgroup.
	List() ([]pod.UID, error)
	// IsOccupied reports whether a process is in the pod's cgroup.
	IsOccupied(uid pod.UID) (bool, error)
	// Processes returns the processes in the pod's cgroup.
	Processes(uid pod.UID) ([]cgroups.Process, error)
}

// NodeCgroups are the cgroups above those of pods.
type NodeCgroups interface {
	// QoSPath returns the cgroup of a QoS class.
	QoSPath(class v1.PodQOSClass) string
	// EnforceAllocatable limits the pods' total resources. Idempotent.
	EnforceAllocatable() error
	// RemoveQoS removes the empty cgroups of QoS classes.
	RemoveQoS() error
}

// runtimeInfo holds what only the running runtime reports, and what depends on it: the cgroup
// driver. Until the runtime has answered, its containerManager is noCgroups.
type runtimeInfo struct {
	mu            sync.RWMutex
	name, version string           // guarded by mu
	cgroups       ContainerManager // guarded by mu
	strictGroups  bool             // guarded by mu; the runtime honours supplementalGroupsPolicy
}

// newRuntimeInfo returns the information before the runtime has answered. A non-nil cgroups
// replaces the containerManager that depends on the answer.
func newRuntimeInfo(cgroups ContainerManager) *runtimeInfo {
	if cgroups == nil {
		cgroups = noCgroups{}
	}
	return &runtimeInfo{cgroups: cgroups}
}

var errNotReady = errors.New("the container runtime has not answered yet")

// set stores the runtime's answer; newCgroups creates containerManager unless there is one.
func (i *runtimeInfo) set(name, version string, newCgroups func() (ContainerManager, error)) error {
	c := i.get()
	if c == (noCgroups{}) {
		var err error
		if c, err = newCgroups(); err != nil {
			return err
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.name, i.version, i.cgroups = name, version, c
	return nil
}

// setFeatures stores the runtime's features.
func (i *runtimeInfo) setFeatures(r *runtimeapi.RuntimeFeatures) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.strictGroups = r.GetSupplementalGroupsPolicy()
}

func (i *runtimeInfo) hasStrictGroups() bool {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.strictGroups
}

func (i *runtimeInfo) runtimeName() string {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.name
}

func (i *runtimeInfo) runtimeVersion() string {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.version
}

func (i *runtimeInfo) get() ContainerManager {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.cgroups
}

// As a ContainerManager, runtimeInfo delegates to the newest one.

func (i *runtimeInfo) PodParent(p *v1.Pod) string              { return i.get().PodParent(p) }
func (i *runtimeInfo) PodMemoryUsage(p *v1.Pod) (int64, error) { return i.get().PodMemoryUsage(p) }
func (i *runtimeInfo) RemoveEmpty(dirs []string) error         { return i.get().RemoveEmpty(dirs) }
func (i *runtimeInfo) PodPath(uid pod.UID) string              { return i.get().PodPath(uid) }
func (i *runtimeInfo) List() ([]pod.UID, error)                { return i.get().List() }
func (i *runtimeInfo) IsOccupied(uid pod.UID) (bool, error)    { return i.get().IsOccupied(uid) }
func (i *runtimeInfo) QoSPath(class v1.PodQOSClass) string     { return i.get().QoSPath(class) }
func (i *runtimeInfo) EnforceAllocatable() error               { return i.get().EnforceAllocatable() }
func (i *runtimeInfo) RemoveQoS() error                        { return i.get().RemoveQoS() }

func (i *runtimeInfo) EnsurePod(ctx context.Context, p *v1.Pod) error {
	return i.get().EnsurePod(ctx, p)
}

func (i *runtimeInfo) RemovePod(ctx context.Context, uid pod.UID) error {
	return i.get().RemovePod(ctx, uid)
}

func (i *runtimeInfo) ResizePod(ctx context.Context, p *v1.Pod, part cgroups.PodPart) error {
	return i.get().ResizePod(ctx, p, part)
}

func (i *runtimeInfo) KillPod(ctx context.Context, uid pod.UID) error {
	return i.get().KillPod(ctx, uid)
}

func (i *runtimeInfo) KillContainer(ctx context.Context, uid pod.UID, id pod.ContainerID) error {
	return i.get().KillContainer(ctx, uid, id)
}

func (i *runtimeInfo) EmptyContainers() (map[string][]string, error) {
	return i.get().EmptyContainers()
}

func (i *runtimeInfo) Processes(uid pod.UID) ([]cgroups.Process, error) {
	return i.get().Processes(uid)
}

// noCgroups is containerManager before the runtime has answered: modifications fail with
// errNotReady, and lists are empty. The memory usage of a pod is an error, because 0 would mean
// that it uses none.
type noCgroups struct{}

func (noCgroups) EnsurePod(context.Context, *v1.Pod) error { return errNotReady }
func (noCgroups) PodParent(*v1.Pod) string                 { return "" }
func (noCgroups) RemovePod(context.Context, pod.UID) error { return errNotReady }

func (noCgroups) ResizePod(context.Context, *v1.Pod, cgroups.PodPart) error { return errNotReady }

func (noCgroups) PodMemoryUsage(*v1.Pod) (int64, error) { return 0, errNotReady }

func (noCgroups) KillPod(context.Context, pod.UID) error { return errNotReady }

func (noCgroups) KillContainer(context.Context, pod.UID, pod.ContainerID) error { return errNotReady }
func (noCgroups) EmptyContainers() (map[string][]string, error)                 { return nil, nil }
func (noCgroups) RemoveEmpty([]string) error                                    { return nil }
func (noCgroups) PodPath(pod.UID) string                                        { return "" }
func (noCgroups) List() ([]pod.UID, error)                                      { return nil, nil }
func (noCgroups) IsOccupied(pod.UID) (bool, error)                              { return false, nil }
func (noCgroups) Processes(pod.UID) ([]cgroups.Process, error)                  { return nil, nil }
func (noCgroups) QoSPath(v1.PodQOSClass) string                                 { return "" }
func (noCgroups) EnforceAllocatable() error                                     { return errNotReady }
func (noCgroups) RemoveQoS() error                                              { return nil }
