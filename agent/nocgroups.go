package agent

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"berth/internal/cgroups"
	"berth/internal/pod"
)

// noCgroups is containerManager before the runtime has answered: what changes something fails with errNotReady, and there is nothing yet.
type noCgroups struct{}

// EnsurePod fails.
func (noCgroups) EnsurePod(context.Context, *v1.Pod) error { return errNotReady }

// PodParent returns "".
func (noCgroups) PodParent(*v1.Pod) string { return "" }

// RemovePod fails.
func (noCgroups) RemovePod(context.Context, pod.UID) error { return errNotReady }

// ResizePod fails.
func (noCgroups) ResizePod(context.Context, *v1.Pod, cgroups.PodPart) error { return errNotReady }

// PodMemoryUsage fails: 0 would be a pod that uses nothing.
func (noCgroups) PodMemoryUsage(*v1.Pod) (int64, error) { return 0, errNotReady }

// KillPod fails.
func (noCgroups) KillPod(context.Context, pod.UID) error { return errNotReady }

// KillContainer fails.
func (noCgroups) KillContainer(context.Context, pod.UID, pod.ContainerID) error { return errNotReady }

// EmptyContainers returns none.
func (noCgroups) EmptyContainers() (map[string][]string, error) { return nil, nil }

// RemoveEmpty has nothing to remove.
func (noCgroups) RemoveEmpty([]string) error { return nil }

// PodPath returns "".
func (noCgroups) PodPath(pod.UID) string { return "" }

// List returns none.
func (noCgroups) List() ([]pod.UID, error) { return nil, nil }

// IsOccupied returns false.
func (noCgroups) IsOccupied(pod.UID) (bool, error) { return false, nil }

// Processes returns none.
func (noCgroups) Processes(pod.UID) ([]cgroups.Process, error) { return nil, nil }

// QoSPath returns "".
func (noCgroups) QoSPath(v1.PodQOSClass) string { return "" }

// EnforceAllocatable fails.
func (noCgroups) EnforceAllocatable() error { return errNotReady }

// RemoveQoS has nothing to remove.
func (noCgroups) RemoveQoS() error { return nil }
