package status

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

// MirrorAPI is the part of the API server that Mirrors uses.
type MirrorAPI interface {
	CreatePod(ctx context.Context, p *v1.Pod) error
	// DeletePod deletes the pod immediately if it still has the UID.
	DeletePod(ctx context.Context, namespace, name string, uid pod.UID) error
}

// MirrorsConfig is the configuration of Mirrors.
type MirrorsConfig struct {
	API  MirrorAPI
	Pods *pod.Manager
	// Changed gets the full names of static and mirror pods that were added, changed or deleted.
	Changed *pod.Inbox[pod.FullName]
	// Node returns the Node's name and UID; the UID is empty while the node is not registered, or
	// is being deleted.
	Node func() (name string, uid pod.UID)
	// NodeChanged has an element when the result of Node has changed.
	NodeChanged <-chan struct{}
	// Ending reports whether a static pod of this name is terminating, even a previous one with the
	// UID of the present one.
	Ending func(pod.FullName) bool
	// Complete reports whether Pods has the pods of every source: before, a static pod may not have
	// been read yet. When it becomes true, Changed gets the mirrors.
	Complete func() bool
	// Published is called with a static pod's UID when its mirror is up to date: its status can be
	// written.
	Published func(pod.UID)
	// Event records an event for a pod.
	Event func(p *v1.Pod, eventtype, reason, message string)
	Log   *slog.Logger
}

// Mirrors maintains one mirror pod in the API server for each static pod. Deleting or changing a
// mirror does not affect its static pod.
type Mirrors struct {
	MirrorsConfig
	// seen is the annotation config.seen of static pods with mirrors. It distinguishes pods of the
	// same UID whose manifest was deleted and written again. Used only by Run's goroutine.
	seen map[pod.FullName]string
	// taken maps static pods to the UID of another pod that has their name in the API server. Used
	// only by Run's goroutine.
	taken map[pod.FullName]pod.UID
}

// NewMirrors returns Mirrors; call Run.
func NewMirrors(cfg MirrorsConfig) *Mirrors {
	return &Mirrors{cfg, map[pod.FullName]string{}, map[pod.FullName]pod.UID{}}
}

// mirrorRetry is the retry period for mirrors that could not be created or deleted.
const mirrorRetry = 5 * time.Second

// Run reconciles mirrors until ctx is done.
func (m *Mirrors) Run(ctx context.Context) error {
	timer := time.NewTimer(mirrorRetry)
	timer.Stop()
	defer timer.Stop()
	pending := map[pod.FullName]struct{}{}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.Changed.Wake():
			for _, n := range m.Changed.Take() {
				pending[n] = struct{}{}
			}
		case <-m.NodeChanged:
			m.all(pending)
		case <-timer.C:
		}
		for n := range pending {
			done, err := m.sync(ctx, n)
			if err != nil && ctx.Err() == nil {
				m.Log.Warn("mirror pod not brought up to date", "pod", n, "error", err)
			}
			if done && err == nil {
				delete(pending, n)
			}
		}
		if len(pending) > 0 {
			timer.Reset(mirrorRetry)
		}
	}
}

// all adds every static pod and mirror to pending.
func (m *Mirrors) all(pending map[pod.FullName]struct{}) {
	for _, p := range m.Pods.List() {
		if pod.IsStatic(p) {
			pending[pod.FullNameOf(p)] = struct{}{}
		}
	}
	for _, p := range m.Pods.Mirrors() {
		pending[pod.FullNameOf(p)] = struct{}{}
	}
}

// sync reconciles the mirror of one name; done is false if it must be retried without an event.
func (m *Mirrors) sync(ctx context.Context, n pod.FullName) (done bool, err error) {
	complete := m.Complete() // first: the static pod may be read concurrently
	static, wanted := m.Pods.GetByFullName(n)
	wanted = wanted && pod.IsStatic(static)
	mirror, exists := m.Pods.Mirror(n)
	switch {
	case !wanted && !exists:
		delete(m.seen, n)
		delete(m.taken, n)
		return true, nil
	case !wanted && !complete:
		return false, nil
	case wanted && exists && m.isMirrorOf(mirror, static):
		m.seen[n] = static.Annotations[pod.ConfigSeenAnnotation]
		m.Published(static.UID)
		return true, nil
	case exists && m.Ending(n):
		return false, nil // it represents the pod that is terminating
	case !wanted:
		// It is retried until the mirror is gone: an API server that has just started may report
		// NotFound for an existing pod. A mirror with finalizers is deleted once they are removed.
		return mirror.DeletionTimestamp != nil && len(mirror.Finalizers) > 0, m.delete(ctx, mirror)
	case exists:
		if err := m.delete(ctx, mirror); err != nil {
			return false, err
		}
	}
	node, uid := m.Node()
	if uid == "" {
		return true, nil // NodeChanged causes a retry
	}
	err = m.API.CreatePod(ctx, generateMirror(static, node, uid))
	if apierrors.IsAlreadyExists(err) {
		m.tellTaken(static)
		return false, nil // the watch will show it soon, or its deletion
	}
	if err != nil {
		return false, fmt.Errorf("create: %w", err)
	}
	m.seen[n] = static.Annotations[pod.ConfigSeenAnnotation]
	delete(m.taken, n)
	return true, nil
}

// tellTaken records an event that another pod has the static pod's name, once for each such pod.
func (m *Mirrors) tellTaken(static *v1.Pod) {
	n := pod.FullNameOf(static)
	for _, p := range m.Pods.List() {
		if pod.FullNameOf(p) == n && !pod.IsStatic(p) && m.taken[n] != p.UID {
			m.taken[n] = p.UID
			m.Event(static, v1.EventTypeWarning, "FailedCreate", fmt.Sprintf(
				"The API server has another pod of this name (UID %s), so it does not show this one. Both run: delete that pod, or give this one another name in its manifest", p.UID))
		}
	}
}

// isMirrorOf reports whether the mirror is up to date. A mirror of an earlier agent is, if it has
// the same manifest.
func (m *Mirrors) isMirrorOf(mirror, static *v1.Pod) bool {
	seen, known := m.seen[pod.FullNameOf(static)]
	return mirror.DeletionTimestamp == nil &&
		mirror.Annotations[pod.ConfigMirrorAnnotation] == static.Annotations[pod.ConfigHashAnnotation] &&
		(!known || seen == static.Annotations[pod.ConfigSeenAnnotation])
}

func (m *Mirrors) delete(ctx context.Context, mirror *v1.Pod) error {
	err := m.API.DeletePod(ctx, mirror.Namespace, mirror.Name, mirror.UID)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// generateMirror returns the mirror of a static pod (KEP-1314: it is owned by the Node).
func generateMirror(static *v1.Pod, node string, nodeUID pod.UID) *v1.Pod {
	controller := true
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: static.Name, Namespace: static.Namespace, Labels: maps.Clone(static.Labels), Annotations: maps.Clone(static.Annotations),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: nodeUID, Controller: &controller}},
		},
		Spec: *static.Spec.DeepCopy(),
	}
	p.Annotations[pod.ConfigMirrorAnnotation] = static.Annotations[pod.ConfigHashAnnotation]
	return p
}
