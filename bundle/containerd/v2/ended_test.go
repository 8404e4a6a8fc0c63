package v2

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/core/runtime"
)

type answer struct {
	status runtime.Status
	err    error
}

func (a answer) State(context.Context) (runtime.State, error) {
	return runtime.State{Status: a.status}, a.err
}

func TestHasEnded(t *testing.T) {
	for _, c := range []struct {
		answer
		want bool
	}{
		{answer{runtime.StoppedStatus, nil}, true},
		{answer{runtime.CreatedStatus, nil}, false},
		{answer{runtime.RunningStatus, nil}, false},
		{answer{runtime.StoppedStatus, errors.New("no such task")}, false},
	} {
		if got := hasEnded(t.Context(), c.answer); got != c.want {
			t.Errorf("%+v: %v, want %v", c.answer, got, c.want)
		}
	}
}
