package critest

import (
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// EventScript returns the delays after which copies of the next event are delivered: no copy is a
// lost event, two are a duplicate, and different delays reorder events. It is called for one event
// at a time.
type EventScript func() []time.Duration

// SetScript sets the script for the delivery of events from now on; nil delivers each once, at
// once.
func (e *Events) SetScript(script EventScript) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.script = script
}

// LosesEvery drops every nth event.
func LosesEvery(n int) EventScript {
	i := 0
	return func() []time.Duration {
		if i++; i%n == 0 {
			return nil
		}
		return []time.Duration{0}
	}
}

// DoublesAll delivers each event at once and again after the delay.
func DoublesAll(again time.Duration) EventScript {
	return func() []time.Duration { return []time.Duration{0, again} }
}

// DelaysAll delivers each event after the delay.
func DelaysAll(d time.Duration) EventScript {
	return func() []time.Duration { return []time.Duration{d} }
}

// Shuffles delivers none to two copies of each event, each after its own random delay below most.
func Shuffles(random *rand.Rand, most time.Duration) EventScript {
	return func() []time.Duration {
		delays := make([]time.Duration, random.IntN(3))
		for i := range delays {
			delays[i] = time.Duration(random.Int64N(int64(most)))
		}
		return delays
	}
}

// deliver sends the copies of the event according to its script.
func (n *notice) deliver() {
	n.mu.Lock()
	delays := n.script()
	n.mu.Unlock()
	for _, d := range delays {
		if d <= 0 {
			n.queue.send(n.event)
			continue
		}
		if !n.life.begin() {
			return
		}
		go func() {
			defer n.life.running.Done()
			timer := time.NewTimer(d)
			defer timer.Stop()
			select {
			case <-timer.C:
				n.queue.send(n.event)
			case <-n.queue.done:
			case <-n.life.done:
			}
		}()
	}
}

// Flood publishes perSecond events about the named pods, in rotation, for the given time,
// regardless of their state. It returns at the end, later if a subscriber is behind.
func (e *Events) Flood(perSecond int, length time.Duration, podUIDs ...string) {
	const burst = 10 * time.Millisecond
	end := time.NewTimer(length)
	defer end.Stop()
	bursts := time.NewTicker(burst)
	defer bursts.Stop()
	for sent := 0; ; {
		select {
		case <-bursts.C:
		case <-end.C:
			return
		case <-e.life.done:
			return
		}
		for range perSecond / int(time.Second/burst) {
			uid := podUIDs[sent%len(podUIDs)]
			sent++
			e.Send(&runtimeapi.ContainerEventResponse{
				ContainerId: uid, ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, CreatedAt: time.Now().UnixNano(),
				PodSandboxStatus: &runtimeapi.PodSandboxStatus{Metadata: &runtimeapi.PodSandboxMetadata{Uid: uid}},
			})
		}
	}
}

// StreamedPart is the number of elements in a part of a streamed list.
const StreamedPart = 100

// StreamPodSandboxes streams the list of sandboxes.
func (s *runtimeService) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	return s.streamed("StreamPodSandboxes", req, stream, func() error {
		list, err := s.ListPodSandbox(stream.Context(), &runtimeapi.ListPodSandboxRequest{Filter: req.Filter})
		for part := range slices.Chunk(list.GetItems(), StreamedPart) {
			if err == nil {
				err = stream.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: part})
			}
		}
		return err
	})
}

// StreamContainers streams the list of containers.
func (s *runtimeService) StreamContainers(req *runtimeapi.StreamContainersRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	return s.streamed("StreamContainers", req, stream, func() error {
		list, err := s.ListContainers(stream.Context(), &runtimeapi.ListContainersRequest{Filter: req.Filter})
		for part := range slices.Chunk(list.GetContainers(), StreamedPart) {
			if err == nil {
				err = stream.Send(&runtimeapi.StreamContainersResponse{Containers: part})
			}
		}
		return err
	})
}

func (s *runtimeService) streamed(method string, req any, stream grpc.ServerStream, send func() error) error {
	call := s.runtime.Calls.record(method, req)
	err := errUnimplemented(method)
	if s.runtime.config.withStreams {
		if _, err = s.runtime.Calls.before(stream.Context(), s.serving, method, req); err == nil {
			err = send()
		}
	}
	s.runtime.Calls.finish(call, err)
	return err
}
