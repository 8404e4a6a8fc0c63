package quarantine

import (
	v1 "k8s.io/api/core/v1"

	"berth/internal/journal"
	"berth/internal/pod"
	"berth/internal/podworkers"
)

// Workers are the pod workers.
type Workers interface {
	UpdatePod(o podworkers.UpdatePodOptions)
}

// Pods are the desired pods.
type Pods interface {
	Get(uid pod.UID) (*v1.Pod, bool)
}

// Releaser is the quarantine for clients, who know pods by name.
type Releaser struct {
	Quarantine *Quarantine
	Pods       Pods
	Workers    Workers
}

// Why returns the crash for which the pod is set aside.
func (r Releaser) Why(uid pod.UID) (report string, quarantined bool) { return r.Quarantine.Why(uid) }

// Release lets the pods of this name be touched again, at once, and reports whether one was set
// aside.
func (r Releaser) Release(namespace, name string) (released bool) {
	j := r.Quarantine.Journal
	for _, s := range j.Stories(namespace, name) {
		uid := s.Subject.UID
		if uid == "" || !r.Quarantine.release(uid) {
			continue
		}
		released = true
		j.Record(journal.Entry{Subject: s.Subject, Component: component, Decision: "the pod is released", Why: "a client asked for it"})
		wake := podworkers.UpdatePodOptions{UpdateType: podworkers.SyncPodSync}
		if p, ok := r.Pods.Get(uid); ok {
			wake.Pod = p
		} else {
			wake.RunningPod = &pod.Status{UID: uid, Namespace: namespace, Name: name}
		}
		r.Workers.UpdatePod(wake)
	}
	return released
}
