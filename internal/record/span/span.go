// Package span records nested operations and their durations for a trace collector.
//
// Owns: the ended spans that were not taken yet, mostFinished at most.
// Reads: the parent of a request from its traceparent header (W3C Trace Context).
// Never: sends anything; costs more than a context lookup if tracing is off.
//
// A Tracer begins a trace. Start creates child spans from the context.
package span

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"time"
)

// mostFinished is the maximum number of ended spans; those beyond are dropped.
const mostFinished = 2048

// Kind is the role of a span in calls between programs.
type Kind int

// The kinds of spans.
const (
	Internal Kind = iota
	Server        // serves a request of another program
	Client        // calls another program
)

// Attribute is an attribute of a span, named by OpenTelemetry's semantic conventions.
type Attribute struct{ Key, Value string }

// Span is one operation.
type Span struct {
	Trace        [16]byte
	ID, Parent   [8]byte // Parent is zero for the root of a trace
	Name         string
	Kind         Kind
	Began, Ended time.Time
	Attributes   []Attribute
	Error        string // the failure, "" for success
}

// Tracer begins traces. A nil Tracer is a no-op. It is safe for concurrent use.
type Tracer struct {
	perMillion int32
	wake       chan struct{} // capacity 1

	mu       sync.Mutex
	finished []Span // guarded by mu
}

// New returns a Tracer with this sampling rate per million.
func New(perMillion int32) *Tracer {
	return &Tracer{perMillion: perMillion, wake: make(chan struct{}, 1)}
}

// current is the span of a context.
type current struct {
	tracer *Tracer
	trace  [16]byte
	id     [8]byte
}

type key struct{}

// nothing is the end function of an unsampled span.
func nothing(error) {}

// Begin begins a trace, if it is sampled. The returned function ends its root span.
func (t *Tracer) Begin(ctx context.Context, name string, attributes ...Attribute) (context.Context, func(error)) {
	if t == nil || mathrand.Int32N(1_000_000) >= t.perMillion {
		return ctx, nothing
	}
	c := current{tracer: t}
	_, _ = rand.Read(c.trace[:]) // never fails
	return c.start(ctx, Span{Name: name, Attributes: attributes})
}

// Serve begins a span for a request, as a child of its traceparent header, and sampled if the
// parent is. A request without one begins a trace.
func (t *Tracer) Serve(ctx context.Context, traceparent, name string, attributes ...Attribute) (context.Context, func(error)) {
	if t == nil {
		return ctx, nothing
	}
	c, sampled, ok := parseParent(traceparent)
	switch {
	case ok && !sampled, !ok && mathrand.Int32N(1_000_000) >= t.perMillion:
		return ctx, nothing
	case !ok:
		_, _ = rand.Read(c.trace[:])
	}
	c.tracer = t
	return c.start(ctx, Span{Name: name, Kind: Server, Attributes: attributes})
}

// Start begins a child of the context's span; without one it is a no-op. The returned function ends
// it.
func Start(ctx context.Context, kind Kind, name string, attributes ...Attribute) (context.Context, func(error)) {
	c, ok := ctx.Value(key{}).(current)
	if !ok {
		return ctx, nothing
	}
	return c.start(ctx, Span{Name: name, Kind: kind, Attributes: attributes})
}

// start begins a child of c.
func (c current) start(ctx context.Context, s Span) (context.Context, func(error)) {
	s.Trace, s.Parent, s.Began = c.trace, c.id, time.Now()
	_, _ = rand.Read(s.ID[:])
	c.id = s.ID
	return context.WithValue(ctx, key{}, c), func(err error) {
		s.Ended = time.Now()
		if err != nil {
			s.Error = err.Error()
		}
		c.tracer.finish(s)
	}
}

func (t *Tracer) finish(s Span) {
	t.mu.Lock()
	if len(t.finished) < mostFinished {
		t.finished = append(t.finished, s)
	}
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Wake has an element when spans have ended; it is nil for a nil Tracer.
func (t *Tracer) Wake() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.wake
}

// Take returns the spans that have ended since the last call.
func (t *Tracer) Take() []Span {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.finished
	t.finished = nil
	return out
}

// Parent returns the traceparent header for calls to another program with the context, "" without a
// span.
func Parent(ctx context.Context) string {
	c, ok := ctx.Value(key{}).(current)
	if !ok {
		return ""
	}
	return "00-" + hex.EncodeToString(c.trace[:]) + "-" + hex.EncodeToString(c.id[:]) + "-01"
}

// parseParent parses a traceparent header
// (https://www.w3.org/TR/trace-context/#traceparent-header).
func parseParent(header string) (c current, sampled, ok bool) {
	parts := strings.Split(header, "-")
	if len(parts) < 4 || len(parts[0]) != 2 || parts[0] == "ff" || parts[0] == "00" && len(parts) != 4 || len(parts[3]) != 2 {
		return c, false, false
	}
	flags, err := hex.DecodeString(parts[3])
	if err != nil || !decode(c.trace[:], parts[1]) || !decode(c.id[:], parts[2]) {
		return current{}, false, false
	}
	return c, flags[0]&1 != 0, true
}

// decode parses an ID, which must be lower case and not zero.
func decode(id []byte, text string) bool {
	if len(text) != 2*len(id) || strings.ToLower(text) != text || strings.Trim(text, "0") == "" {
		return false
	}
	_, err := hex.Decode(id, []byte(text))
	return err == nil
}
