package pod

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !Pause(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("it ended early, or after %s", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if Pause(ctx, time.Minute) || time.Since(began) != time.Second {
			t.Errorf("its context did not end it, after %s", time.Since(began))
		}
	})
}
