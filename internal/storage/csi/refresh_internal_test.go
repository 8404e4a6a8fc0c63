package csi

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/cluster/kube"
	"berth/internal/observe/metrics/metricstest"
)

// Drivers are asked in their own periods; one whose period was changed, or that somebody is in a
// hurry for, out of its turn.
func TestRefreshDue(t *testing.T) {
	periods := map[string]time.Duration{"a": time.Minute, "b": 3 * time.Minute}
	registry := prometheus.NewRegistry()
	d, err := New(Config{
		Log: slog.New(slog.DiscardHandler), Period: func(name string) time.Duration { return periods[name] },
		Metrics: registry,
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
	counted := map[string]float64{}
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
		if step.asked != "" {
			counted[`csi_operations_seconds_count{driver_name="`+step.asked+`",grpc_status_code="Canceled",method_name="/csi.v1.Node/NodeGetInfo",migrated="false"}`]++
		}
		got := metricstest.Values(t, registry)
		maps.DeleteFunc(got, func(name string, _ float64) bool { return strings.Contains(name, "_sum{") })
		if diff := cmp.Diff(counted, got); diff != "" {
			t.Errorf("at %s: calls so far (-want +got):\n%s", step.at, diff)
		}
		if want := start.Add(step.next); step.next == 0 && !next.IsZero() || step.next > 0 && !next.Equal(want) {
			t.Errorf("at %s: next %s, want %s", step.at, next.Sub(start), step.next)
		}
	}
}

// A cause is logged once, however often it is tried.
func TestInsistLogsACauseOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		tries := []error{errors.New("away"), errors.New("away"), errors.New("away"), errors.New("forbidden"), errors.New("forbidden"), kube.ReportedError{Err: errors.New("damaged")}, nil}
		retry(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), "announce", func() error {
			err := tries[0]
			tries = tries[1:]
			return err
		})
		if got := log.String(); strings.Count(got, "away") != 1 || strings.Count(got, "forbidden") != 1 || strings.Contains(got, "damaged") || len(tries) != 0 {
			t.Errorf("logged %s; %d tries are left", got, len(tries))
		}
	})
}
