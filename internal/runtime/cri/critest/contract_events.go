package critest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// eventLog collects the events of a stream.
type eventLog struct {
	mu     sync.Mutex
	events []*runtimeapi.ContainerEventResponse
	cancel context.CancelFunc
	ended  chan struct{}
}

// subscribe opens an event stream and reads it until the clause ends or the log is closed. The
// server does not acknowledge the opening: the first events may precede the subscription.
func (c *contract) subscribe() *eventLog {
	c.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := c.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		cancel()
		c.Fatalf("open the event stream: %v", err)
	}
	log := &eventLog{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(log.ended)
		for {
			event, err := stream.Recv()
			if err != nil {
				return
			}
			log.mu.Lock()
			log.events = append(log.events, event)
			log.mu.Unlock()
		}
	}()
	c.Cleanup(log.close)
	return log
}

func (l *eventLog) close() {
	l.cancel()
	<-l.ended
}

func (l *eventLog) of(id string) []*runtimeapi.ContainerEventResponse {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []*runtimeapi.ContainerEventResponse
	for _, event := range l.events {
		if event.ContainerId == id {
			found = append(found, event)
		}
	}
	return found
}

// ofPod returns the events of the pod as text, with IDs replaced by names.
func (l *eventLog) ofPod(uid string, names map[string]string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for _, event := range l.events {
		if event.GetPodSandboxStatus().GetMetadata().GetUid() == uid {
			found = append(found, names[event.ContainerId]+" "+kindName(event))
		}
	}
	return found
}

func kindName(event *runtimeapi.ContainerEventResponse) string {
	return strings.TrimSuffix(strings.TrimPrefix(event.ContainerEventType.String(), "CONTAINER_"), "_EVENT")
}

func kindNames(events []*runtimeapi.ContainerEventResponse) []string {
	var names []string
	for _, event := range events {
		names = append(names, kindName(event))
	}
	return names
}

// watch subscribes, and waits until the stream delivers.
func (c *contract) watch() *eventLog {
	c.Helper()
	log := c.subscribe()
	beacon := c.sandboxConfig(0)
	beacon.Metadata.Uid = "beacon-" + c.uid
	c.eventually("the event stream delivers", func() error {
		id, err := c.runAnswer(c.within(), beacon)
		c.must("run the beacon", err)
		c.removeSandbox(id)
		log.mu.Lock()
		defer log.mu.Unlock()
		for _, event := range log.events {
			if event.GetPodSandboxStatus().GetMetadata().GetUid() == beacon.Metadata.Uid {
				return nil
			}
		}
		return errors.New("no event of the beacon")
	})
	return log
}

// await waits for an event of a kind for an ID, and returns it.
func (c *contract) await(log *eventLog, id string, kind runtimeapi.ContainerEventType) *runtimeapi.ContainerEventResponse {
	c.Helper()
	var found *runtimeapi.ContainerEventResponse
	c.eventually(fmt.Sprintf("%s of %.12s", kind, id), func() error {
		events := log.of(id)
		i := slices.IndexFunc(events, func(e *runtimeapi.ContainerEventResponse) bool { return e.ContainerEventType == kind })
		if i < 0 {
			return fmt.Errorf("events so far: %v", kindNames(events))
		}
		found = events[i]
		return nil
	})
	return found
}

