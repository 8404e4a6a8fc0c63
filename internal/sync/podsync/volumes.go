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

// podVolumes holds the volumes of a pod during one pass.
type podVolumes struct {
	syncer *Syncer
	pod    *v1.Pod

	mu     sync.Mutex     // held while volumes are set up
	inputs volumes.Inputs // guarded by mu; the newest
	set    bool           // guarded by mu while follow runs; the pass has set them up
}

// setUp writes the newest inputs to the volumes and returns the volumes by name.
func (v *podVolumes) setUp(ctx context.Context) (map[string]crispec.Volume, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.set = true
	mounted, errs := v.syncer.Volumes.Setup(ctx, v.pod, v.inputs)
	if errs != nil {
		v.syncer.reportFailedMounts(ctx, v.pod, errs)
		return nil, errs.Err()
	}
	v.syncer.state.setMounted(v.pod.UID)
	return mounted, nil
}

// follow refreshes volumes from changed objects during the pass: an image pull or a hook of one
// container must not delay the files of the others. The returned function stops it.
func (v *podVolumes) follow(ctx context.Context, changed <-chan struct{}) (stop func()) {
	if !v.inputs.Live() {
		return func() {}
	}
	return untilStopped(ctx, changed, func(callCtx context.Context) {
		// The next pass reports inputs and volumes that fail.
		in, err := v.syncer.Volumes.Prepare(callCtx, v.pod)
		if err != nil || callCtx.Err() != nil {
			return
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.inputs = in
		if v.set || v.syncer.state.isMounted(v.pod.UID) {
			_, _ = v.syncer.Volumes.Setup(ctx, v.pod, in)
		}
	})
}

// refreshWhileTerminating refreshes the volumes of a terminating pod whenever refresh is called,
// until stop is called: its containers may run for long and need valid tokens. Errors are ignored:
// the next refresh retries.
func (p *endPass) refreshWhileTerminating(ctx context.Context) (refresh, stop func()) {
	if !slices.ContainsFunc(p.Observed.Containers, func(c pod.ContainerStatus) bool { return c.State == pod.StateRunning }) {
		return func() {}, func() {}
	}
	wake := make(chan struct{}, 1)
	refresh = func() {
		select {
		case wake <- struct{}{}:
		default: // a refresh is pending
		}
	}
	s := p.syncer
	if !s.state.isMounted(p.UID) { // set up by an earlier agent, whose watches no longer exist
		s.Objects.Register(p.Pod)
		refresh()
	}
	return refresh, untilStopped(ctx, wake, func(callCtx context.Context) {
		if in, err := s.Volumes.Prepare(callCtx, p.Pod); err == nil && in.Live() && callCtx.Err() == nil {
			_, _ = s.Volumes.Setup(ctx, p.Pod, in)
		}
	})
}

// untilStopped calls f for each wake-up until stop is called. stop cancels the context of a running
// call and waits for it.
func untilStopped(ctx context.Context, wake <-chan struct{}, f func(callCtx context.Context)) (stop func()) {
	callCtx, end := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-callCtx.Done():
				return
			case <-wake:
				f(callCtx)
			}
		}
	}()
	return func() {
		end()
		<-ended
	}
}

// reportFailedMounts records one event for each failed volume, unless the pass was interrupted.
func (s *Syncer) reportFailedMounts(ctx context.Context, p *v1.Pod, errs volumes.Errors) {
	if ctx.Err() != nil {
		return
	}
	for _, e := range errs {
		s.Event(p, "", v1.EventTypeWarning, e.Reason(), e.Error())
	}
}

func (s *podState) isMounted(uid pod.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mounted[uid]
}

func (s *podState) setMounted(uid pod.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mounted[uid] = true
}

func (s *podState) forget(uid pod.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.startErrors, uid)
	delete(s.mounted, uid)
}
