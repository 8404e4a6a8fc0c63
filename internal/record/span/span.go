// Package span tells what was done within what, and how long it took, for a collector of traces.
//
// Owns: the spans that have ended and that nobody has taken yet, mostFinished at most.
// Reads: the parent of a request, as its header traceparent names it (W3C Trace Context).
// Never: sends anything; costs more than a look into the context where nobody traces.
//
// A trace begins with a Tracer. Whatever is done below it with its context, Start makes a span of.
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

// mostFinished is how many spans wait to be taken; those beyond are dropped.
const mostFinished = 2048

// Kind is where a span stands between programs.
type Kind int

// The kinds.
const (
	Internal Kind = iota
	Server        // it serves another program
	Client        // it asks another program
)

// Attribute says something of a span, under a name of OpenTelemetry's semantic conventions.
type Attribute struct{ Key, Value string }

// Span is something that was done.
type Span struct {
	Trace        [16]byte
	ID, Parent   [8]byte // Parent is zero for the first of a trace
	Name         string
	Kind         Kind
	Began, Ended time.Time
	Attributes   []Attribute
	Error        string // how it failed, "" if it did not
}

// Tracer begins traces. A nil Tracer begins none. It is safe for concurrent use.
type Tracer struct {
	perMillion int32
	wake       chan struct{} // capacity 1

	mu       sync.Mutex
	finished []Span // guarded by mu
}

// New returns a Tracer that begins so many of a million traces.
func New(perMillion int32) *Tracer {
	return &Tracer{perMillion: perMillion, wake: make(chan struct{}, 1)}
}

// current is the span that a context is in.
type current struct {
	tracer *Tracer
	trace  [16]byte
	id     [8]byte
}

type key struct{}

// nothing ends what is no span.
func nothing(error) {}

// Begin begins a trace, if it is one of those that are sampled. The returned function ends its
// first span.
func (t *Tracer) Begin(ctx context.Context, name string, attributes ...Attribute) (context.Context, func(error)) {
	if t == nil || mathrand.Int32N(1_000_000) >= t.perMillion {
		return ctx, nothing
	}
	c := current{tracer: t}
	_, _ = rand.Read(c.trace[:]) // never fails
	return c.start(ctx, Span{Name: name, Attributes: attributes})
}

// Serve begins a span for a request, below the one that its header traceparent names: that is
// sampled if its parent is. A request without one begins a trace.
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

// Start begins a span within that of the context; without one it does nothing. The returned
// function ends it.
func Start(ctx context.Context, kind Kind, name string, attributes ...Attribute) (context.Context, func(error)) {
	c, ok := ctx.Value(key{}).(current)
	if !ok {
		return ctx, nothing
	}
	return c.start(ctx, Span{Name: name, Kind: kind, Attributes: attributes})
}

// start begins a span below c.
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

// Wake has an element when spans have ended; of a nil Tracer it is nil.
func (t *Tracer) Wake() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.wake
}

// Take returns the spans that have ended since it was called last.
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

// Parent returns the header traceparent for what is asked of another program with the context, ""
// if it is in no span.
func Parent(ctx context.Context) string {
	c, ok := ctx.Value(key{}).(current)
	if !ok {
		return ""
	}
	return "00-" + hex.EncodeToString(c.trace[:]) + "-" + hex.EncodeToString(c.id[:]) + "-01"
}

// parseParent reads a header traceparent (https://www.w3.org/TR/trace-context/#traceparent-header).
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

// decode reads an identity, which is lower case and not zero.
func decode(id []byte, text string) bool {
	if len(text) != 2*len(id) || strings.ToLower(text) != text || strings.Trim(text, "0") == "" {
		return false
	}
	_, err := hex.Decode(id, []byte(text))
	return err == nil
}
