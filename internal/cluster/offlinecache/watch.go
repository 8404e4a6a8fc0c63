package offlinecache

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ServerPods watches the pods that the API server has bound to this node.
type ServerPods interface {
	// Run watches the pods until ctx is done.
	Run(ctx context.Context) error
	// List returns the pods, none before the first list is complete.
	List() (pods []*v1.Pod, synced bool)
	// Err returns the error of the last attempt, nil if it succeeded.
	Err() error
}

// PodWatch watches the pods of this node: the cached pods while the API server is unavailable at
// the start, and the server's from its first list on.
type PodWatch struct {
	cache   *Cache
	server  ServerPods
	wake    chan struct{} // capacity 1; the server's pods have changed
	changed func()

	mu     sync.Mutex
	cached []*v1.Pod // guarded by mu
	listed bool      // guarded by mu; the server has listed its pods
}

// Watch returns a watch on top of the server's watch, which open creates with the function to call
// when its pods change. changed is called when the pods of the watch change. Neither may block.
func (c *Cache) Watch(open func(changed func()) ServerPods, changed func()) *PodWatch {
	w := &PodWatch{cache: c, wake: make(chan struct{}, 1), changed: changed}
	w.server = open(func() {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	})
	return w
}

// List returns the pods. synced is false while they are cached ones: these may start, but a missing
// pod must not be considered deleted.
func (w *PodWatch) List() (pods []*v1.Pod, synced bool) {
	w.mu.Lock()
	cached, listed := w.cached, w.listed
	w.mu.Unlock()
	if !listed {
		return cached, false
	}
	return w.server.List()
}

// Run watches the pods until ctx is done.
func (w *PodWatch) Run(ctx context.Context) error {
	exited := make(chan error, 1)
	go func() { exited <- w.server.Run(ctx) }()
	timer := time.NewTimer(listTimeout)
	defer timer.Stop()
	for {
		select {
		case err := <-exited:
			return err
		case <-timer.C:
			w.serveCached()
		case <-w.wake:
			pods, synced := w.server.List()
			if !synced {
				continue
			}
			timer.Stop()
			w.publish(ctx, pods)
		}
	}
}

// serveCached serves the cached pods. A server that answers with 401 or 403 is not unavailable.
func (w *PodWatch) serveCached() {
	if _, synced := w.server.List(); synced {
		return
	}
	if err := w.server.Err(); apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		w.cache.Log.Warn("The API server forbids this node to list its pods, not starting cached pods", "error", err)
		return
	}
	pods := w.cache.serve()
	if len(pods) == 0 {
		return
	}
	w.mu.Lock()
	w.cached = pods
	w.mu.Unlock()
	w.changed()
}

// publish publishes the server's pods and caches them.
func (w *PodWatch) publish(ctx context.Context, pods []*v1.Pod) {
	w.mu.Lock()
	first := !w.listed
	w.mu.Unlock()
	if first {
		w.cache.disable(ctx, pods)
		w.mu.Lock()
		w.listed, w.cached = true, nil
		w.mu.Unlock()
	} else {
		w.cache.entries.setPods(pods)
	}
	w.changed()
}
