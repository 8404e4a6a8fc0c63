// Package tracing exports pod starts, passes, requests and calls as OpenTelemetry spans to a
// collector.
//
// Owns: the connection to the collector, and the traces that are not sent yet.
// Reads: the journal's timeline of a pod's first start, and the pod's status, which shows when it
// is complete; the spans of a Tracer.
// Never: blocks a pod, measures anything itself, stores more than mostPending spans.
//
// The trace of a start belongs to one pod: a span for the whole start, from when the pod was first
// seen until it is first ready, and a child for each step. It is generated from the journal when
// the start is complete. The protocol is OTLP over gRPC with its published messages; the library
// that creates spans on the fly would cost more memory than the whole journal.
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
	// DefaultEndpoint is the address of a collector on the same machine (KubeletConfiguration,
	// tracing.endpoint).
	DefaultEndpoint = "localhost:4317"
	// method is the gRPC method of OTLP. Its request, ExportTraceServiceRequest, and TracesData
	// have the same wire format.
	method = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

	sendTimeout = 10 * time.Second
	// lastTimeout bounds the last call before the agent exits.
	lastTimeout = time.Second
	// mostPending is the maximum number of queued spans for an unavailable collector; the oldest
	// are dropped.
	mostPending = 4096
	// mostSent is the number of spans per call: with the longest texts less than 4 MiB, gRPC's
	// default limit.
	mostSent = 512
	// batchDelay is how long a span waits for others of its batch.
	batchDelay = time.Second
)

// retries is the back-off of failed calls.
var retries = wait.Backoff{Duration: time.Second, Factor: 2, Cap: time.Minute, Steps: math.MaxInt}

// Statuses provides the statuses of pods.
type Statuses interface {
	// Subscribe returns an inbox that gets the UID of each pod whose status changes or is removed,
	// and a function that cancels the subscription.
	Subscribe() (changed *pod.Inbox[pod.UID], cancel func())
	// Get returns the pod's newest status and whether there is one. It must not be modified.
	Get(uid pod.UID) (v1.PodStatus, bool)
}

// Stories is the journal.
type Stories interface {
	// TimelineOf returns the pod's timeline, and whether there is one.
	TimelineOf(uid pod.UID) (journal.Timeline, bool)
}

// Config is the configuration of an Exporter.
type Config struct {
	// Endpoint is the collector's address, host and port. The connection is not encrypted.
	Endpoint string
	// PerMillion is the sampling rate of pods, per million.
	PerMillion int32
	// Node and Version identify the source of the spans.
	Node, Version string
	Statuses      Statuses
	Stories       Stories
	// Spans provides the other spans; nil: none.
	Spans *span.Tracer
	Log   *slog.Logger
	// Dial connects to the collector; nil uses the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Exporter exports traces.
type Exporter struct {
	Config
	began    time.Time
	resource *resourcepb.Resource
	over     map[pod.UID]bool // pods whose start is complete
	pending  []*tracepb.Span
	dropped  int // spans that were dropped or rejected since the last successful call
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

// Run exports traces until ctx is done.
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

// exportStart queues the pod's trace if its start has just completed.
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
	timeline, ok := e.Stories.TimelineOf(uid)
	if !ok || !isSampled(uid, e.PerMillion) {
		return
	}
	end := endOf(&timeline, &s)
	if end.at.Before(e.began) {
		return // started by an earlier agent
	}
	e.add(computeSpans(&timeline, end))
}

// addSpans queues the spans that have ended since the last call.
func (e *Exporter) addSpans() {
	if ended := e.Spans.Take(); len(ended) > 0 {
		e.add(convert(ended))
	}
}

// add queues spans. Beyond the limit, the oldest are dropped.
func (e *Exporter) add(spans []*tracepb.Span) {
	e.pending = append(e.pending, spans...)
	if more := len(e.pending) - mostPending; more > 0 {
		e.pending = slices.Delete(e.pending, 0, more)
		e.dropped += more
	}
}

// isOver reports whether the pod is ready, or never will be.
func isOver(s *v1.PodStatus) bool {
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
			return true
		}
	}
	return pod.IsTerminal(s.Phase)
}

// endOf returns when and how the start ended: when the pod became ready, otherwise with its last
// entry.
func endOf(timeline *journal.Timeline, s *v1.PodStatus) outcome {
	for _, m := range timeline.Milestones {
		if m.Step == journal.Ready {
			return outcome{at: m.Time}
		}
	}
	end := outcome{at: timeline.Seen}
	if n := len(timeline.Entries); n > 0 {
		end.at = timeline.Entries[n-1].Time
	}
	if s.Phase == v1.PodFailed {
		end.failure = "the pod failed before it was ready"
		if s.Reason != "" {
			end.failure += ": " + s.Reason
		}
	}
	return end
}

// send sends the queued spans, and reports whether the queue is empty. Spans that the collector
// rejects permanently are dropped: they would block all others.
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

// retryable are the codes after which the same spans may be sent again (OpenTelemetry protocol,
// "OTLP/gRPC Response", "Failures").
var retryable = map[codes.Code]bool{
	codes.Canceled: true, codes.DeadlineExceeded: true, codes.Aborted: true, codes.OutOfRange: true, codes.Unavailable: true, codes.DataLoss: true,
}
