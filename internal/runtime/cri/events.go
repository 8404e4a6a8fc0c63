package cri

import (
	"context"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// Events reads the runtime's event stream until it breaks or ctx is done, and returns the cause. It
// waits for a runtime that is unavailable.
//
// opened is called once the stream is open from the client's view (the runtime does not acknowledge
// it). put is called with the UID of an event's pod, or "" if the event has none. Both must return
// at once: containerd publishes synchronously, so that a stalled reader blocks every create, start
// and stop of the runtime. Only one stream may be open at a time. ErrUnimplemented means that the
// runtime has no events.
func (o *Observer) Events(ctx context.Context, opened func(), put func(pod.UID)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	s, err := o.events.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return classify(ctx, "GetContainerEvents", runtimeServer, began, err)
	}
	o.noStreams.Store(false) // the runtime may have been replaced since streamed lists were tried
	opened()
	for {
		e, err := s.Recv()
		if err != nil {
			return classify(ctx, "GetContainerEvents", runtimeServer, began, err)
		}
		put(pod.UID(e.GetPodSandboxStatus().GetMetadata().GetUid()))
	}
}
