package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandboxes returns the number of ready sandboxes.
func (m *machine) sandboxes(ctx context.Context) (int, error) {
	list, err := m.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}})
	return len(list.GetItems()), err
}

// measureAgent measures all figures of one agent.
func measureAgent(ctx context.Context, m *machine, kind agentKind, r *report) (err error) {
	a, err := m.newAgent(kind, "")
	if err != nil {
		return err
	}
	say("%s: start, and rest without pods", kind.name)
	began, err := a.start()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", kind.name, err)
		}
		if a.cmd.ProcessState == nil {
			err = errors.Join(err, a.stop(), m.empty(context.WithoutCancel(ctx)))
		}
	}()
	shown, err := a.await(ctx, "/pods to be served", func(map[string]status) bool { return true })
	if err != nil {
		return err
	}
	r.agent(kind, "start without pods to /pods", shown.Sub(began))
	if err := a.rest(ctx, r, count(0), min(r.options.rest, 30*time.Second)); err != nil {
		return err
	}
	if err := a.one(ctx, r); err != nil {
		return err
	}
	if err := a.probed(ctx, r); err != nil {
		return err
	}
	if err := a.batch(ctx, r, 20, func(names []string) error { return a.exits(ctx, r, names) }); err != nil {
		return err
	}
	if err := a.read(ctx, r, r.options.pods); err != nil {
		return err
	}
	return a.batch(ctx, r, r.options.pods, func(names []string) error {
		if err := a.rest(ctx, r, count(r.options.pods), r.options.rest); err != nil {
			return err
		}
		return a.restart(ctx, r, names)
	})
}

// one measures single pods, several times.
func (a *agent) one(ctx context.Context, r *report) error {
	say("%s: one pod alone, %d times", a.kind.name, alone)
	var starts, readies, ends []time.Duration
	for i := range alone {
		names, began, err := a.write(fmt.Sprintf("one-%d", i), 1, nil)
		if err != nil {
			return err
		}
		started, err := a.m.events.awaitStarted(ctx, names, began)
		if err != nil {
			return err
		}
		ready, err := a.awaitReady(ctx, names)
		if err != nil {
			return err
		}
		gone, err := a.removeAll(ctx)
		if err != nil {
			return err
		}
		starts, readies, ends = append(starts, started[0].Sub(began)), append(readies, ready.Sub(began)), append(ends, gone)
	}
	r.agent(a.kind, "1 pod: manifest to started", starts...)
	r.agent(a.kind, "1 pod: manifest to Ready in /pods", readies...)
	r.agent(a.kind, "1 pod: manifest away to gone", ends...)
	return nil
}

// batch measures the start of n pods at once, with, and the pods' termination.
func (a *agent) batch(ctx context.Context, r *report, n int, with func(names []string) error) error {
	say("%s: %d pods at once", a.kind.name, n)
	before, err := usageOf(a.cmd.Process.Pid)
	if err != nil {
		return err
	}
	names, began, err := a.write(fmt.Sprintf("batch-%d", n), n, nil)
	if err != nil {
		return err
	}
	started, err := a.m.events.awaitStarted(ctx, names, began)
	if err != nil {
		return err
	}
	ready, err := a.awaitReady(ctx, names)
	if err != nil {
		return err
	}
	after, err := usageOf(a.cmd.Process.Pid)
	if err != nil {
		return err
	}
	r.agent(a.kind, fmt.Sprintf("%d pods: half of them started", n), started[n/2].Sub(began))
	r.agent(a.kind, fmt.Sprintf("%d pods: all started", n), started[n-1].Sub(began))
	r.agent(a.kind, fmt.Sprintf("%d pods: all Ready in /pods", n), ready.Sub(began))
	r.agent(a.kind, fmt.Sprintf("%d pods: CPU of the agent while they start", n), after.CPU-before.CPU)
	if err := with(names); err != nil {
		return err
	}
	say("%s: %d pods end", a.kind.name, n)
	gone, err := a.removeAll(ctx)
	r.agent(a.kind, fmt.Sprintf("%d pods: manifests away to all gone", n), gone)
	return err
}

// Figures of pods whose start is observed by a reader, by the number of pods.
const (
	readyWhileRead = "%d pods, and a reader: all Ready in /pods"
	cpuWhileRead   = "%d pods, and a reader: CPU of the agent while they start"
)

