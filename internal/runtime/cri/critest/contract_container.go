package critest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// listContainers returns the IDs of the clause's containers that match a filter.
func (c *contract) listContainers(filter *runtimeapi.ContainerFilter) []string {
	c.Helper()
	resp, err := c.Runtime.ListContainers(c.within(), &runtimeapi.ListContainersRequest{Filter: filter})
	c.must("list containers", err)
	var ids []string
	for _, item := range resp.Containers {
		if item.GetLabels()["io.kubernetes.pod.uid"] == c.uid {
			ids = append(ids, item.Id)
		}
	}
	return ids
}

// containerContract covers the lifecycle of containers.
var containerContract = []contractTest{
	{name: "container life", run: func(c *contract) {
		id := c.create(c.sandbox(), 2, c.Commands.Forever)
		st := c.status(id)
		c.must("verify", verifyContainer(st))
		if st.State != runtimeapi.ContainerState_CONTAINER_CREATED || st.StartedAt != 0 || st.FinishedAt != 0 {
			c.Errorf("created container: %v, want CREATED, neither started nor finished", st)
		}
		if len(id) != 64 || st.Id != id || st.Metadata.Name != "main" || st.Metadata.Attempt != 2 {
			c.Errorf("container %s is %s, %v, want an id of 64 digits, main, attempt 2", id, st.Id, st.Metadata)
		}
		if st.StopSignal != runtimeapi.Signal_SIGTERM {
			c.Errorf("stop signal %s, want SIGTERM by default", st.StopSignal)
		}
		if st.Labels["attempt"] != "2" || st.Annotations["note"] != c.uid {
			c.Errorf("labels %v and annotations %v, want those of the configuration", st.Labels, st.Annotations)
		}
		if got, want := c.logOf(st), filepath.Join(c.LogDir, c.uid, "2.log"); got != want {
			c.Errorf("log path %s, want %s", got, want)
		}

		c.must("start", c.startAnswer(id))
		st = c.status(id)
		if st.State != runtimeapi.ContainerState_CONTAINER_RUNNING || st.StartedAt < st.CreatedAt || st.FinishedAt != 0 {
			c.Errorf("started container: %v, want RUNNING, started after its creation, not finished", st)
		}
		if err := c.startAnswer(id); err == nil {
			c.Errorf("a running container can be started")
		}
		c.stop(id, 10)
		st = c.status(id)
		c.must("verify", verifyContainer(st))
		if st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.FinishedAt < st.StartedAt {
			c.Errorf("stopped container: %v, want EXITED, finished after its start", st)
		}
		c.stop(id, 10)
		if err := c.startAnswer(id); err == nil {
			c.Errorf("an exited container can be started")
		}
		c.remove(id)
		_, err := c.Runtime.ContainerStatus(c.within(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		c.wantCode("status of a removed container", err, codes.NotFound)
		c.remove(id)
		c.stop(id, 10)
	}},
	{name: "image of a container", run: func(c *contract) {
		resp, err := c.Images.ImageStatus(c.within(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: c.Image}})
		c.must("image status", err)
		image := resp.GetImage()
		config := c.containerConfig(0, c.Commands.Forever)
		config.Image = &runtimeapi.ImageSpec{Image: image.GetId(), UserSpecifiedImage: "a name of the user's"}
		id, err := c.createAnswer(c.sandbox(), config)
		c.must("create container by image id", err)
		refs := image.GetRepoDigests()
		if len(refs) == 0 {
			refs = []string{image.GetId()}
		}
		st := c.status(id)
		if !slices.Contains(image.GetRepoTags(), st.GetImage().GetImage()) || !slices.Contains(refs, st.ImageRef) || st.ImageId != image.GetId() {
			c.Errorf("status has image %v, ref %s, id %s, want tag, digest (or id without digest) and id of %v", st.Image, st.ImageRef, st.ImageId, image)
		}
		list, err := c.Runtime.ListContainers(c.within(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: id}})
		c.must("list the container", err)
		for _, item := range list.Containers {
			if item.GetImage().GetImage() != image.GetId() || item.GetImage().GetUserSpecifiedImage() != config.Image.UserSpecifiedImage || item.ImageRef != image.GetId() {
				c.Errorf("list has image %v, ref %s, want the image as it was given and the id %s", item.Image, item.ImageRef, image.GetId())
			}
		}
	}},
	{name: "start in a stopped sandbox", run: func(c *contract) {
		sb := c.sandbox()
		id := c.create(sb, 0, c.Commands.Forever)
		c.stopSandbox(sb)
		c.wantState(id, runtimeapi.ContainerState_CONTAINER_CREATED)
		if err := c.startAnswer(id); err == nil {
			c.Errorf("a container starts in a stopped sandbox")
		}
		if st := c.status(id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != startErrorCode || st.Reason != "StartError" {
			c.Errorf("after a start in a stopped sandbox: %v, want EXITED, %d, StartError", st, startErrorCode)
		}
	}},
	{name: "exit codes", run: func(c *contract) {
		sb := c.sandbox()
		for attempt, want := range []struct {
			code   int
			reason string
		}{{0, "Completed"}, {3, "Error"}} {
			st := c.exited(c.started(sb, uint32(attempt), c.Commands.Exit(want.code)))
			if st.ExitCode != int32(want.code) || st.Reason != want.reason {
				c.Errorf("exit code %d with reason %q, want %d and %q", st.ExitCode, st.Reason, want.code, want.reason)
			}
		}
	}},
	{name: "kill after the time-out", run: func(c *contract) {
		sb := c.sandbox()
		for attempt, timeout := range []int64{0, 1} {
			id := c.deaf(sb, uint32(attempt))
			c.stop(id, timeout)
			if st := c.status(id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != killedCode || st.Reason != "Error" {
				c.Errorf("after a stop with time-out %d: %v, want EXITED, %d, Error", timeout, st, killedCode)
			}
		}
	}},
	{name: "stop of a container that was never started", run: func(c *contract) {
		id := c.create(c.sandbox(), 0, c.Commands.Forever)
		c.stop(id, 1)
		c.wantState(id, runtimeapi.ContainerState_CONTAINER_CREATED)
		c.must("start afterwards", c.startAnswer(id))
	}},
	{name: "cancelled stop", run: func(c *contract) {
		id := c.deaf(c.sandbox(), 0)
		ctx, cancel := context.WithTimeout(c.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := c.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 1})
		c.wantCode("a stop that the client gives up", err, codes.DeadlineExceeded)
		// The grace period passes without a kill.
		select {
		case <-time.After(1500 * time.Millisecond):
		case <-c.Context().Done():
		}
		c.wantState(id, runtimeapi.ContainerState_CONTAINER_RUNNING)
	}},
	{name: "removal of a running container", run: func(c *contract) {
		id := c.deaf(c.sandbox(), 0)
		c.remove(id)
		wantSet(c.T, "containers left", c.listContainers(nil), nil)
	}},
	{name: "container lists", run: func(c *contract) {
		sb := c.sandbox()
		other := c.run(c.sandboxConfig(1))
		running := c.started(sb, 0, c.Commands.Forever)
		created := c.create(sb, 1, c.Commands.Forever)
		exited := c.started(other, 2, c.Commands.Exit(0))
		c.exited(exited)
		state := func(s runtimeapi.ContainerState) *runtimeapi.ContainerStateValue {
			return &runtimeapi.ContainerStateValue{State: s}
		}
		mine := map[string]string{"io.kubernetes.pod.uid": c.uid}
		tests := []struct {
			name   string
			filter *runtimeapi.ContainerFilter
			want   []string
		}{
			{"all", nil, []string{running, created, exited}},
			{"id", &runtimeapi.ContainerFilter{Id: created}, []string{created}},
			{"sandbox", &runtimeapi.ContainerFilter{PodSandboxId: sb}, []string{running, created}},
			{"running", &runtimeapi.ContainerFilter{State: state(runtimeapi.ContainerState_CONTAINER_RUNNING)}, []string{running}},
			{"created", &runtimeapi.ContainerFilter{State: state(runtimeapi.ContainerState_CONTAINER_CREATED)}, []string{created}},
			{"exited", &runtimeapi.ContainerFilter{State: state(runtimeapi.ContainerState_CONTAINER_EXITED)}, []string{exited}},
			{"label", &runtimeapi.ContainerFilter{LabelSelector: mine}, []string{running, created, exited}},
			{"two labels", &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": c.uid, "attempt": "1"}}, []string{created}},
			{"label and sandbox", &runtimeapi.ContainerFilter{LabelSelector: mine, PodSandboxId: other}, []string{exited}},
			{"other label", &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": "other"}}, nil},
		}
		for _, test := range tests {
			wantSet(c.T, "containers by "+test.name, c.listContainers(test.filter), test.want)
		}
		resp, err := c.Runtime.ListContainers(c.within(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: exited}})
		c.must("list one container", err)
		for _, item := range resp.Containers {
			if item.PodSandboxId != other || item.GetMetadata().GetAttempt() != 2 || item.CreatedAt == 0 || item.GetImage().GetImage() == "" || item.Annotations["note"] != c.uid {
				c.Errorf("list entry %v lacks sandbox, attempt, creation time, image or annotations", item)
			}
		}
	}},
	{name: "container names", run: func(c *contract) {
		sb := c.sandbox()
		id := c.create(sb, 0, c.Commands.Forever)
		_, err := c.createAnswer(sb, c.containerConfig(0, c.Commands.Forever))
		wantReserved(c.T, "a second container of the same name", err, "container")
		c.create(sb, 1, c.Commands.Forever)
		c.remove(id)
		c.create(sb, 0, c.Commands.Forever)
	}},
	{name: "cancelled create", run: func(c *contract) {
		sb := c.sandbox()
		c.makeLogDir()
		for attempt, after := range []time.Duration{time.Millisecond, 4 * time.Millisecond, 10 * time.Millisecond} {
			config := c.containerConfig(uint32(attempt), c.Commands.Forever)
			ctx, cancel := context.WithTimeout(c.Context(), after)
			_, err := c.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sb, Config: config, SandboxConfig: c.sandboxConfig(0)})
			cancel()
			if err == nil { // a fast runtime
				continue
			}
			c.eventually(fmt.Sprintf("a container after one cancelled at %s", after), func() error {
				for _, leftover := range c.listContainers(&runtimeapi.ContainerFilter{LabelSelector: map[string]string{"attempt": fmt.Sprint(attempt)}}) {
					c.remove(leftover)
				}
				_, err := c.createAnswer(sb, config)
				if err != nil {
					wantReserved(c.T, "a container right after a cancelled one", err, "container")
				}
				return err
			})
		}
	}},
	{name: "missing image", run: func(c *contract) {
		sb := c.sandbox()
		config := c.containerConfig(0, c.Commands.Forever)
		config.Image = &runtimeapi.ImageSpec{Image: "berth.local/unknown:" + c.uid}
		_, err := c.createAnswer(sb, config)
		c.wantCode("container of a missing image", err, codes.NotFound)
		c.create(sb, 0, c.Commands.Forever) // its name is available again
	}},
	{name: "failed start", run: func(c *contract) {
		id := c.create(c.sandbox(), 0, c.Commands.Missing)
		if err := c.startAnswer(id); err == nil {
			c.Errorf("a missing command was started")
		}
		if _, err := os.Stat(c.logOf(c.status(id))); err != nil { // it is created before the process
			c.Errorf("the log of a failed start: %v", err)
		}
		if st := c.status(id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != startErrorCode || st.Reason != "StartError" || st.Message == "" || st.FinishedAt == 0 {
			c.Errorf("after a failed start: %v, want EXITED, %d, StartError, a message and a finish time", st, startErrorCode)
		}
		if err := c.startAnswer(id); err == nil {
			c.Errorf("a container that failed to start can be started")
		}
		c.stop(id, 1)
	}},
	{name: "exec", run: func(c *contract) {
		sb := c.sandbox()
		id := c.started(sb, 0, c.Commands.Forever)
		resp, err := c.Runtime.ExecSync(c.within(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: c.Commands.Exit(3), Timeout: 20})
		c.must("exec", err)
		if resp.ExitCode != 3 {
			c.Errorf("exec answered %v, want exit code 3", resp)
		}
		_, err = c.Runtime.ExecSync(c.within(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: c.Commands.Forever, Timeout: 1})
		c.wantCode("exec that takes too long", err, codes.DeadlineExceeded)
		c.wantState(id, runtimeapi.ContainerState_CONTAINER_RUNNING)
		c.stop(id, 1)
		if _, err = c.Runtime.ExecSync(c.within(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: c.Commands.Exit(0)}); err == nil {
			c.Errorf("exec in an exited container succeeds")
		}
	}},
	{name: "resources", run: func(c *contract) {
		id := c.started(c.sandbox(), 0, c.Commands.Forever)
		_, err := c.Runtime.UpdateContainerResources(c.within(), &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 512},
		})
		c.must("update resources", err)
		if got := c.status(id).GetResources().GetLinux().GetCpuShares(); got != 512 {
			c.Errorf("cpu shares %d after the update, want 512", got)
		}
	}},
	{name: "statistics", run: func(c *contract) {
		id := c.started(c.sandbox(), 0, c.Commands.Forever)
		resp, err := c.Runtime.ContainerStats(c.within(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
		c.must("container stats", err)
		if resp.GetStats().GetAttributes().GetId() != id || resp.GetStats().GetMemory().GetWorkingSetBytes() == nil {
			c.Errorf("statistics %v, want those of %s with a working set", resp.GetStats(), id)
		}
		c.stop(id, 10)
		if _, err := c.Runtime.ContainerStats(c.within(), &runtimeapi.ContainerStatsRequest{ContainerId: id}); err == nil {
			c.Errorf("an exited container has statistics of its own")
		}
		list, err := c.Runtime.ListContainerStats(c.within(), &runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{Id: id}})
		c.must("list statistics", err)
		if len(list.Stats) != 1 || list.Stats[0].Cpu != nil || list.Stats[0].Memory != nil {
			c.Errorf("statistics of an exited container %v, want an entry without CPU and memory", list.Stats)
		}
	}},
	{name: "log file", run: func(c *contract) {
		id := c.started(c.sandbox(), 0, c.Commands.Write)
		path := c.logOf(c.status(id))
		c.eventually("a line is in the log", func() error { return checkLog(path) })

		c.must("rotate", os.Rename(path, path+".rotated"))
		_, err := c.Runtime.ReopenContainerLog(c.within(), &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
		c.must("reopen log", err)
		c.eventually("a line is in the new log", func() error { return checkLog(path) })
		c.stop(id, 1)
		c.must("rotate again", os.Rename(path, path+".rotated"))
		if _, err = c.Runtime.ReopenContainerLog(c.within(), &runtimeapi.ReopenContainerLogRequest{ContainerId: id}); status.Code(err) == codes.OK {
			c.Errorf("the log of an exited container was reopened")
		}
		if _, err := os.Stat(path); err == nil {
			c.Errorf("a refused reopening made a log file")
		}
	}},
}

// checkLog checks that a log has full lines of stdout in CRI's format; the last line may be
// incomplete.
func checkLog(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	lines := strings.Split(string(content), "\n")
	if len(lines) < 2 {
		return fmt.Errorf("no full line in %q", content)
	}
	for _, line := range lines[:len(lines)-1] {
		fields := strings.SplitN(line, " ", 4)
		if len(fields) != 4 || fields[1] != string(runtimeapi.Stdout) || fields[2] != string(runtimeapi.LogTagFull) || fields[3] == "" {
			return fmt.Errorf("line %q is not: time stdout F text", line)
		}
		if _, err := time.Parse(time.RFC3339Nano, fields[0]); err != nil {
			return fmt.Errorf("line %q: %w", line, err)
		}
	}
	return nil
}
