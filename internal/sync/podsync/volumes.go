package podsync

import (
	"context"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/runtime/crispec"
	"berth/internal/storage/volumes"
)

// podVolumes are the volumes of a pod in one pass.
type podVolumes struct {
	syncer *Syncer
	pod    *v1.Pod

	mu     sync.Mutex     // held while volumes are set up
	inputs volumes.Inputs // guarded by mu; the newest
	set    bool           // guarded by mu while the pass is followed; the pass has set them up
}

// setUp makes the volumes show the newest inputs, and returns them by name.
func (v *podVolumes) setUp(ctx context.Context) (map[string]crispec.Volume, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.set = true
	mounted, errs := v.syncer.Volumes.Setup(ctx, v.pod, v.inputs)
	if errs != nil {
		v.syncer.reportFailedMounts(ctx, v.pod, errs)
		return nil, errs.Err()
	}
	v.syncer.setMounted(v.pod.UID)
	return mounted, nil
}

// follow has volumes show what objects say newly while the pass lasts: an image that is pulled or a
// hook of one container is nothing that the others' files wait for. The returned function ends
// that.
func (v *podVolumes) follow(ctx context.Context, changed <-chan struct{}) (stop func()) {
	if !v.inputs.Live() {
		return func() {}
	}
	return whileLasts(ctx, changed, func(lasts context.Context) {
		// The pass that follows says what cannot be had, or be shown.
		in, err := v.syncer.Volumes.Prepare(lasts, v.pod)
		if err != nil || lasts.Err() != nil {
			return
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.inputs = in
		if v.set || v.syncer.isMounted(v.pod.UID) {
			_, _ = v.syncer.Volumes.Setup(ctx, v.pod, in)
		}
	})
}

// refreshWhileEnding has the volumes of a pod that ends show the newest of objects whenever refresh
// is called, until stop is: what still runs may take long, and needs tokens that are valid. The
// error of one is nobody's: the next refresh does the same.
func (p *pass) refreshWhileEnding(ctx context.Context) (refresh, stop func()) {
	if !slices.ContainsFunc(p.Observed.Containers, func(c pod.ContainerStatus) bool { return c.State == pod.StateRunning }) {
		return func() {}, func() {}
	}
	wake := make(chan struct{}, 1)
	refresh = func() {
		select {
		case wake <- struct{}{}:
		default: // it is about to be done
		}
	}
	s := p.syncer
	if !s.isMounted(p.UID) { // an earlier agent did, and does not follow the objects any more
		s.Objects.Register(p.Pod)
		refresh()
	}
	return refresh, whileLasts(ctx, wake, func(lasts context.Context) {
		if in, err := s.Volumes.Prepare(lasts, p.Pod); err == nil && in.Live() && lasts.Err() == nil {
			_, _ = s.Volumes.Setup(ctx, p.Pod, in)
		}
	})
}

// whileLasts calls f for each wake-up until stop is called, which waits for a call that is under
// way; its context ends with stop.
func whileLasts(ctx context.Context, wake <-chan struct{}, f func(lasts context.Context)) (stop func()) {
	lasts, end := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-lasts.Done():
				return
			case <-wake:
				f(lasts)
			}
		}
	}()
	return func() {
		end()
		<-ended
	}
}

// reportFailedMounts records one event per volume that failed, unless the pass was ended.
func (s *Syncer) reportFailedMounts(ctx context.Context, p *v1.Pod, errs volumes.Errors) {
	if ctx.Err() != nil {
		return
	}
	for _, e := range errs {
		s.Event(p, "", v1.EventTypeWarning, e.Reason(), e.Error())
	}
}

// isMounted reports whether this agent has set up the pod's volumes.
func (s *Syncer) isMounted(uid pod.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mounted[uid]
}

func (s *Syncer) setMounted(uid pod.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mounted[uid] = true
}

// forget drops what is remembered of the pod.
func (s *Syncer) forget(uid pod.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.errors, uid)
	delete(s.mounted, uid)
}
