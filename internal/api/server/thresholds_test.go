package server_test

import (
	"testing"
	"time"

	"berth/internal/api/server"
)

func TestThresholds(t *testing.T) {
	h := newNode().handlers()
	if got := serve(t, h).get(server.PathThresholds); got.Status != 404 {
		t.Errorf("of an agent without thresholds: %+v", got)
	}
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	list := []server.Threshold{}
	h.Thresholds = func() []server.Threshold { return list }
	a := serve(t, h)
	if got, want := a.get(server.PathThresholds), (answer{200, "[]\n"}); got != want {
		t.Errorf("none: %+v, want %+v", got, want)
	}
	list = []server.Threshold{
		{Signal: "memory.available", Value: "10%", GraceSeconds: 90, Least: 1 << 30, Available: 1 << 20, Capacity: 10 << 30, MetSince: &began},
		{Signal: "pid.available", Value: "1k", Least: 1000},
	}
	want := answer{200, `[{"signal":"memory.available","value":"10%","graceSeconds":90,"least":1073741824,"available":1048576,"capacity":10737418240,` +
		`"metSince":"2026-01-02T03:04:05Z"},{"signal":"pid.available","value":"1k","least":1000,"available":0,"capacity":0}]` + "\n"}
	if got := a.get(server.PathThresholds); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := a.ask("POST", server.PathThresholds, nil); got.Status != 405 {
		t.Errorf("a POST: %+v", got)
	}
}
