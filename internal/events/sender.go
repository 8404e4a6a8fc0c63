package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The rules of events that repeat, as every Kubernetes client has them: the same event again raises its count; many similar ones become
// one; one object may not flood the API server.
const (
	seriesWindow   = 10 * time.Minute // an event that did not come again for so long begins anew
	similarMost    = 10               // so many messages of one reason are told apart
	spamBurst      = 25               // events of one object at once
	spamPeriod     = 5 * time.Minute  // in which it may have one more
	queued         = 1000             // events that wait to be sent; then the newest is dropped
	sendTries      = 12
	sendDelay      = 10 * time.Second
	rememberAtMost = 4096
)

// API is what the sender needs of the API server.
type API interface {
	CreateEvent(ctx context.Context, e *v1.Event) (*v1.Event, error)
	// PatchEvent writes what differs; an event that has expired is NotFound.
	PatchEvent(ctx context.Context, old, changed *v1.Event) (*v1.Event, error)
}

// Sender tells the API server of events, one after another. An API server that is away delays them; what is too much is dropped.
type Sender struct {
	api    API
	log    *slog.Logger
	source v1.EventSource
	now    func() time.Time
	queue  chan occurrence
	last   int64 // number of the last event's name; Run's own

	mu     sync.Mutex
	series map[seriesKey]*series // guarded by mu
	spam   map[objectKey]*bucket // guarded by mu
	lost   int                   // guarded by mu; dropped since the last one was sent
}

type occurrence struct {
	ref                        v1.ObjectReference
	eventtype, reason, message string
	at                         time.Time
}

// objectKey is whom an event is about, with the container.
type objectKey struct{ kind, namespace, name, uid, field string }

type seriesKey struct {
	object                     objectKey
	eventtype, reason, message string // message is "" for a series of similar events
}

type series struct {
	sent     *v1.Event // as stored; nil before
	last     time.Time
	messages map[string]struct{} // of a series of similar events: those seen
}

type bucket struct {
	left float64
	at   time.Time
}

// NewSender returns a sender for a component on a node.
func NewSender(api API, component, node string, log *slog.Logger) *Sender {
	return &Sender{
		api: api, log: log, source: v1.EventSource{Component: component, Host: node}, now: time.Now, queue: make(chan occurrence, queued),
		series: map[seriesKey]*series{}, spam: map[objectKey]*bucket{},
	}
}

// Send takes an event to be sent. It never blocks.
func (s *Sender) Send(ref v1.ObjectReference, eventtype, reason, message string) {
	o := occurrence{ref: ref, eventtype: eventtype, reason: reason, message: message, at: s.now()}
	if !s.allow(objectOf(&ref), o.at) {
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

// allow is the spam filter: a bucket of tokens for each object.
func (s *Sender) allow(k objectKey, now time.Time) bool {
	k.field = ""
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.spam) > rememberAtMost {
		clear(s.spam)
	}
	b := s.spam[k]
	if b == nil {
		b = &bucket{left: spamBurst, at: now}
		s.spam[k] = b
	}
	b.left = min(spamBurst, b.left+max(0, now.Sub(b.at).Seconds())/spamPeriod.Seconds())
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

func (s *Sender) send(ctx context.Context, o occurrence) {
	k, message := s.seriesOf(&o)
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
		select {
		case <-time.After(sendDelay):
		case <-ctx.Done():
			return
		}
	}
}

// refused reports whether the server will not take the event, however often it is asked: a namespace that goes is the usual case.
func refused(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code/100 == 4 && !apierrors.IsTooManyRequests(err)
}

// seriesOf returns the series that the occurrence belongs to, and its message there.
func (s *Sender) seriesOf(o *occurrence) (seriesKey, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.series) > rememberAtMost {
		clear(s.series)
	}
	similar := seriesKey{object: objectOf(&o.ref), eventtype: o.eventtype, reason: o.reason}
	group := s.series[similar]
	if group == nil || o.at.Sub(group.last) > seriesWindow {
		group = &series{messages: map[string]struct{}{}}
		s.series[similar] = group
	}
	group.last = o.at
	exact := similar
	exact.message = o.message
	if _, seen := group.messages[o.message]; !seen && len(group.messages) >= similarMost {
		return similar, "(combined from similar events): " + o.message
	}
	group.messages[o.message] = struct{}{}
	if one := s.series[exact]; one == nil || o.at.Sub(one.last) > seriesWindow {
		s.series[exact] = &series{}
	}
	s.series[exact].last = o.at
	return exact, o.message
}

func (s *Sender) sendOnce(ctx context.Context, k seriesKey, o *occurrence, message string) error {
	s.mu.Lock()
	var old *v1.Event
	if one := s.series[k]; one != nil {
		old = one.sent
	}
	s.mu.Unlock()
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.series[k]; one != nil {
		one.sent = stored
	}
	return nil
}

func (s *Sender) generate(o *occurrence, message string) *v1.Event {
	namespace := o.ref.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	at := metav1.NewTime(o.at)
	s.last = max(s.last+1, o.at.UnixNano()) // two events of one moment need two names
	return &v1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", o.ref.Name, s.last), Namespace: namespace},
		InvolvedObject: o.ref, Reason: o.reason, Message: message, Type: o.eventtype, Count: 1,
		FirstTimestamp: at, LastTimestamp: at, Source: s.source, ReportingController: s.source.Component, ReportingInstance: s.source.Host,
	}
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

func objectOf(r *v1.ObjectReference) objectKey {
	return objectKey{r.Kind, r.Namespace, r.Name, string(r.UID), r.FieldPath}
}
