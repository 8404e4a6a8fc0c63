package server

import (
	"cmp"
	"net/http"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

type podHandlers struct {
	out      *responder
	pods     Pods
	observed Observed
	lists    *podLists
}

// getPods returns the pods of the node, static pods with their status.
func (p podHandlers) getPods(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	p.out.logAborted(r, p.lists.pods.write(w, p.pods.List()))
}

// getRunningPods returns the pods that the runtime reports as running, with only the fields that
// the runtime has.
func (p podHandlers) getRunningPods(w http.ResponseWriter, r *http.Request) {
	var running []*v1.Pod
	for _, s := range p.observed.List() {
		one := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace, UID: s.UID}}
		for i := range s.Containers {
			if c := &s.Containers[i]; c.State == pod.StateRunning {
				one.Spec.Containers = append(one.Spec.Containers, v1.Container{Name: c.Name, Image: c.Image})
			}
		}
		if len(one.Spec.Containers) > 0 {
			running = append(running, one)
		}
	}
	slices.SortFunc(running, func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	w.Header().Set("Content-Type", "application/json")
	p.out.logAborted(r, p.lists.running.write(w, running))
}
