package mounts

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"
)

// A program that waits, and one that waits for another: both are gone when runFor returns, which
// waits until nobody has its output open.
func TestRunForGivesUp(t *testing.T) {
	killed := errors.New("the pod is to end")
	for name, script := range map[string]string{"itself": "exec sleep 1000", "its child": "sleep 1000 & wait"} {
		t.Run(name, func(t *testing.T) {
			if _, err := runFor(t.Context(), time.Millisecond, nil, "sh", "-c", script); !errors.Is(err, errNoAnswer) {
				t.Errorf("at the limit: %v", err)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(10*time.Millisecond, func() { cancel(killed) })
			if _, err := runFor(ctx, time.Hour, nil, "sh", "-c", script); !errors.Is(err, killed) {
				t.Errorf("not wanted any more: %v", err)
			}
		})
	}
	out, err := runFor(t.Context(), time.Hour, nil, "sh", "-c", "echo refused >&2; exit 32")
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 32 || string(out) != "refused\n" {
		t.Errorf("said %q, %v", out, err)
	}
}
