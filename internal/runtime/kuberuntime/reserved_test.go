package kuberuntime

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/runtime/cri"
)

func TestWhileReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		id, err := whileReserved(t.Context(), func() (string, error) {
			if calls++; calls < 3 {
				return "", cri.ErrNameReserved
			}
			return "id", nil
		})
		if id != "id" || err != nil || calls != 3 {
			t.Errorf("got %q, %v after %d calls", id, err, calls)
		}
		calls = 0
		began := time.Now()
		_, err = whileReserved(t.Context(), func() (string, error) { calls++; return "", cri.ErrNameReserved })
		if !errors.Is(err, cri.ErrNameReserved) || time.Since(began) > 5*time.Second {
			t.Errorf("got %v after %d calls and %s", err, calls, time.Since(began))
		}
		other := errors.New("no")
		calls = 0
		if _, err = whileReserved(t.Context(), func() (string, error) { calls++; return "", other }); !errors.Is(err, other) || calls != 1 {
			t.Errorf("another error: got %v after %d calls", err, calls)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err = whileReserved(ctx, func() (string, error) { return "", cri.ErrNameReserved }); !errors.Is(err, context.Canceled) {
			t.Errorf("a pass that was ended: got %v", err)
		}
	})
}
