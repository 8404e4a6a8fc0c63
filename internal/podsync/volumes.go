package podsync

import (
	"context"
	"slices"
	"sync"

	"berth/internal/crispec"
	"berth/internal/pod"
	"berth/internal/volumes"
)

// shownVolumes are the volumes of a pod in one pass.
type shownVolumes struct {
	syncer  *Syncer
	request Request

	mu     sync.Mutex     // held while volumes are set up
	inputs volumes.Inputs // guarded by mu; the newest
	set    bool           // guarded by mu while the pass is followed; the pass has set them up
}

// setUp makes the volumes show the newest inputs, and returns them by name.
func (v *shownVolumes) setUp(ctx context.Context) (map[string]crispec.Volume, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.set = true
	return v.syncer.setupVolumes(ctx, v.request.Pod, v.inputs)
}

// follow has volumes show what objects say newly while the pass lasts: an image that is pulled or a hook of one container is nothing that the others'
// files wait for. The returned function ends that and reports whether the pod was woken.
func (v *shownVolumes) follow(ctx context.Context) (stop func() (woken bool)) {
	if !v.inputs.Live() {
		return func() bool { return false }
	}
	lasts, end := context.WithCancel(ctx)
	followed := make(chan bool, 1) // a pass that panics does not ask
	go func() {
		woken := false
		for {
			select {
			case <-lasts.Done():
				followed <- woken
				return
			case <-v.request.Wake:
				woken = true
				if in, ok := v.newest(lasts); ok {
					v.show(ctx, in)
				}
			}
		}
	}()
	return func() bool {
		end()
		return <-followed
	}
}

// newest returns newer inputs, if all can be had. The pass that follows tells of what cannot.
func (v *shownVolumes) newest(ctx context.Context) (volumes.Inputs, bool) {
	in, err := v.syncer.Volumes.Prepare(ctx, v.request.Pod)
	return in, err == nil && ctx.Err() == nil
}

// show takes over the inputs, and has them shown if this agent has set up the volumes. The pass that follows does the same, and tells of errors.
func (v *shownVolumes) show(ctx context.Context, in volumes.Inputs) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.inputs = in
	if v.set || v.syncer.isMounted(v.request.UID) {
		_, _ = v.syncer.Volumes.Setup(ctx, v.request.Pod, in)
	}
}

// showWhileEnding has the volumes of a pod that ends show the newest of objects whenever look is called, until stop is: what still runs may take long, and
// needs tokens that are valid. The error of one is nobody's: the next look does the same.
func (s *Syncer) showWhileEnding(ctx context.Context, r Request) (look, stop func()) {
	if !slices.ContainsFunc(r.Observed.Containers, func(c pod.ContainerStatus) bool { return c.State == pod.StateRunning }) {
		return func() {}, func() {}
	}
	lasts, end := context.WithCancel(ctx)
	wake, ended := make(chan struct{}, 1), make(chan struct{})
	look = func() {
		select {
		case wake <- struct{}{}:
		default: // it is about to look
		}
	}
	if !s.isMounted(r.UID) { // an earlier agent did, and does not follow the objects any more
		if s.Objects != nil {
			s.Objects.Register(r.Pod)
		}
		look()
	}
	go func() {
		defer close(ended)
		for {
			select {
			case <-lasts.Done():
				return
			case <-wake:
				if in, err := s.Volumes.Prepare(lasts, r.Pod); err == nil && in.Live() && lasts.Err() == nil {
					_, _ = s.Volumes.Setup(ctx, r.Pod, in)
				}
			}
		}
	}()
	return look, func() {
		end()
		<-ended
	}
}

// isMounted reports whether this agent has set up the pod's volumes.
func (s *Syncer) isMounted(uid pod.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mounted[uid]
}
