// Package tracing sends the starts of pods, and what passes, requests and calls did, as
// OpenTelemetry spans to a collector.
//
// Owns: the connection to the collector, and the traces that it has not taken yet.
// Reads: the journal's account of a pod's first start, and the pod's status, which says when that
// is over; the spans that a Tracer has.
// Never: holds up a pod, measures anything itself, keeps more than mostPending spans.
//
// The trace of a start is one pod: a span for its whole start, from the moment in which it was seen
// until it is ready for the first time, and below that a span for each step. It is made from the
// journal when the start is over. The protocol is OTLP over gRPC; its messages are the published
// ones, but the library that makes spans as they happen would cost more memory than the whole
// journal.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/record/span"
)

const (
	// DefaultEndpoint is where a collector on the same machine listens (KubeletConfiguration,
	// tracing.endpoint).
	DefaultEndpoint = "localhost:4317"
	// method is the call of OTLP. Its request, ExportTraceServiceRequest, and TracesData are the
	// same on the wire.
	method = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

	sendTimeout = 10 * time.Second
	// lastTimeout bounds the last call of an agent that ends.
	lastTimeout = time.Second
	// mostPending is how many spans wait for a collector that is away; the oldest make room.
	mostPending = 4096
	// mostSent is how many spans are sent in one call: with the longest texts still less than the
	// 4 MiB that a server of gRPC takes unless it is told otherwise.
	mostSent = 512
	// batchDelay is how long a span waits for others that are sent with it.
	batchDelay = time.Second
)

// retries space the tries to send to a collector that does not take it.
var retries = wait.Backoff{Duration: time.Second, Factor: 2, Cap: time.Minute, Steps: math.MaxInt}

// Statuses are the statuses of pods.
type Statuses interface {
	// Subscribe returns an inbox that gets the UID of each pod whose status changes or goes, and
	// the function that ends this.
	Subscribe() (changed *pod.Inbox[pod.UID], cancel func())
	// Get returns the pod's newest status and whether there is one. It must not be changed.
	Get(uid pod.UID) (v1.PodStatus, bool)
}

// Stories is the journal.
type Stories interface {
	// TimelineOf returns all that is known of the pod, and whether that is anything.
	TimelineOf(uid pod.UID) (journal.Timeline, bool)
}

// Config is what an Exporter needs.
type Config struct {
	// Endpoint is the collector's address, host and port. The connection is not encrypted.
	Endpoint string
	// PerMillion is how many of a million pods have a trace.
	PerMillion int32
	// Node and Version say whose spans these are.
	Node, Version string
	Statuses      Statuses
	Stories       Stories
	// Spans are the other spans; nil: there are none.
	Spans *span.Tracer
	Log   *slog.Logger
	// Dial connects to the collector; nil is the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Exporter sends traces.
type Exporter struct {
	Config
	began    time.Time
	resource *resourcepb.Resource
	over     map[pod.UID]bool // pods whose start is over
	pending  []*tracepb.Span
	dropped  int // spans that found no room, or were refused, since the collector last took some
	down     bool
}

// New returns an exporter.
func New(cfg Config) *Exporter {
	return &Exporter{
		Config: cfg, began: time.Now(), over: map[pod.UID]bool{},
		resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{
			attribute("service.name", "berth"), attribute("service.version", cfg.Version), attribute("k8s.node.name", cfg.Node),
		}},
	}
}

// Run sends traces until ctx is done.
func (e *Exporter) Run(ctx context.Context) error {
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent("berth/" + e.Version)}
	if e.Dial != nil {
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return e.Dial(ctx, "tcp", address)
		}))
	}
	conn, err := grpc.NewClient("passthrough:///"+e.Endpoint, options...)
	if err != nil {
		return fmt.Errorf("tracing.endpoint %q: %w", e.Endpoint, err)
	}
	defer conn.Close()
	changed, cancel := e.Statuses.Subscribe()
	defer cancel()
	retry, delay := time.NewTimer(0), retries.DelayFunc()
	retry.Stop()
	defer retry.Stop()
	batch := time.NewTimer(0)
	batch.Stop()
	defer batch.Stop()
	batching := false
	for {
		select {
		case <-ctx.Done():
			last, done := context.WithTimeout(context.WithoutCancel(ctx), lastTimeout)
			defer done()
			e.addSpans()
			e.send(last, conn)
			return ctx.Err()
		case <-changed.Wake():
			for _, uid := range changed.Take() {
				e.exportStart(uid)
			}
			if e.down {
				continue // until the retry
			}
		case <-e.Spans.Wake():
			if !batching {
				batching = true
				batch.Reset(batchDelay)
			}
			continue
		case <-batch.C:
			batching = false
			e.addSpans()
			if e.down {
				continue
			}
		case <-retry.C:
		}
		within, done := context.WithTimeout(ctx, sendTimeout)
		if e.send(within, conn) {
			delay = retries.DelayFunc()
		} else {
			retry.Reset(delay())
		}
		done()
	}
}

