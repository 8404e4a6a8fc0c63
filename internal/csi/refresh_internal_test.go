package csi

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

// Drivers are asked in their own periods; one whose period was changed, or that somebody is in a hurry for, out of its turn.
func TestRefreshDue(t *testing.T) {
	periods := map[string]time.Duration{"a": time.Minute, "b": 3 * time.Minute}
	asked := make(chan string, 10)
	d, err := New(Config{
		Log: slog.New(slog.DiscardHandler), Period: func(name string) time.Duration { return periods[name] },
		Called: func(driver, _ string, _ time.Duration, _ error) { asked <- driver },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c"} {
		d.drivers[name] = registration{endpoint: "/does/not/exist"}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // nobody is to be waited for
	var r refreshes
	start := time.Unix(1000, 0)
	for _, step := range []struct {
		at, next time.Duration
		asked    string
		before   func()
	}{
		{at: 0, next: time.Minute},
		{at: 30 * time.Second, next: time.Minute},
		{at: time.Minute, next: 2 * time.Minute, asked: "a"},
		{at: 90 * time.Second, next: 2 * time.Minute, asked: "b", before: func() { d.Refresh("b"); d.Refresh("c"); d.Refresh("gone") }},
		{at: 100 * time.Second, next: 110 * time.Second, before: func() { periods["a"] = 10 * time.Second }},
		{at: 110 * time.Second, next: 120 * time.Second, asked: "a"},
		{at: 115 * time.Second, next: 270 * time.Second, before: func() { delete(periods, "a") }},
		{at: 116 * time.Second, before: func() { delete(d.drivers, "b") }},
	} {
		if step.before != nil {
			step.before()
		}
		next := d.refreshDue(ctx, &r, start.Add(step.at))
		r.running.Wait()
		got := ""
		select {
		case got = <-asked:
		default:
		}
		if len(asked) > 0 || got != step.asked {
			t.Errorf("at %s: asked %q and %d more, want %q", step.at, got, len(asked), step.asked)
		}
		if want := start.Add(step.next); step.next == 0 && !next.IsZero() || step.next > 0 && !next.Equal(want) {
			t.Errorf("at %s: next %s, want %s", step.at, next.Sub(start), step.next)
		}
	}
}
