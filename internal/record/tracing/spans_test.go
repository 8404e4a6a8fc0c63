package tracing

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/record/journal"
)

var seen = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(milliseconds int) time.Time {
	return seen.Add(time.Duration(milliseconds) * time.Millisecond)
}

func mark(step journal.Step, container string, milliseconds int) journal.Milestone {
	return journal.Milestone{Step: step, Container: container, Time: at(milliseconds)}
}

// start is the start of a pod with an init container, whose image is there, and a container, whose
// image is pulled.
func start() *journal.Timeline {
	image := func(container string, took, milliseconds int) journal.Entry {
		return journal.Entry{Component: "image", Container: container, Took: time.Duration(took) * time.Millisecond, Time: at(milliseconds)}
	}
	return &journal.Timeline{
		Subject: journal.Subject{UID: "6a1ae9f4-7a3b-4d1e-9c55-0123456789ab", Namespace: "default", Name: "web"}, Seen: seen,
		Milestones: []journal.Milestone{
			mark(journal.Admitted, "", 1), mark(journal.Cgroup, "", 3), mark(journal.Image, "init", 5), mark(journal.Volumes, "", 6),
			mark(journal.Sandbox, "", 80), mark(journal.Created, "init", 90), mark(journal.Started, "init", 100),
			mark(journal.Image, "app", 900), mark(journal.Created, "app", 910), mark(journal.Started, "app", 925), mark(journal.Ready, "", 990),
		},
		Entries: []journal.Entry{image("init", 1, 5), image("app", 400, 900)},
	}
}

// describe writes spans as "name container from-to", in milliseconds, indented below their parents.
func describe(spans []*tracepb.Span) (out []string) {
	for _, s := range spans {
		line := s.Name
		if s.ParentSpanId != nil {
			line = "  " + line
		}
		for _, a := range s.Attributes {
			if a.Key == "k8s.container.name" {
				line += " " + a.Value.GetStringValue()
			}
		}
		since := func(ns uint64) int64 { return time.Unix(0, int64(ns)).Sub(seen).Milliseconds() }
		out = append(out, fmt.Sprintf("%s %d-%d", line, since(s.StartTimeUnixNano), since(s.EndTimeUnixNano)))
	}
	return out
}

func TestSpansOfAStart(t *testing.T) {
	spans := computeSpans(start(), outcome{at: at(990)})
	want := []string{
		"pod start 0-990",
		"  admission 0-1",
		"  cgroup 1-3",
		"  image init 4-5",
		"  volumes 3-6",
		"  sandbox 3-80",
		"  create container init 80-90",
		"  start container init 90-100",
		"  image app 500-900",
		"  create container app 900-910",
		"  start container app 910-925",
		"  become ready 925-990",
	}
	if diff := cmp.Diff(want, describe(spans)); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
	ids := map[string]bool{}
	for _, s := range spans {
		if got := hex.EncodeToString(s.TraceId); got != "6a1ae9f47a3b4d1e9c550123456789ab" {
			t.Errorf("trace id %s is not the pod's UID", got)
		}
		if len(s.SpanId) != 8 || ids[string(s.SpanId)] {
			t.Errorf("span id %x of %s has not 8 bytes, or is another's", s.SpanId, s.Name)
		}
		ids[string(s.SpanId)] = true
	}
	if got := spans[0].Status.Code; got != tracepb.Status_STATUS_CODE_OK {
		t.Errorf("status %v", got)
	}
}

func TestSpansOfAStartThatFailed(t *testing.T) {
	s := start()
	s.Milestones = s.Milestones[:2]
	spans := computeSpans(s, outcome{at: at(50), failure: "the pod failed before it was ready: DeadlineExceeded"})
	if diff := cmp.Diff([]string{"pod start 0-50", "  admission 0-1", "  cgroup 1-3"}, describe(spans)); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
	if got := spans[0].Status; got.Code != tracepb.Status_STATUS_CODE_ERROR || !strings.Contains(got.Message, "DeadlineExceeded") {
		t.Errorf("status %v", got)
	}
}

func TestSampling(t *testing.T) {
	for _, perMillion := range []int32{0, 1000, 250_000, 1_000_000} {
		n := 0
		const pods = 100_000
		for i := range pods {
			if isSampled(types.UID(fmt.Sprint("pod-", i)), perMillion) {
				n++
			}
		}
		if want := pods * int(perMillion) / 1_000_000; n < want*9/10-10 || n > want*11/10+10 {
			t.Errorf("%d of %d pods are sampled at %d per million", n, pods, perMillion)
		}
	}
}

func TestTraceIDOfOtherUIDs(t *testing.T) {
	for _, uid := range []types.UID{"0123456789abcdef0123456789abcdef", "u1", ""} {
		if id := traceID(uid); len(id) != 16 {
			t.Errorf("trace id of %q has %d bytes", uid, len(id))
		}
	}
}
