package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"berth/internal/record/span"
)

// aCollector is the connection to a collector that takes messages of the size that gRPC's servers
// take unless they are told otherwise.
type aCollector struct {
	grpc.ClientConnInterface
	err   error // its answer
	names []string
}

func (c *aCollector) Invoke(_ context.Context, _ string, request, _ any, _ ...grpc.CallOption) error {
	data := request.(*tracepb.TracesData)
	b, err := proto.Marshal(data)
	switch {
	case err != nil:
		return status.Error(codes.Internal, err.Error())
	case len(b) > 4<<20:
		return status.Error(codes.ResourceExhausted, "received message larger than max")
	case c.err != nil:
		return c.err
	}
	for _, scope := range data.ResourceSpans[0].ScopeSpans {
		for _, s := range scope.Spans {
			c.names = append(c.names, s.Name)
		}
	}
	return nil
}

// sender sends what ended to the collector until nothing is left, but only so often.
func sender(t *testing.T, c *aCollector) (send func(ended ...span.Span), e *Exporter) {
	e = New(Config{Log: slog.New(slog.DiscardHandler)})
	return func(ended ...span.Span) {
		e.add(convert(ended))
		for range 20 {
			if e.send(t.Context(), c) || c.err != nil {
				return
			}
		}
	}, e
}

// A collector that comes back after a long time is sent what it can take, the newest spans, and
// what waited for it has not grown without a bound.
func TestCollectorAway(t *testing.T) {
	c := &aCollector{err: status.Error(codes.Unavailable, "away")}
	send, e := sender(t, c)
	long := strings.Repeat("x", 4000)
	const batches, of = 100, 100
	for i := range batches {
		var ended []span.Span
		for j := range of {
			ended = append(ended, span.Span{
				Name: fmt.Sprint(i*of + j), Error: long, Attributes: []span.Attribute{{Key: "url.path", Value: long}},
			})
		}
		send(ended...)
	}
	if n := proto.Size(&tracepb.ScopeSpans{Spans: e.pending}); n > 10<<20 {
		t.Errorf("%d bytes wait for the collector", n)
	}
	c.err = nil
	send()
	if n := len(c.names); n < 1000 || c.names[n-1] != fmt.Sprint(batches*of-1) {
		t.Errorf("the collector has %d spans", n)
	}
}

// Spans that the collector refuses do not keep it from those that follow.
func TestCollectorRefuses(t *testing.T) {
	for _, err := range []error{
		status.Error(codes.InvalidArgument, "no"), status.Error(codes.ResourceExhausted, "too large"), errors.New("odd"),
	} {
		c := &aCollector{err: err}
		send, _ := sender(t, c)
		send(span.Span{Name: "refused"})
		c.err = nil
		send(span.Span{Name: "next"})
		if got := fmt.Sprint(c.names); got != "[next]" {
			t.Errorf("after %v the collector has %v", err, got)
		}
	}
}

// Paths and errors may be any bytes, the messages of the protocol not.
func TestTextOfSpans(t *testing.T) {
	c := &aCollector{}
	send, _ := sender(t, c)
	send(span.Span{Name: "GET /\xff", Error: "no file \xfe", Attributes: []span.Attribute{{Key: "url.path", Value: "/logs/\xfd"}}})
	if len(c.names) != 1 {
		t.Errorf("the collector has %q", c.names)
	}
}
