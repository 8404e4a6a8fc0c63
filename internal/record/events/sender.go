package events

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/lru"

	"berth/internal/pod"
)

const (
	queued    = 1000 // events in the queue; beyond it, new ones are dropped
	sendTries = 12
	sendDelay = 10 * time.Second
)

// API is the part of the API server that Sender uses.
type API interface {
	CreateEvent(ctx context.Context, e *v1.Event) (*v1.Event, error)
	// PatchEvent writes the differences; the error of an expired event is NotFound.
	PatchEvent(ctx context.Context, old, changed *v1.Event) (*v1.Event, error)
}

// Sender sends events to the API server, one after another. An unavailable API server delays them;
// beyond the queue they are dropped.
type Sender struct {
	api    API
	log    *slog.Logger
	source v1.EventSource
	queue  chan occurrence

	// Used only by Run:
	last    int64 // number of the last event's name
	similar aggregator
	sent    *lru.Cache // seriesKey → *v1.Event as stored

	mu   sync.Mutex
	spam spamFilter // guarded by mu
	lost int        // guarded by mu; dropped since the last sent one
}

// NewSender returns a sender for a component on a node.
func NewSender(api API, component, node string, log *slog.Logger) *Sender {
	return &Sender{
		api: api, log: log, source: v1.EventSource{Component: component, Host: node}, queue: make(chan occurrence, queued),
		similar: newAggregator(), sent: lru.New(rememberAtMost), spam: newSpamFilter(),
	}
}

// Send queues an event. It never blocks.
func (s *Sender) Send(ref v1.ObjectReference, eventtype, reason, message string) {
	s.take(occurrence{ref: ref, eventtype: eventtype, reason: reason, message: message, at: time.Now()})
}

func (s *Sender) take(o occurrence) {
	s.mu.Lock()
	allowed := s.spam.allow(objectOf(&o.ref), o.at)
	s.mu.Unlock()
	if !allowed {
		return
	}
	select {
	case s.queue <- o:
	default:
		s.mu.Lock()
		s.lost++
		s.mu.Unlock()
	}
}

// Run sends events until ctx is done.
func (s *Sender) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case o := <-s.queue:
			s.send(ctx, o)
		}
	}
}

func (s *Sender) send(ctx context.Context, o occurrence) {
	k, message := s.similar.seriesOf(&o)
	for try := 1; ; try++ {
		err := s.sendOnce(ctx, k, &o, message)
		switch {
		case err == nil:
			s.reportLost()
			return
		case ctx.Err() != nil:
			return
		case refused(err):
			s.log.Debug("event refused by the API server", "reason", o.reason, "error", err)
			return
		case try == sendTries:
			s.log.Warn("event not sent", "reason", o.reason, "message", o.message, "tries", try, "error", err)
			return
		}
		if !pod.Pause(ctx, sendDelay) {
			return
		}
	}
}

// refused reports whether the server rejects the event permanently, for example because its
// namespace is terminating.
func refused(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code/100 == 4 && !apierrors.IsTooManyRequests(err)
}

func (s *Sender) sendOnce(ctx context.Context, k seriesKey, o *occurrence, message string) error {
	var old *v1.Event
	if e, ok := s.sent.Get(k); ok {
		old = e.(*v1.Event)
	}
	var stored *v1.Event
	var err error
	if old != nil {
		changed := old.DeepCopy()
		changed.Count++
		changed.LastTimestamp = metav1.NewTime(o.at)
		changed.Message = message
		stored, err = s.api.PatchEvent(ctx, old, changed)
	}
	if old == nil || apierrors.IsNotFound(err) {
		stored, err = s.api.CreateEvent(ctx, s.generate(o, message))
	}
	if err != nil {
		return err
	}
	stored.ManagedFields = nil // unused, and half of the event
	s.sent.Add(k, stored)
	return nil
}

func (s *Sender) generate(o *occurrence, message string) *v1.Event {
	s.last = max(s.last+1, o.at.UnixNano()) // simultaneous events need distinct names
	e := newEvent(&o.ref, s.source, s.last)
	e.Annotations = o.annotations
	at := metav1.NewTime(o.at)
	e.Type, e.Reason, e.Message, e.Count, e.FirstTimestamp, e.LastTimestamp = o.eventtype, o.reason, message, 1, at, at
	return e
}

func (s *Sender) reportLost() {
	s.mu.Lock()
	lost := s.lost
	s.lost = 0
	s.mu.Unlock()
	if lost > 0 {
		s.log.Warn("events were dropped while the API server did not take them", "count", lost)
	}
}
