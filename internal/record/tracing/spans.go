package tracing

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"k8s.io/apimachinery/pkg/types"

	"berth/internal/record/journal"
	"berth/internal/record/span"
)

// outcome is the end of a start.
type outcome struct {
	at      time.Time
	failure string // "" for a pod that became ready, or succeeded before
}

// rootName is the name of the span of a whole start; the spans of its steps are its children.
const rootName = "pod start"

var spanNames = map[journal.Step]string{
	journal.Admitted: "admission", journal.Cgroup: "cgroup", journal.Volumes: "volumes", journal.Sandbox: "sandbox", journal.Image: "image",
	journal.Created: "create container", journal.Started: "start container", journal.Ready: "become ready",
	journal.Hook: "postStart hook", journal.Startup: "startup probe", journal.Bound: "scheduling",
}

// computeSpans returns the spans of a pod's first start: one for all of it, and a child for each
// step.
//
// The journal has the completion times of steps. A step begins when its prerequisites are done, and
// an image pull by its duration.
func computeSpans(s *journal.Timeline, end outcome) []*tracepb.Span {
	trace := traceID(s.Subject.UID)
	root := newSpan(trace, rootName, "", s.Seen, end.at)
	root.Attributes = []*commonpb.KeyValue{
		attribute("k8s.pod.uid", string(s.Subject.UID)), attribute("k8s.pod.name", s.Subject.Name), attribute("k8s.namespace.name", s.Subject.Namespace),
	}
	root.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_OK}
	if end.failure != "" {
		root.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: clip(end.failure)}
	}
	out := []*tracepb.Span{root}
	for _, m := range s.Milestones {
		name, known := spanNames[m.Step]
		if !known || m.Time.After(end.at) {
			continue
		}
		done := newSpan(trace, name, m.Container, beginOf(s, m), m.Time)
		done.ParentSpanId = root.SpanId
		if m.Container != "" {
			done.Attributes = []*commonpb.KeyValue{attribute("k8s.container.name", m.Container)}
		}
		out = append(out, done)
	}
	return out
}

// waitsFor are the prerequisites of each step; a step of a container waits for those of the same
// container and of the pod.
var waitsFor = map[journal.Step][]journal.Step{
	journal.Bound:    nil,
	journal.Admitted: {journal.Bound},
	journal.Cgroup:   {journal.Admitted},
	journal.Volumes:  {journal.Admitted, journal.Cgroup},
	journal.Sandbox:  {journal.Admitted, journal.Cgroup},
	journal.Image:    {journal.Admitted, journal.Cgroup},
	journal.Created:  {journal.Admitted, journal.Cgroup, journal.Volumes, journal.Sandbox, journal.Image},
	journal.Started:  {journal.Created},
	journal.Hook:     {journal.Started},
	journal.Startup:  {journal.Started, journal.Hook},
}

func beginOf(s *journal.Timeline, m journal.Milestone) time.Time {
	begin := s.Seen
	for _, before := range s.Milestones {
		if before.Time.After(m.Time) {
			continue
		}
		ofSame := before.Container == "" || before.Container == m.Container
		// Ready, the last step, follows all others.
		if m.Step == journal.Ready && before.Step != journal.Ready || ofSame && slices.Contains(waitsFor[m.Step], before.Step) {
			begin = later(begin, before.Time)
		}
	}
	if m.Step == journal.Image {
		begin = later(begin, m.Time.Add(-timeFor(s, m)))
	}
	return begin
}

// timeFor returns how long the image of the milestone took, from the entry that was written with
// it.
func timeFor(s *journal.Timeline, m journal.Milestone) time.Duration {
	var nearest *journal.Entry
	for i := range s.Entries {
		e := &s.Entries[i]
		if e.Component == "image" && e.Container == m.Container && e.Error == "" && !e.Time.After(m.Time) &&
			(nearest == nil || e.Time.After(nearest.Time)) {
			nearest = e
		}
	}
	if nearest == nil {
		return m.Time.Sub(s.Seen)
	}
	return nearest.Took + m.Time.Sub(nearest.Time)
}

var kinds = map[span.Kind]tracepb.Span_SpanKind{
	span.Internal: tracepb.Span_SPAN_KIND_INTERNAL, span.Server: tracepb.Span_SPAN_KIND_SERVER, span.Client: tracepb.Span_SPAN_KIND_CLIENT,
}

// convert converts spans to OTLP.
func convert(ended []span.Span) []*tracepb.Span {
	out := make([]*tracepb.Span, len(ended))
	for i := range ended {
		s := &ended[i]
		o := &tracepb.Span{
			TraceId: s.Trace[:], SpanId: s.ID[:], Name: clip(s.Name), Kind: kinds[s.Kind],
			StartTimeUnixNano: uint64(s.Began.UnixNano()), EndTimeUnixNano: uint64(s.Ended.UnixNano()),
		}
		if s.Parent != [8]byte{} {
			o.ParentSpanId = s.Parent[:]
		}
		for _, a := range s.Attributes {
			o.Attributes = append(o.Attributes, attribute(a.Key, a.Value))
		}
		if s.Error != "" {
			o.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: clip(s.Error)}
		}
		out[i] = o
	}
	return out
}

func newSpan(trace []byte, name, container string, begin, end time.Time) *tracepb.Span {
	id := sha256.Sum256([]byte(string(trace) + "\x00" + name + "\x00" + container))
	return &tracepb.Span{
		TraceId: trace, SpanId: id[:8], Name: name, Kind: tracepb.Span_SPAN_KIND_INTERNAL,
		StartTimeUnixNano: uint64(begin.UnixNano()), EndTimeUnixNano: uint64(later(begin, end).UnixNano()),
	}
}

// traceID is the pod's UID if it is 16 bytes in hex, as those of API servers and this agent are, so
// that the trace can be found by pod. Otherwise it is a hash of the UID.
func traceID(uid types.UID) []byte {
	if id, err := hex.DecodeString(strings.ReplaceAll(string(uid), "-", "")); err == nil && len(id) == 16 {
		return id
	}
	sum := sha256.Sum256([]byte(uid))
	return sum[:16]
}

// isSampled reports whether the pod is among perMillion of a million. The result is the same for
// all agents, at all times.
func isSampled(uid types.UID, perMillion int32) bool {
	sum := sha256.Sum256([]byte(uid))
	return int64(binary.BigEndian.Uint64(sum[:8])%1_000_000) < int64(perMillion)
}

func attribute(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: clip(value)}}}
}

// longestText is the maximum length of a text in a span, in bytes.
const longestText = 1024

// clip truncates a text of any origin and makes it valid for the protocol.
func clip(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), longestText)], "\uFFFD")
}

func later(a, b time.Time) time.Time {
	if cmp.Compare(a.UnixNano(), b.UnixNano()) < 0 {
		return b
	}
	return a
}
