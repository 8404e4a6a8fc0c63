package action

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/runtime/cri"
)

// execSlack is how long a timed-out command may take to terminate. The runtime also waits, without
// limit, for other processes that hold the command's output open, such as a background child.
const execSlack = 2 * time.Second

func (a *Actions) probeExec(ctx context.Context, t Target, e *v1.ExecAction, timeout time.Duration) Result {
	command := expandCommand(e.Command, t.Container.Env)
	limited, cancel := context.WithTimeout(ctx, timeout+execSlack)
	defer cancel()
	resp, err := a.cri.ExecSync(limited, &runtimeapi.ExecSyncRequest{
		ContainerId: string(t.ID), Cmd: command, Timeout: int64(timeout / time.Second),
	})
	switch {
	case errors.Is(err, cri.ErrTimeout):
		return Result{Failure, fmt.Sprintf("command %q timed out after %s", strings.Join(command, " "), timeout)}
	case err != nil:
		return unknown(err)
	case resp.ExitCode != 0:
		return Result{Failure, output(resp)}
	}
	return Result{Success, output(resp)}
}

// hookExec runs the command unchanged: unlike a probe's, a hook's command is not expanded.
func (a *Actions) hookExec(ctx context.Context, t Target, e *v1.ExecAction) Result {
	resp, err := a.cri.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: string(t.ID), Cmd: e.Command})
	switch {
	case err != nil:
		return failure(err)
	case resp.ExitCode != 0:
		message := fmt.Sprintf("command %q exited with %d", strings.Join(e.Command, " "), resp.ExitCode)
		if out := output(resp); out != "" {
			message += ": " + out
		}
		return Result{Failure, message}
	}
	return Result{Success, output(resp)}
}

// output returns a command's output, truncated to maxOutput.
func output(resp *runtimeapi.ExecSyncResponse) string {
	out := append(resp.Stdout[:len(resp.Stdout):len(resp.Stdout)], resp.Stderr...)
	return string(out[:min(len(out), maxOutput)])
}

// expandCommand expands variables whose values are in the spec; others are known only inside the
// container.
func expandCommand(command []string, env []v1.EnvVar) []string {
	values := map[string]string{}
	for i := range env {
		if e := &env[i]; e.ValueFrom == nil {
			values[e.Name] = e.Value
		}
	}
	lookup := func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	}
	out := make([]string, len(command))
	for i := range command {
		out[i] = pod.Expand(command[i], lookup)
	}
	return out
}
