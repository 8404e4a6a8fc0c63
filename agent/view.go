package agent

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
	"berth/internal/sync/podworkers"
)

// podView returns the pods as clients see them: desired state with reported status.
type podView struct {
	desired *pod.Manager
	status  *status.Manager
	workers *podworkers.PodWorkers
	pleg    *pleg.PLEG
	since   time.Time // start of the agent
}

// getPod returns the pod with its newest status; it is shared and must not be modified. A pod that
// is terminating and no longer desired is shown as being deleted.
func (v podView) getPod(uid pod.UID) (*v1.Pod, bool) {
	uid = v.desired.TranslateUID(uid) // API clients use the UID of the mirror pod
	p, wanted := v.desired.Get(uid)
	if !wanted {
		last, ok := v.status.Pod(uid)
		if !ok { // not reported yet by this agent
			last, ok = v.workers.Ending(uid)
		}
		if !ok {
			return nil, false
		}
		p = last
	}
	p = v.status.WithStatus(p)
	if wanted || p.DeletionTimestamp != nil {
		return p, true
	}
	out := *p
	out.DeletionTimestamp = &metav1.Time{Time: v.since}
	out.DeletionGracePeriodSeconds = p.Spec.TerminationGracePeriodSeconds
	return &out, true
}

// listPods returns all pods like getPod, ordered by namespace and name.
func (v podView) listPods() []*v1.Pod {
	uids := map[pod.UID]bool{}
	for _, p := range v.desired.List() {
		uids[p.UID] = true
	}
	for _, uid := range v.status.UIDs() {
		uids[uid] = true
	}
	for _, uid := range v.workers.AllEnding() {
		uids[uid] = true
	}
	out := make([]*v1.Pod, 0, len(uids))
	for uid := range uids {
		if p, ok := v.getPod(uid); ok {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(x, y *v1.Pod) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID))
	})
	return out
}

// containerLog returns the log file of one incarnation of a container.
func (v podView) containerLog(uid pod.UID, id pod.ContainerID) (string, error) {
	s, ok := v.pleg.Newest(uid)
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
