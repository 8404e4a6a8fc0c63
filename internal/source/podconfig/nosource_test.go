package podconfig

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/record/journal"
)

func TestWithoutSourcesItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{NodeName: "node", Log: slog.New(slog.DiscardHandler), Journal: journal.New(slog.New(slog.DiscardHandler))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		if err := c.Run(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Hour {
			t.Fatalf("ended after %s with %v", time.Since(began), err)
		}
		if !c.SeenAllSources() {
			t.Fatal("sources that are not there are waited for")
		}
	})
}
