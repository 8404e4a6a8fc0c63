package agent_test

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/agent/agenttest"
	"berth/internal/cluster/kube/kubetest"
)

// collector takes spans as an OpenTelemetry collector does.
type collector struct {
	mu      sync.Mutex
	refuses bool                       // guarded by mu
	traces  map[string][]*tracepb.Span // guarded by mu; by trace id
	of      map[string]string          // guarded by mu; attributes of the last resource
}

func startCollector(t *testing.T, w *agenttest.World, address string) *collector {
	t.Helper()
	c := &collector{traces: map[string][]*tracepb.Span{}, of: map[string]string{}}
	export := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var in tracepb.TracesData
		if err := decode(&in); err != nil {
			return nil, err
		}
		return &emptypb.Empty{}, c.take(&in)
	}
	s := grpc.NewServer()
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "opentelemetry.proto.collector.trace.v1.TraceService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: export}},
	}, c)
	l := w.Network.Listen(address)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // ends with Stop
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return c
}

func (c *collector) take(in *tracepb.TracesData) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuses {
		return status.Error(codes.Unavailable, "the collector is full")
	}
	for _, r := range in.ResourceSpans {
		for _, a := range r.Resource.Attributes {
			c.of[a.Key] = a.Value.GetStringValue()
		}
		for _, scope := range r.ScopeSpans {
			for _, s := range scope.Spans {
				id := hex.EncodeToString(s.TraceId)
				c.traces[id] = append(c.traces[id], s)
			}
		}
	}
	return nil
}

func (c *collector) refuse(refuses bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuses = refuses
}

// spansOf returns the names of the spans of the pod's trace, and of their containers.
func (c *collector) spansOf(p *v1.Pod) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.traces[strings.ReplaceAll(string(p.UID), "-", "")] {
		name := s.Name
		for _, a := range s.Attributes {
			if a.Key == "k8s.container.name" {
				name += " " + a.Value.GetStringValue()
			}
		}
		names = append(names, name)
	}
	return names
}

// The start of a pod is a trace at the collector, once, also when that was away and when the agent
// is started again.
func TestTracesOfPodStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		w.Kubelet = "tracing: {endpoint: \"collector:4317\", samplingRatePerMillion: 1000000}\n"
		c := startCollector(t, w, "collector:4317")
		w.Join()
		start := func(i int) *v1.Pod {
			kubetest.Put(w.API, readyPod(i))
			w.Settle(30 * time.Second)
			p, ok := kubetest.Get[*v1.Pod](w.API, v1.NamespaceDefault, readyPod(i).Name)
			if !ok {
				t.Fatal("the pod is gone")
			}
			return p
		}
		p := start(2)
		got := c.spansOf(p)
		slices.Sort(got)
		want := []string{
			"admission", "become ready", "cgroup", "create container main", "create container side", "image main", "image side",
			"pod start", "sandbox", "start container main", "start container side", "startup probe side", "volumes",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("spans (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]string{"service.name": "berth", "service.version": "test", "k8s.node.name": agenttest.NodeName}, c.of); diff != "" {
			t.Errorf("resource (-want +got):\n%s", diff)
		}

		c.refuse(true)
		late := start(3)
		if got := c.spansOf(late); len(got) > 0 {
			t.Errorf("a collector that refuses has %q", got)
		}
		c.refuse(false)
		w.Settle(2 * time.Minute)
		spans := len(c.spansOf(late))
		if spans == 0 {
			t.Error("the collector is back and was not told")
		}

		w.StopAgent()
		w.StartAgent()
		w.Settle(2 * time.Minute)
		if n, m := len(c.spansOf(p)), len(c.spansOf(late)); n != len(want) || m != spans {
			t.Errorf("%d and %d spans after a restart of the agent, were %d and %d", n, m, len(want), spans)
		}
	})
}

// trees are the traces whose first span is called so, each as the names of its spans in the order
// of their beginnings, indented below their parents.
func (c *collector) trees(root string) (out [][]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, spans := range c.traces {
		slices.SortStableFunc(spans, func(a, b *tracepb.Span) int { return int(int64(a.StartTimeUnixNano) - int64(b.StartTimeUnixNano)) })
		var lines []string
		var below func(parent []byte, indent string)
		below = func(parent []byte, indent string) {
			for _, s := range spans {
				if string(s.ParentSpanId) == string(parent) {
					lines = append(lines, indent+s.Name)
					below(s.SpanId, indent+" ")
				}
			}
		}
		below(nil, "")
		if len(lines) > 0 && lines[0] == root {
			out = append(out, lines)
		}
	}
	return out
}

// A pass is a trace, in which the calls of the runtime are, and the images that containers wait
// for.
func TestTracesOfPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		w.Kubelet = "tracing: {endpoint: \"collector:4317\", samplingRatePerMillion: 1000000}\n"
		c := startCollector(t, w, "collector:4317")
		w.Join()
		kubetest.Put(w.API, readyPod(2))
		w.Settle(30 * time.Second)
		var first []string
		for _, tree := range c.trees("syncPod") {
			if slices.Contains(tree, " runtime.v1.RuntimeService/RunPodSandbox") {
				first = tree
			}
		}
		for _, want := range []string{
			" EnsureImage", "  runtime.v1.ImageService/ImageStatus", " runtime.v1.RuntimeService/CreateContainer", " runtime.v1.RuntimeService/StartContainer",
		} {
			if !slices.Contains(first, want) {
				t.Errorf("the pass that started the pod has no %q:\n%s", want, strings.Join(first, "\n"))
			}
		}
		kubetest.Delete[*v1.Pod](w.API, v1.NamespaceDefault, readyPod(2).Name, metav1.DeleteOptions{})
		w.Settle(2 * time.Minute)
		ended := c.trees("syncTerminatingPod")
		if len(ended) != 1 || !slices.Contains(ended[0], " runtime.v1.RuntimeService/StopContainer") {
			t.Errorf("the end of the pod: %q", ended)
		}
		if len(c.trees("syncTerminatedPod")) != 1 {
			t.Error("the pass after the end is not there")
		}
	})
}
