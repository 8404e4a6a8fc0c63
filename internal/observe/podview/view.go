// Package podview shows the pods as clients see them: the desired state with the reported status.
//
// Owns: the callbacks of an embedding program.
// Reads: desired pods, statuses, pod workers, the runtime's observations.
// Never: changes a pod.
package podview

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/observe/pleg"
	"berth/internal/observe/status"
	"berth/internal/pod"
)

// Workers are the pod workers.
type Workers interface {
	// TerminatingPod returns the pod that a worker terminates, if it is no longer desired.
	TerminatingPod(uid pod.UID) (*v1.Pod, bool)
	// TerminatingPods returns the UIDs of these pods.
	TerminatingPods() []pod.UID
}

// View returns the pods as clients see them: desired state with reported status.
type View struct {
	Desired *pod.Manager
	Status  *status.Manager
	Workers Workers
	PLEG    *pleg.PLEG
	Started time.Time // start of the agent
}

// Get returns the pod with its newest status; it is shared and must not be modified. A pod that
// is terminating and no longer desired is shown as being deleted.
func (v View) Get(uid pod.UID) (*v1.Pod, bool) {
	uid = v.Desired.TranslateUID(uid) // API clients use the UID of the mirror pod
	p, wanted := v.Desired.Get(uid)
	if !wanted {
		last, ok := v.Status.Pod(uid)
		if !ok { // not reported yet by this agent
			last, ok = v.Workers.TerminatingPod(uid)
		}
		if !ok {
			return nil, false
		}
		p = last
	}
	p = v.Status.WithStatus(p)
	if wanted || p.DeletionTimestamp != nil {
		return p, true
	}
	out := *p
	out.DeletionTimestamp = &metav1.Time{Time: v.Started}
	out.DeletionGracePeriodSeconds = p.Spec.TerminationGracePeriodSeconds
	return &out, true
}

// List returns all pods like Get, ordered by namespace and name.
func (v View) List() []*v1.Pod {
	uids := map[pod.UID]bool{}
	for _, p := range v.Desired.List() {
		uids[p.UID] = true
	}
	for _, uid := range v.Status.UIDs() {
		uids[uid] = true
	}
	for _, uid := range v.Workers.TerminatingPods() {
		uids[uid] = true
	}
	out := make([]*v1.Pod, 0, len(uids))
	for uid := range uids {
		if p, ok := v.Get(uid); ok {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(x, y *v1.Pod) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID))
	})
	return out
}

// ContainerLog returns the log file of one incarnation of a container.
func (v View) ContainerLog(uid pod.UID, id pod.ContainerID) (string, error) {
	s, ok := v.PLEG.Newest(uid)
	if !ok {
		return "", fmt.Errorf("the runtime has nothing of pod %s: %w", uid, fs.ErrNotExist)
	}
	for i := range s.Containers {
		if s.Containers[i].ID == id {
			return s.Containers[i].LogPath, nil
		}
	}
	return "", fmt.Errorf("the runtime has no container %s: %w", id, fs.ErrNotExist)
}
