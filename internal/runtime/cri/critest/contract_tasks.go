package critest

import (
	"strings"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func needsTasks(t Target) string {
	if t.Tasks == nil {
		return "a service of tasks"
	}
	return ""
}

var taskContract = []contractTest{
	{name: "signal by the task service", needs: needsTasks, run: func(c *contract) {
		id := c.deaf(c.sandbox(), 0) // ignores CRI's stop signal
		ctx := metadata.AppendToOutgoingContext(c.within(), "containerd-namespace", "k8s.io")
		_, err := c.Tasks.Kill(ctx, &tasksapi.KillRequest{ContainerID: id, Signal: uint32(unix.SIGTERM)})
		c.must("send SIGTERM", err)
		_, err = c.Tasks.Wait(ctx, &tasksapi.WaitRequest{ContainerID: id})
		// It had exited and its task was deleted, or its shim exited first.
		if err != nil && !strings.Contains(err.Error(), "ttrpc: closed") {
			c.wantCode("wait", err, codes.NotFound)
		}
		if st := c.exited(id); st.ExitCode == killedCode {
			c.Errorf("it was killed, want an end on SIGTERM: %v", st)
		}
		_, err = c.Tasks.Kill(ctx, &tasksapi.KillRequest{ContainerID: id, Signal: uint32(unix.SIGKILL), All: true})
		c.wantCode("kill of a container that has ended", err, codes.NotFound)
		_, err = c.Tasks.Wait(ctx, &tasksapi.WaitRequest{ContainerID: id})
		c.wantCode("wait for a container that has ended", err, codes.NotFound)
	}},
	{name: "kill by the task service", needs: needsTasks, run: func(c *contract) {
		id := c.started(c.sandbox(), 0, c.Commands.Forever)
		ctx := metadata.AppendToOutgoingContext(c.within(), "containerd-namespace", "k8s.io")
		_, err := c.Tasks.Kill(ctx, &tasksapi.KillRequest{ContainerID: id, Signal: uint32(unix.SIGKILL), All: true})
		c.must("send SIGKILL", err)
		if st := c.exited(id); st.ExitCode != killedCode || st.State != runtimeapi.ContainerState_CONTAINER_EXITED {
			c.Errorf("after SIGKILL: %v", st)
		}
	}},
}
