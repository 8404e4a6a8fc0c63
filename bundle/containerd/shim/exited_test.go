package v2

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/core/runtime"
)

type shim struct {
	status runtime.Status
	err    error
}

func (s shim) State(context.Context) (runtime.State, error) {
	return runtime.State{Status: s.status}, s.err
}

func TestExited(t *testing.T) {
	for _, c := range []struct {
		shim shim
		want bool
	}{
		{shim{status: runtime.StoppedStatus}, true},
		{shim{status: runtime.RunningStatus}, false},
		{shim{status: runtime.CreatedStatus}, false},
		{shim{status: runtime.StoppedStatus, err: errors.New("no answer")}, false},
	} {
		if got := exited(t.Context(), c.shim); got != c.want {
			t.Errorf("%+v: %t, want %t", c.shim, got, c.want)
		}
	}
}
