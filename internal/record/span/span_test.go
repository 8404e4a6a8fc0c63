package span

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// What is done with the context of a span is below it.
func TestSpans(t *testing.T) {
	tracer := New(1_000_000)
	ctx, end := tracer.Begin(t.Context(), "pass", Attribute{"k8s.pod.name", "web"})
	within, endCall := Start(ctx, Client, "call")
	if got := Parent(within); len(got) != len(parent) || got[:3] != "00-" || got[len(got)-3:] != "-01" {
		t.Errorf("traceparent %q", got)
	}
	endCall(errors.New("no network"))
	end(nil)
	select {
	case <-tracer.Wake():
	default:
		t.Error("nobody is woken")
	}
	all := tracer.Take()
	if len(all) != 2 || len(tracer.Take()) != 0 {
		t.Fatalf("spans %+v", all)
	}
	call, pass := all[0], all[1]
	if call.Trace != pass.Trace || call.Parent != pass.ID || pass.Parent != [8]byte{} || call.Error != "no network" || pass.Error != "" || call.Kind != Client {
		t.Errorf("call %+v, pass %+v", call, pass)
	}
	if diff := cmp.Diff([]Attribute{{"k8s.pod.name", "web"}}, pass.Attributes); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
}

// Where nobody traces nothing is kept, and contexts stay what they are.
func TestNoSpans(t *testing.T) {
	var none *Tracer
	rare := New(0)
	for name, begin := range map[string]func() (context.Context, func(error)){
		"no tracer":      func() (context.Context, func(error)) { return none.Begin(t.Context(), "x") },
		"not sampled":    func() (context.Context, func(error)) { return rare.Begin(t.Context(), "x") },
		"no parent":      func() (context.Context, func(error)) { return Start(t.Context(), Internal, "x") },
		"not served":     func() (context.Context, func(error)) { return none.Serve(t.Context(), parent, "x") },
		"request":        func() (context.Context, func(error)) { return rare.Serve(t.Context(), "", "x") },
		"parent without": func() (context.Context, func(error)) { return New(1_000_000).Serve(t.Context(), parent[:53]+"00", "x") },
	} {
		ctx, end := begin()
		end(nil)
		if ctx != t.Context() || Parent(ctx) != "" {
			t.Errorf("%s: a span", name)
		}
	}
	if none.Take() != nil || none.Wake() != nil || rare.Take() != nil {
		t.Error("spans are kept")
	}
}

// A request says below which span it was made, if that is a span at all.
func TestServe(t *testing.T) {
	for header, want := range map[string]bool{
		parent: true, "": false, "00": false, parent + "-00": false, "cc" + parent[2:] + "-what": true, "ff" + parent[2:]: false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": false, "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": false,
		"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01": false, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g": false,
		"00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01": false,
	} {
		tracer := New(1_000_000)
		_, end := tracer.Serve(t.Context(), header, "GET pods")
		end(nil)
		all := tracer.Take()
		if len(all) != 1 || all[0].Kind != Server || (all[0].Parent != [8]byte{}) != want {
			t.Errorf("%q: %+v", header, all)
		}
	}
}

// Spans that nobody takes are not kept without bound.
func TestSpansAreBounded(t *testing.T) {
	tracer := New(1_000_000)
	for range mostFinished + 10 {
		_, end := tracer.Begin(t.Context(), "x")
		end(nil)
	}
	if n := len(tracer.Take()); n != mostFinished {
		t.Errorf("%d spans", n)
	}
}
