package server

import (
	"fmt"
	"net/http"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

type podFinder struct {
	pods     Pods
	observed func(uid pod.UID) (*pod.Status, bool)
}

// find returns the pod of this name; of two incarnations, the one that is not being deleted.
func (f podFinder) find(namespace, name string) (*v1.Pod, bool) {
	var found *v1.Pod
	for _, p := range f.pods.List() {
		if p.Namespace == namespace && p.Name == name && (found == nil || p.DeletionTimestamp == nil) {
			found = p
		}
	}
	return found, found != nil
}

// streamedPod returns the pod of the path, or responds that it does not exist.
func (f podFinder) streamedPod(w http.ResponseWriter, r *http.Request) (*v1.Pod, bool) {
	p, ok := f.find(r.PathValue("namespace"), r.PathValue("pod"))
	if uid := pod.UID(r.PathValue("uid")); ok && uid != "" && uid != p.UID {
		if p, ok = f.pods.Get(uid); ok {
			ok = p.Namespace == r.PathValue("namespace") && p.Name == r.PathValue("pod")
		}
	}
	if !ok {
		http.Error(w, "pod does not exist", http.StatusNotFound)
	}
	return p, ok
}

// runningContainer returns the running container of the path, or responds that there is none.
func (f podFinder) runningContainer(w http.ResponseWriter, r *http.Request) (pod.ContainerID, bool) {
	p, ok := f.streamedPod(w, r)
	if !ok {
		return "", false
	}
	name := r.PathValue("container")
	if s, ok := f.observed(p.UID); ok {
		if c := s.FindContainer(name); c != nil && c.State == pod.StateRunning {
			return c.ID, true
		}
	}
	http.Error(w, fmt.Sprintf("container not found (%q)", name), http.StatusNotFound)
	return "", false
}
