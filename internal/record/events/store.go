package events

import (
	"cmp"
	"container/list"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/checkpoint"
	"berth/internal/pod"
)

const (
	// storedAtMost is the maximum number of stored events.
	storedAtMost = 1000
	// storedPause is the maximum interval of repetitions of an event; the API server deletes events
	// after the same time.
	storedPause = time.Hour
	// storedMessage is the maximum length of a message in bytes.
	storedMessage = 1024
	// storeFileLimit is the size at which the store's file is replaced by a snapshot.
	storeFileLimit = 1 << 20
)

// Store stores the newest events of this node, counted and combined like the API server's. It is
// safe for concurrent use.
type Store struct {
	source v1.EventSource
	file   *checkpoint.WarmLog // nil for a store in memory
	// changed publishes the names of events.
	changed pod.Publisher[string]

	mu      sync.Mutex
	similar aggregator                  // guarded by mu
	order   *list.List                  // guarded by mu; least recently seen first; elements are *stored
	names   map[string]*list.Element    // guarded by mu; by stored.name
	series  map[seriesKey]*list.Element // guarded by mu; the newest of each series
	last    int64                       // guarded by mu; number of the last event's name
}

// stored is the stored form of an event, in memory and, as JSON, in the file. With only Number,
// Count and Last it is a repetition of the event with its number.
type stored struct {
	Number  int64               `json:"n"`
	Ref     *v1.ObjectReference `json:"ref,omitempty"`
	Type    string              `json:"type,omitempty"`
	Reason  string              `json:"reason,omitempty"`
	Message string              `json:"message,omitempty"`
	First   int64               `json:"first,omitempty"` // nanoseconds
	Last    int64               `json:"last"`
	Count   int32               `json:"count"`
	// Annotations are from its first occurrence.
	Annotations map[string]string `json:"annotations,omitempty"`
}

func (e *stored) name() string { return eventName(e.Ref, e.Number) }

func (e *stored) key() seriesKey {
	k := seriesKey{object: objectOf(e.Ref), eventtype: e.Type, reason: e.Reason, message: e.Message}
	if strings.HasPrefix(e.Message, combinedPrefix) {
		k.object, k.message = k.object.whole(), ""
	}
	return k
}

// NewStore returns an empty in-memory store for a component on a node.
func NewStore(component, node string) *Store {
	return &Store{
		source: v1.EventSource{Component: component, Host: node}, similar: newAggregator(),
		order: list.New(), names: map[string]*list.Element{}, series: map[seriesKey]*list.Element{},
	}
}

// NewStoreInFolder returns a store that is persisted in a file of the directory. Load reads it, Run
// writes it.
func NewStoreInFolder(dir, component, node string, log *slog.Logger) *Store {
	s := NewStore(component, node)
	s.file = checkpoint.NewLog(checkpoint.LogConfig{
		Dir: dir, Name: "events", Version: 1, Limit: storeFileLimit, Lock: &s.mu, Snapshot: s.snapshotLocked, Log: log,
	})
	return s
}

// Load reads the file. It must be called before anything is added.
func (s *Store) Load() error {
	numbers := map[int64]*list.Element{}
	return s.file.Load(func(record []byte) error {
		var e stored
		if err := json.Unmarshal(record, &e); err != nil {
			return err
		}
		switch el := numbers[e.Number]; {
		case e.Ref != nil:
			s.last = max(s.last, e.Number)
			numbers[e.Number], _ = s.insertLocked(&e)
		case el != nil && s.names[el.Value.(*stored).name()] == el:
			s.repeatLocked(el, &e)
		}
		return nil
	})
}

// Run writes the store asynchronously until ctx is done, and then the rest.
func (s *Store) Run(ctx context.Context) error { return s.file.Writer.Run(ctx) }

// Health returns why and since when the file cannot be written, or nil.
func (s *Store) Health() error { return s.file.Writer.Health() }

// Add records one event about an object.
func (s *Store) Add(ref v1.ObjectReference, eventtype, reason, message string) {
	s.add(occurrence{ref: ref, eventtype: eventtype, reason: reason, message: message, at: time.Now()})
}