// eventContract covers the event stream.
var eventContract = []contractTest{
	{name: "events of a life", run: func(c *contract) {
		log := c.watch()
		sb := c.sandbox()
		id := c.started(sb, 0, c.Commands.Forever)
		c.stop(id, 10)
		c.await(log, id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
		c.remove(id)
		c.stopSandbox(sb)
		c.await(log, sb, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
		c.removeSandbox(sb)
		c.await(log, sb, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)

		want := []string{"sandbox CREATED", "sandbox STARTED", "main CREATED", "main STARTED", "main STOPPED", "main DELETED", "sandbox STOPPED", "sandbox DELETED"}
		if got := log.ofPod(c.uid, map[string]string{sb: "sandbox", id: "main"}); !slices.Equal(got, want) {
			c.Errorf("events %v, want %v", got, want)
		}
		for _, event := range append(log.of(sb), log.of(id)...) {
			c.must("sandbox in "+event.String(), verifySandbox(event.PodSandboxStatus))
			if event.CreatedAt == 0 || event.PodSandboxStatus.Id != sb || event.PodSandboxStatus.Labels["clause"] != "contract" {
				c.Errorf("event %v lacks its time, or the sandbox %s with its labels", event, sb)
			}
		}
		for _, event := range log.of(sb)[:3] { // CREATED, STARTED, STOPPED
			if hasIP := event.PodSandboxStatus.GetNetwork().GetIp() != ""; hasIP != c.PodNetwork {
				c.Errorf("%s of the sandbox tells network %v, address wanted: %v", kindName(event), event.PodSandboxStatus.Network, c.PodNetwork)
			}
		}
		states := map[runtimeapi.ContainerEventType]runtimeapi.ContainerState{
			runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT: runtimeapi.ContainerState_CONTAINER_CREATED,
			runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT: runtimeapi.ContainerState_CONTAINER_RUNNING,
			runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT: runtimeapi.ContainerState_CONTAINER_EXITED,
		}
		for _, event := range log.of(id) {
			if event.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
				if len(event.ContainersStatuses) != 0 {
					c.Errorf("the event of the removal still has %v", event.ContainersStatuses)
				}
				continue
			}
			if len(event.ContainersStatuses) != 1 {
				c.Errorf("%s carries %d container statuses, want 1", kindName(event), len(event.ContainersStatuses))
				continue
			}
			st := event.ContainersStatuses[0]
			c.must("container in "+kindName(event), verifyContainer(st))
			if st.Id != id || st.State != states[event.ContainerEventType] {
				c.Errorf("%s carries the status %v", kindName(event), st)
			}
		}
		deleted := c.await(log, sb, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT).PodSandboxStatus
		if deleted.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY || deleted.GetNetwork().GetIp() != "" {
			c.Errorf("a removed sandbox is %s with network %v, want NOTREADY without address", deleted.State, deleted.Network)
		}
	}},
	{name: "events of all containers", run: func(c *contract) {
		log := c.watch()
		sb := c.sandbox()
		first := c.started(sb, 0, c.Commands.Forever)
		second := c.started(sb, 1, c.Commands.Exit(3))
		event := c.await(log, second, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
		got := map[string]runtimeapi.ContainerState{}
		for _, st := range event.ContainersStatuses {
			got[st.Id] = st.State
		}
		if len(got) != 2 || got[first] != runtimeapi.ContainerState_CONTAINER_RUNNING || got[second] != runtimeapi.ContainerState_CONTAINER_EXITED {
			c.Errorf("the event of the second container's exit carries %v, want the first running, the second exited", event.ContainersStatuses)
		}
		if kinds := kindNames(log.of(second)); !slices.Equal(kinds, []string{"CREATED", "STARTED", "STOPPED"}) {
			c.Errorf("events of the second container: %v", kinds)
		}
	}},
	{name: "failed start without event", run: func(c *contract) {
		log := c.watch()
		id := c.create(c.sandbox(), 0, c.Commands.Missing)
		if err := c.startAnswer(id); err == nil {
			c.Errorf("a missing command was started")
		}
		c.remove(id)
		c.await(log, id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
		if kinds := kindNames(log.of(id)); !slices.Equal(kinds, []string{"CREATED", "DELETED"}) {
			c.Errorf("events of a container that failed to start: %v, want CREATED and DELETED", kinds)
		}
	}},
	{name: "events of forced removals", run: func(c *contract) {
		log := c.watch()
		sb := c.sandbox()
		removed := c.deaf(sb, 0)
		c.remove(removed)
		c.await(log, removed, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
		inside := c.deaf(sb, 1)
		c.removeSandbox(sb)
		c.await(log, sb, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
		for _, id := range []string{removed, inside} {
			if kinds := kindNames(log.of(id)); !slices.Equal(kinds, []string{"CREATED", "STARTED", "STOPPED", "DELETED"}) {
				c.Errorf("events of a container that was removed while running: %v", kinds)
			}
		}
	}},
	{name: "replay", run: func(c *contract) {
		log := c.watch()
		sb := c.sandbox()
		c.await(log, sb, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
		log.close()
		lost := c.create(sb, 0, c.Commands.Forever)
		// From the second event on, containerd detects the closed stream with an even chance.
		var newest string
		for attempt := range uint32(20) {
			newest = c.create(sb, 1+attempt, c.Commands.Forever)
		}

		again := c.subscribe()
		c.await(again, newest, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
		if events := again.of(lost); len(events) != 0 {
			c.Errorf("the first event after the end of a stream was replayed: %v", events)
		}
		if events := log.of(lost); len(events) != 0 {
			c.Errorf("a closed stream delivered %v", events)
		}
	}},
	{name: "stalled subscriber", run: testStalledSubscriber},
}

func testStalledSubscriber(c *contract) {
	ready := c.watch() // earlier subscribers are closed now
	config := c.sandboxConfig(0)
	config.Annotations["bulk"] = strings.Repeat("x", 32<<10) // few such events fill the connection
	sb := c.run(config)
	c.await(ready, sb, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	waiting := c.create(sb, 10000, c.Commands.Forever)
	other := c.run(c.sandboxConfig(1))
	running := []string{c.deaf(sb, 10001), c.deaf(sb, 10003)}
	c.await(ready, running[1], runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	ready.close()

	ctx, closeStream := context.WithCancel(c.Context())
	defer closeStream()
	stream, err := c.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	c.must("open the event stream", err)
	for range 2 { // the stream is registered now, and not read from here on
		c.create(sb, 10002, c.Commands.Forever)
		for _, id := range c.listContainers(&runtimeapi.ContainerFilter{LabelSelector: map[string]string{"attempt": "10002"}}) {
			c.remove(id)
		}
	}
	if _, err := stream.Recv(); err != nil {
		c.Fatalf("event stream: %v", err)
	}

	// The only sign of a blocked runtime is a call that does not return.
	const unanswered = 3 * time.Second
	mutate := func(call func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(c.Context(), unanswered)
		defer cancel()
		return call(ctx)
	}
	events := 0
	for blocked := false; !blocked; {
		if events > 5*EventBacklog {
			c.Fatalf("%d events and nothing is blocked", events)
		}
		err := mutate(func(ctx context.Context) error {
			resp, err := c.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
				PodSandboxId: sb, Config: c.containerConfig(uint32(events), c.Commands.Forever), SandboxConfig: config,
			})
			if err != nil {
				return err
			}
			events++
			if _, err = c.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: resp.ContainerId}); err == nil {
				events++
			}
			return err
		})
		blocked = status.Code(err) == codes.DeadlineExceeded
		if err != nil && !blocked {
			c.Fatalf("beside a stalled subscriber: %v", err)
		}
	}
	if events < EventBacklog {
		c.Errorf("blocked after %d events, want at least %d", events, EventBacklog)
	}
	c.wantCode("start beside a stalled subscriber", mutate(func(ctx context.Context) error {
		_, err := c.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: waiting})
		return err
	}), codes.DeadlineExceeded)
	for _, id := range running {
		c.must("stop beside a stalled subscriber", mutate(func(ctx context.Context) error {
			_, err := c.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id})
			return err
		}))
	}
	c.wantCode("removal beside a stalled subscriber", mutate(func(ctx context.Context) error {
		_, err := c.Runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: running[0]})
		return err
	}), codes.DeadlineExceeded)
	c.must("stop of a sandbox beside a stalled subscriber", mutate(func(ctx context.Context) error {
		_, err := c.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: other})
		return err
	}))
	c.listContainers(nil)
	c.sandboxStatus(sb)

	closeStream()
	c.eventually("the container whose start was given up runs", func() error {
		if st := c.status(waiting).State; st != runtimeapi.ContainerState_CONTAINER_RUNNING {
			return fmt.Errorf("it is %s", st)
		}
		return nil
	})
	c.eventually("the container whose removal was given up is gone", func() error {
		if left := c.listContainers(&runtimeapi.ContainerFilter{Id: running[0]}); len(left) != 0 {
			return errors.New("it is there")
		}
		return nil
	})
	c.started(sb, 20000, c.Commands.Forever)
}

