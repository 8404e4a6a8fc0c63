package server_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/api/server"
	"berth/internal/health"
)

func TestHealth(t *testing.T) {
	h := newNode().handlers()
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	table, err := health.New(map[health.Code]health.Check{
		health.PLEG:            func() error { return health.Since(errors.New("no answer"), began) },
		health.EmbeddedRuntime: func() error { return errors.New("ended") },
		health.Persistence:     func() error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	h.Health.Conditions = table.States
	var got []health.State
	decode(t, serve(t, h).get(server.PathHealth), &got)
	for i := range got {
		got[i].Title, got[i].Help = "", ""
	}
	want := []health.State{
		{Condition: health.Condition{Code: health.PLEG, MakesNotReady: true, FailsHealthz: true}, Error: "no answer", Since: began, BecauseOf: []health.Code{health.EmbeddedRuntime}},
		{Condition: health.Condition{Code: health.EmbeddedRuntime, MakesNotReady: true, FailsHealthz: true}, Error: "ended"},
		{Condition: health.Condition{Code: health.Persistence}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