func (s *Store) add(o occurrence) {
	if len(o.message) > storedMessage {
		o.message = strings.ToValidUTF8(o.message[:storedMessage], "")
	}
	s.mu.Lock()
	name, forgotten := s.addLocked(&o)
	s.mu.Unlock()
	s.changed.Publish(name)
	if forgotten != "" {
		s.changed.Publish(forgotten)
	}
}

// addLocked counts the occurrence and returns the name of its event, and of an event that was
// dropped to stay within the limit.
func (s *Store) addLocked(o *occurrence) (name, forgotten string) {
	key, message := s.similar.seriesOf(o)
	at := o.at.UnixNano()
	if el := s.series[key]; el != nil {
		if e := el.Value.(*stored); at-e.Last <= int64(storedPause) {
			again := stored{Number: e.Number, Last: max(at, e.Last), Count: e.Count + 1}
			if message != e.Message {
				again.Message = message
			}
			s.repeatLocked(el, &again)
			s.appendLocked(&again)
			return e.name(), ""
		}
	}
	s.last = max(s.last+1, at)
	ref := o.ref
	e := &stored{Number: s.last, Ref: &ref, Type: o.eventtype, Reason: o.reason, Message: message, First: at, Last: at, Count: 1, Annotations: o.annotations}
	_, forgotten = s.insertLocked(e)
	s.appendLocked(e)
	return e.name(), forgotten
}

func (s *Store) insertLocked(e *stored) (el *list.Element, forgotten string) {
	el = s.order.PushBack(e)
	s.names[e.name()], s.series[e.key()] = el, el
	if s.order.Len() > storedAtMost {
		oldest := s.order.Front()
		gone := s.order.Remove(oldest).(*stored)
		forgotten = gone.name()
		delete(s.names, forgotten)
		if k := gone.key(); s.series[k] == oldest {
			delete(s.series, k)
		}
	}
	return el, forgotten
}

// repeatLocked counts an occurrence. The series of the event is unchanged: only one that combines
// others changes its message.
func (s *Store) repeatLocked(el *list.Element, again *stored) {
	e := el.Value.(*stored)
	e.Last, e.Count, e.Message = again.Last, again.Count, cmp.Or(again.Message, e.Message)
	s.order.MoveToBack(el)
}

func (s *Store) appendLocked(e *stored) {
	if s.file != nil {
		s.file.Append(encode(e))
	}
}

func (s *Store) snapshotLocked(add func(record []byte)) {
	for el := s.order.Front(); el != nil; el = el.Next() {
		add(encode(el.Value.(*stored)))
	}
}

func encode(e *stored) []byte {
	b, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("event %+v has no JSON form: %v", e, err)) // strings and numbers have one
	}
	return b
}

// List returns the events, the most recently seen last.
func (s *Store) List() []*v1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*v1.Event, 0, s.order.Len())
	for el := s.order.Front(); el != nil; el = el.Next() {
		out = append(out, s.eventLocked(el.Value.(*stored)))
	}
	slices.SortStableFunc(out, func(a, b *v1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	return out
}

// Get returns the event of that name, and false if it is not stored.
func (s *Store) Get(name string) (*v1.Event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	el := s.names[name]
	if el == nil {
		return nil, false
	}
	return s.eventLocked(el.Value.(*stored)), true
}

// Subscribe returns an inbox that gets the name of each event that is recorded or dropped from now
// on, and a function that cancels the subscription.
func (s *Store) Subscribe() (changed *pod.Inbox[string], cancel func()) {
	return s.changed.Subscribe()
}

func (s *Store) eventLocked(e *stored) *v1.Event {
	out := newEvent(e.Ref, s.source, e.Number)
	out.TypeMeta = metav1.TypeMeta{Kind: "Event", APIVersion: "v1"}
	out.CreationTimestamp = metav1.NewTime(time.Unix(0, e.First))
	out.Type, out.Reason, out.Message, out.Count = e.Type, e.Reason, e.Message, e.Count
	out.FirstTimestamp, out.LastTimestamp = out.CreationTimestamp, metav1.NewTime(time.Unix(0, e.Last))
	out.Annotations = e.Annotations
	return out
}
