package critest

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// eventQueue delivers events to subscribers, in one goroutine, one event after the other, as
// containerd does: a subscriber whose channel is full blocks the goroutine, and with it all
// publishers and new subscribers.
type eventQueue struct {
	publish   chan *runtimeapi.ContainerEventResponse
	subscribe chan *subscriber
	done      chan struct{}
	closeOnce sync.Once
}

type subscriber struct {
	events chan *runtimeapi.ContainerEventResponse // closed by the queue when it stops
	closed chan struct{}                           // closed by the subscriber when it stops
}

func newEventQueue() *eventQueue {
	return &eventQueue{
		publish:   make(chan *runtimeapi.ContainerEventResponse),
		subscribe: make(chan *subscriber),
		done:      make(chan struct{}),
	}
}

// close stops the queue; undelivered events are lost.
func (q *eventQueue) close() { q.closeOnce.Do(func() { close(q.done) }) }

// send passes an event to the queue; it blocks while the queue delivers an earlier one.
func (q *eventQueue) send(event *runtimeapi.ContainerEventResponse) {
	select {
	case q.publish <- event:
	case <-q.done:
	}
}

// open adds a subscriber; it returns nil if the queue has stopped.
func (q *eventQueue) open() *subscriber {
	s := &subscriber{
		events: make(chan *runtimeapi.ContainerEventResponse, EventBacklog),
		closed: make(chan struct{}),
	}
	select {
	case q.subscribe <- s:
		return s
	case <-q.done:
		return nil
	}
}

func (q *eventQueue) run() {
	var subscribers []*subscriber
	var stored []*runtimeapi.ContainerEventResponse
	defer func() {
		for _, s := range subscribers {
			close(s.events)
		}
	}()
	for {
		select {
		case <-q.done:
			return
		case s := <-q.subscribe:
			for _, event := range fresh(stored, time.Now()) {
				q.deliver(s, event)
			}
			stored = nil
			subscribers = append(subscribers, s)
		case event := <-q.publish:
			subscribers = open(subscribers)
			if len(subscribers) == 0 {
				stored = append(fresh(stored, time.Now()), event)
			}
			for _, s := range subscribers {
				q.deliver(s, event)
			}
		}
	}
}

func (q *eventQueue) deliver(s *subscriber, event *runtimeapi.ContainerEventResponse) {
	select {
	case s.events <- event:
	case <-s.closed:
	case <-q.done:
	}
}

// open returns the subscribers that have not stopped.
func open(subscribers []*subscriber) []*subscriber {
	var still []*subscriber
	for _, s := range subscribers {
		select {
		case <-s.closed:
		default:
			still = append(still, s)
		}
	}
	return still
}

// fresh returns the events that are not older than EventRetention.
func fresh(events []*runtimeapi.ContainerEventResponse, now time.Time) []*runtimeapi.ContainerEventResponse {
	for len(events) > 0 && now.Sub(time.Unix(0, events[0].CreatedAt)) > EventRetention {
		events = events[1:]
	}
	return events
}

// GetContainerEvents streams events. Like containerd it waits for the next event and not for the
// client: a disconnected client is noticed when an event is sent to it.
func (s *runtimeService) GetContainerEvents(req *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	call := s.runtime.Calls.record("GetContainerEvents", req)
	err := s.streamEvents(req, stream)
	s.runtime.Calls.finish(call, err)
	return err
}

func (s *runtimeService) streamEvents(req *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	if !s.runtime.Events.isOffered() {
		return errUnimplemented("GetContainerEvents")
	}
	if _, err := s.runtime.Calls.before(stream.Context(), s.serving, "GetContainerEvents", req); err != nil {
		return err
	}
	sub := s.serving.events.open()
	if sub == nil {
		return errShutdown
	}
	defer close(sub.closed)
	broken := s.runtime.Events.broken()
	for {
		select {
		case <-broken.done:
			return broken.err
		case event, ok := <-sub.events:
			if !ok {
				return errShutdown
			}
			if err := stream.Send(event); err != nil {
				return status.Errorf(codes.Unknown, "failed to send event: %v", err)
			}
		}
	}
}

// Events publishes the events of a runtime.
type Events struct {
	mu       *sync.Mutex // the runtime's
	life     *lifetime
	offered  bool        // GetContainerEvents is implemented; guarded by mu
	queue    *eventQueue // guarded by mu; nil while the runtime is down
	lose     int         // number of events to be dropped; guarded by mu
	script   EventScript // guarded by mu; nil: every event is delivered once, at once
	breakage *breakage   // guarded by mu
}

// SetOffered enables GetContainerEvents, or makes it Unimplemented, from the next stream on, as
// after the installation of another version of the runtime.
func (e *Events) SetOffered(offered Offered) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.offered = bool(offered)
}

// Offered is whether a runtime has a feature.
type Offered bool

func (e *Events) isOffered() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.offered
}

// breakage closes the open event streams.
type breakage struct {
	done chan struct{}
	err  error // set before done is closed
}

func (e *Events) broken() *breakage {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.breakage
}

// BreakStreams closes the open event streams with an error; the runtime keeps running.
func (e *Events) BreakStreams(err error) {
	e.mu.Lock()
	old := e.breakage
	old.err = err
	e.breakage = &breakage{done: make(chan struct{})}
	e.mu.Unlock()
	close(old.done)
}

// Lose drops the next n events.
func (e *Events) Lose(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lose = n
}

// Send publishes an event from the test, such as one about an unknown ID, or a duplicate or
// late one. It blocks as every publisher does while a subscriber is behind, and does nothing while
// the runtime is down.
func (e *Events) Send(event *runtimeapi.ContainerEventResponse) {
	e.mu.Lock()
	queue := e.queue
	e.mu.Unlock()
	if queue != nil {
		queue.send(event)
	}
}

// notice is an event to be delivered to the subscribers.
type notice struct {
	mu     *sync.Mutex
	life   *lifetime
	queue  *eventQueue
	event  *runtimeapi.ContainerEventResponse
	script EventScript // nil: once, without delay
}

// notice returns the event of a container, or of the sandbox itself if id is its ID. It returns
// nil if no event is to be published. The caller holds the lock.
func (e *Events) notice(kind runtimeapi.ContainerEventType, id string, sb *sandbox) *notice {
	if e.queue == nil || !e.offered {
		return nil
	}
	if e.lose > 0 {
		e.lose--
		return nil
	}
	return &notice{e.mu, e.life, e.queue, &runtimeapi.ContainerEventResponse{
		ContainerId:        id,
		ContainerEventType: kind,
		CreatedAt:          time.Now().UnixNano(),
		PodSandboxStatus:   sb.status(),
		ContainersStatuses: sb.containerStatuses(),
	}, e.script}
}

// publish passes the event to the queue; it blocks while a subscriber is behind.
func (n *notice) publish() {
	switch {
	case n == nil:
	case n.script == nil:
		n.queue.send(n.event)
	default:
		n.deliver()
	}
}

// publish publishes an event with the present state.
func (e *Events) publish(kind runtimeapi.ContainerEventType, id string, sb *sandbox) {
	e.mu.Lock()
	n := e.notice(kind, id, sb)
	e.mu.Unlock()
	n.publish()
}
