package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// events are the container starts that the runtime reports, with its own clock.
type events struct {
	mu      sync.Mutex
	started map[string][]time.Time // guarded by mu; by the pod's name
	err     error                  // guarded by mu; why the stream ended
	changed chan struct{}          // guarded by mu; closed at the next event
}

func watchEvents(ctx context.Context, c runtimeapi.RuntimeServiceClient) (*events, error) {
	stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return nil, err
	}
	e := &events{started: map[string][]time.Time{}, changed: make(chan struct{})}
	go func() {
		for {
			got, err := stream.Recv()
			e.take(got, err)
			if err != nil {
				return
			}
		}
	}()
	return e, nil
}

func (e *events) take(got *runtimeapi.ContainerEventResponse, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.changed)
	e.changed = make(chan struct{})
	if e.err = err; err != nil || got.ContainerId == got.GetPodSandboxStatus().GetId() {
		return
	}
	if got.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT {
		name := got.GetPodSandboxStatus().GetMetadata().GetName()
		e.started[name] = append(e.started[name], time.Unix(0, got.CreatedAt))
	}
}

// since returns the last time of each name, sorted; nil unless each is at begin or later.
func since(times map[string][]time.Time, names []string, begin time.Time) []time.Time {
	var found []time.Time
	for _, n := range names {
		all := times[n]
		if len(all) == 0 || all[len(all)-1].Before(begin) {
			return nil
		}
		found = append(found, all[len(all)-1])
	}
	slices.SortFunc(found, time.Time.Compare)
	return found
}

// awaitStarted returns the start times of the pods' containers at begin or later, sorted.
func (e *events) awaitStarted(ctx context.Context, names []string, begin time.Time) ([]time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, enough, fmt.Errorf("%d pods were not started within %v", len(names), enough))
	defer cancel()
	for {
		e.mu.Lock()
		found, err, changed := since(e.started, names, begin), e.err, e.changed
		e.mu.Unlock()
		if found != nil || err != nil {
			return found, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