// read measures n pods at once while a reader requests /pods ten times a second, from the first
// manifest until all are ready, like monitoring or a user's watch.
func (a *agent) read(ctx context.Context, r *report, n int) error {
	say("%s: %d pods at once, and a reader of /pods", a.kind.name, n)
	before, err := usageOf(a.cmd.Process.Pid)
	if err != nil {
		return err
	}
	reading, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-reading.Done():
				tick.Stop()
				return
			case <-tick.C:
				_, _ = a.pods(reading) // the response is not checked here
			}
		}
	}()
	names, began, err := a.write(fmt.Sprintf("read-%d", n), n, nil)
	if err != nil {
		return err
	}
	if _, err := a.m.events.awaitStarted(ctx, names, began); err != nil {
		return err
	}
	ready, err := a.awaitReady(ctx, names)
	if err != nil {
		return err
	}
	stop()
	after, err := usageOf(a.cmd.Process.Pid)
	if err != nil {
		return err
	}
	r.agent(a.kind, fmt.Sprintf(readyWhileRead, n), ready.Sub(began))
	r.agent(a.kind, fmt.Sprintf(cpuWhileRead, n), after.CPU-before.CPU)
	_, err = a.removeAll(ctx)
	return err
}

// exits kills containers of different pods in sequence: none of them is in a back-off.
func (a *agent) exits(ctx context.Context, r *report, names []string) error {
	say("%s: containers exit", a.kind.name)
	var starts, shows []time.Duration
	for _, name := range names[:alone] {
		pid, err := a.m.pidOf(ctx, name)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			return err
		}
		started, err := a.m.events.awaitStarted(ctx, []string{name}, began)
		if err != nil {
			return err
		}
		shown, err := a.await(ctx, "the restart to be shown", func(shown map[string]status) bool { return shown[name].Ready && shown[name].Restarts == 1 })
		if err != nil {
			return err
		}
		starts, shows = append(starts, started[0].Sub(began)), append(shows, shown.Sub(began))
	}
	r.agent(a.kind, "container exit to its replacement started", starts...)
	r.agent(a.kind, "container exit to its replacement Ready in /pods", shows...)
	return nil
}

// pidOf returns the PID of the pod's container.
func (m *machine) pidOf(ctx context.Context, name string) (int, error) {
	list, err := m.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}, LabelSelector: map[string]string{"io.kubernetes.pod.name": name},
	}})
	if err != nil {
		return 0, err
	}
	if len(list.Containers) != 1 {
		return 0, fmt.Errorf("pod %s has %d running containers", name, len(list.Containers))
	}
	st, err := m.runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: list.Containers[0].Id, Verbose: true})
	if err != nil {
		return 0, err
	}
	var said struct {
		PID int `json:"pid"`
	}
	return said.PID, json.Unmarshal([]byte(st.Info["info"]), &said)
}

// settle is the wait for running operations before a machine counts as idle.
const settle = 10 * time.Second

// count formats the number of pods in a figure's name.
func count(pods int) string { return fmt.Sprintf("%d pods", pods) }

// rest measures the usage of the agent and the whole node while idle, with the given pods.
func (a *agent) rest(ctx context.Context, r *report, pods string, length time.Duration) error {
	say("%s: rest with %s for %v", a.kind.name, pods, length)
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	runtimePIDs, err := a.m.runtimePIDs()
	if err != nil {
		return err
	}
	self := []int{a.cmd.Process.Pid}
	var before, after [2]usage
	take := func(into *[2]usage) (err error) {
		for i, pids := range [][]int{self, slices.Concat(self, runtimePIDs)} {
			if into[i], err = usageOf(pids...); err != nil {
				return err
			}
		}
		return nil
	}
	began := time.Now()
	if err := errors.Join(take(&before), sleep(ctx, length), take(&after)); err != nil {
		return err
	}
	took := time.Since(began)
	for i, who := range []string{"agent", "agent, runtime and shims"} {
		r.rest(a.kind, pods, who, before[i], after[i], took)
	}
	return nil
}

// restart measures a restart of the agent with running pods.
func (a *agent) restart(ctx context.Context, r *report, names []string) error {
	say("%s: restart of the agent", a.kind.name)
	if err := a.stop(); err != nil {
		return err
	}
	began, err := a.start()
	if err != nil {
		return err
	}
	ready, err := a.awaitReady(ctx, names)
	if err != nil {
		return err
	}
	r.agent(a.kind, fmt.Sprintf("%d pods: start of the agent to all Ready in /pods", len(names)), ready.Sub(began))
	shown, err := a.pods(ctx)
	for _, n := range names {
		if shown[n].Restarts != 0 {
			return fmt.Errorf("the restart of the agent restarted pod %s", n)
		}
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