// restartContract covers restarts of the runtime's process.
var restartContract = []contractTest{
	{
		name: "restart",
		needs: func(t Target) string {
			switch {
			case t.Restart == nil:
				return "way to restart it"
			case t.KillContainer == nil:
				return "way to kill a container"
			}
			return ""
		},
		run: func(c *contract) {
			sb := c.sandbox()
			dies := c.started(sb, 0, c.Commands.Forever)
			survivor := c.started(sb, 1, c.Commands.Forever)
			before, ip := c.status(survivor), c.sandboxStatus(sb).GetNetwork().GetIp()
			log := c.watch()
			c.Restart(c.T, c.KillContainer(c.T, dies))
			<-log.ended // its connection broke

			again := c.watch()
			st := c.exited(dies)
			code, reason := int32(unknownCode), "Unknown"
			if c.ExitsKept {
				code, reason = killedCode, "Error"
			}
			if st.ExitCode != code || st.Reason != reason || st.FinishedAt < st.StartedAt {
				c.Errorf("killed while the runtime was down: %v, want exit code %d, %s and a finish time", st, code, reason)
			}
			after := c.status(survivor)
			if after.State != runtimeapi.ContainerState_CONTAINER_RUNNING || after.StartedAt != before.StartedAt {
				c.Errorf("the other container is %v, want running as before", after)
			}
			if sbStatus := c.sandboxStatus(sb); sbStatus.State != runtimeapi.PodSandboxState_SANDBOX_READY || sbStatus.GetNetwork().GetIp() != ip {
				c.Errorf("the sandbox is %v, want ready with the same address", sbStatus)
			}
			c.stop(survivor, 10)
			c.await(again, survivor, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
			if events := again.of(dies); len(events) != 0 {
				c.Errorf("events of an exit while the runtime was down: %v", kindNames(events))
			}
		},
	},
}