// exportStart makes the pod's trace if its start has just come to an end.
func (e *Exporter) exportStart(uid pod.UID) {
	s, ok := e.Statuses.Get(uid)
	if !ok {
		delete(e.over, uid)
		return
	}
	if e.over[uid] || !isOver(&s) {
		return
	}
	e.over[uid] = true
	story, ok := e.Stories.TimelineOf(uid)
	if !ok || !isSampled(uid, e.PerMillion) {
		return
	}
	end := endOf(&story, &s)
	if end.at.Before(e.began) {
		return // an earlier agent's
	}
	e.add(computeSpans(&story, end))
}

// addSpans adds the spans that have ended since the last time.
func (e *Exporter) addSpans() {
	if ended := e.Spans.Take(); len(ended) > 0 {
		e.add(convert(ended))
	}
}

// add has spans sent next. The oldest of those that wait make room.
func (e *Exporter) add(spans []*tracepb.Span) {
	e.pending = append(e.pending, spans...)
	if more := len(e.pending) - mostPending; more > 0 {
		e.pending = slices.Delete(e.pending, 0, more)
		e.dropped += more
	}
}

// isOver reports whether the pod is ready, or will never be.
func isOver(s *v1.PodStatus) bool {
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
			return true
		}
	}
	return pod.IsTerminal(s.Phase)
}

// endOf returns when and how the start ended: when the pod became ready, else with its last entry.
func endOf(story *journal.Timeline, s *v1.PodStatus) outcome {
	for _, m := range story.Milestones {
		if m.Step == journal.Ready {
			return outcome{at: m.Time}
		}
	}
	end := outcome{at: story.Seen}
	if n := len(story.Entries); n > 0 {
		end.at = story.Entries[n-1].Time
	}
	if s.Phase == v1.PodFailed {
		end.failure = "the pod failed before it was ready"
		if s.Reason != "" {
			end.failure += ": " + s.Reason
		}
	}
	return end
}

// send sends what is pending, and reports whether nothing is left. Spans that the collector refuses
// for good it does not keep: they would stand in the way of all others.
func (e *Exporter) send(ctx context.Context, conn grpc.ClientConnInterface) bool {
	for len(e.pending) > 0 {
		n := min(len(e.pending), mostSent)
		request := &tracepb.TracesData{ResourceSpans: []*tracepb.ResourceSpans{{
			Resource:   e.resource,
			ScopeSpans: []*tracepb.ScopeSpans{{Scope: &commonpb.InstrumentationScope{Name: "berth"}, Spans: e.pending[:n]}},
		}}}
		err := conn.Invoke(ctx, method, request, &emptypb.Empty{})
		again := retryable[status.Code(err)]
		if !again {
			e.pending = slices.Delete(e.pending, 0, n)
		}
		switch {
		case err != nil:
			if !again {
				e.dropped += n
			}
			if !e.down {
				e.Log.Warn("the collector of traces does not take them; it is tried again", "endpoint", e.Endpoint, "error", err)
			}
			e.down = true
			return false
		case e.down:
			e.Log.Info("the collector of traces takes them again", "endpoint", e.Endpoint, "dropped", e.dropped)
		}
		e.down, e.dropped = false, 0
	}
	e.pending = nil
	return true
}

// retryable are the answers after which the same spans may be sent again; after others they may not
// (OpenTelemetry protocol, "OTLP/gRPC Response", "Failures").
var retryable = map[codes.Code]bool{
	codes.Canceled: true, codes.DeadlineExceeded: true, codes.Aborted: true, codes.OutOfRange: true, codes.Unavailable: true, codes.DataLoss: true,
}
