package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/api/server"
)

// podshimHandler is the runtime handler of the bundle's containerd for pod shims.
const podshimHandler = "podshim"

// The subjects of the figures: all pods of a node run with stock shims, or with pod shims.
const (
	byShims    = "shims"
	byPodshims = "podshims"
)

// podshimRounds is how often each of both starts and stops a batch of pods.
const podshimRounds = 3

// Names of figures. Those of a batch contain the number of pods.
const (
	oneOfFloor  = "floor, 1 pod: sandbox, create, start"
	manyOfFloor = "floor, %d pods, 4 at a time"
	oneOfRun    = "berth run, 1 pod: manifest to Ready in /pods"
	manyOfRun   = "berth run, %d pods: manifests to all Ready in /pods"
	goneOfRun   = "berth run, %d pods: manifests away to none in the runtime"
	startCPU    = ": CPU of a start"
	stopCPU     = ": CPU of a stop"
	ofAgent     = " in the agent"
	podMemory   = "at rest with %d pods: PSS of agent, runtime and shims that a pod adds"
)

// measurePodshims alternately measures the cost of pods with pod shims and with stock shims: with
// berth run, and of the runtime alone. Each has its own runtime.
func measurePodshims(ctx context.Context, o options, r *report) error {
	return onMachine(ctx, o, func(shims *machine) error {
		return onMachine(ctx, o, func(podshims *machine) error {
			shims.handler, podshims.handler = "runc", podshimHandler
			var both [2]*agent
			var err error
			if both[0], err = shims.newRun(byShims, o); err != nil {
				return err
			}
			if both[1], err = podshims.newRun(byPodshims, o); err != nil {
				return err
			}
			if err := measureRuns(ctx, both, r); err != nil {
				return err
			}
			if err := measureBothFloors(ctx, both, r); err != nil || o.many == 0 {
				return err
			}
			return both[1].veryMany(ctx, r)
		})
	})
}

// newRun prepares berth run on the machine's own runtime.
func (m *machine) newRun(name string, o options) (*agent, error) {
	dir, err := os.MkdirTemp(m.dir, name)
	if err != nil {
		return nil, err
	}
	a := &agent{m: m, kind: agentKind{name: name}, dir: dir, manifests: dir + "/manifests", look: look, url: "http://berth" + server.PathPods}
	var d net.Dialer
	a.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", server.SocketPath(m.runDir()))
	}}}
	// Other users may fill the disk of the machine.
	a.flags = []string{"--runtime-handler", m.handler, "--max-pods", fmt.Sprint(max(o.many, o.pods)), "--eviction-hard", "nodefs.available<0%,imagefs.available<0%"}
	if a.command, err = m.berthRun(a.manifests); err != nil {
		return nil, err
	}
	return a, os.Mkdir(a.manifests, 0o755)
}

// inTurns calls do for both in each round, in alternating order.
func inTurns(both [2]*agent, rounds int, do func(a *agent, round int) error) error {
	for round := range rounds {
		for i := range both {
			a := both[(round+i)%len(both)]
			if err := do(a, round); err != nil {
				return fmt.Errorf("%s: %w", a.kind.name, err)
			}
		}
	}
	return nil
}

// lives starts the agent, calls do when it serves, and stops its pods and the agent. No manifest is
// left.
func (a *agent) lives(ctx context.Context, do func() error) (err error) {
	if _, err := a.start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop(), a.m.empty(context.WithoutCancel(ctx))) }()
	if _, err := a.await(ctx, "/pods to be served", func(map[string]status) bool { return true }); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	_, err = a.removeAll(ctx)
	return err
}

// measureRuns measures berth run with its runtime and pods. While one starts or stops pods, the
// other is idle; both are idle at the same time when that is measured.
func measureRuns(ctx context.Context, both [2]*agent, r *report) error {
	n, length := r.options.pods, r.options.rest
	rest := func(pods string, length time.Duration) error {
		return side(len(both), len(both), func(i int) error { return both[i].rest(ctx, r, pods, length) })
	}
	return both[0].lives(ctx, func() error {
		return both[1].lives(ctx, func() error {
			if err := rest(count(0), min(length, 30*time.Second)); err != nil {
				return err
			}
			say("%s and %s: one pod alone of each, %d times", byShims, byPodshims, alone)
			if err := inTurns(both, alone, func(a *agent, i int) error { return a.timeOne(ctx, i, r) }); err != nil {
				return err
			}
			if err := inTurns(both, podshimRounds, func(a *agent, i int) error {
				return a.timeBatch(ctx, fmt.Sprintf("round-%d", i), n, func() error { return nil }, r)
			}); err != nil {
				return err
			}
			if err := rest(noneAfterOthers, min(length, 30*time.Second)); err != nil {
				return err
			}
			if err := inTurns(both, 1, func(a *agent, _ int) error {
				_, err := a.timeReady(ctx, "rest", n)
				return err
			}); err != nil {
				return err
			}
			if err := rest(count(n), length); err != nil {
				return err
			}
			addPodMemory(r, byShims, n)
			addPodMemory(r, byPodshims, n)
			return nil
		})
	})
}

// noneAfterOthers is the figure of an agent and a runtime without pods that have had some before.
const noneAfterOthers = "0 pods after others"

// addPodMemory computes the memory of a pod beyond its containers from two idle measurements: with
// n pods, and without any after others. Memory that finished work still occupies is not attributed
// to running pods.
func addPodMemory(r *report, who string, n int) {
	const all = "at rest with %s: PSS of agent, runtime and shims"
	with, _ := r.find(who, fmt.Sprintf(all, count(n)))
	without, _ := r.find(who, fmt.Sprintf(all, noneAfterOthers))
	r.add(who, fmt.Sprintf(podMemory, n), "MiB", (with-without)/float64(n))
}

// timeReady writes the manifests of pods, and returns the time until all were Ready.
func (a *agent) timeReady(ctx context.Context, prefix string, n int) (time.Duration, error) {
	names, began, err := a.write(prefix, n, nil)
	if err != nil {
		return 0, err
	}
	if _, err := a.m.events.awaitStarted(ctx, names, began); err != nil {
		return 0, err
	}
	ready, err := a.awaitReady(ctx, names)
	return ready.Sub(began), err
}

// timeGone removes all manifests, and returns the time until the runtime had no pod, not even an
// exited one.
func (a *agent) timeGone(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	if _, err := a.removeAll(ctx); err != nil {
		return 0, err
	}
	err := until(ctx, enough, a.look, "the runtime to have no pod", func() bool {
		list, err := a.m.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		return err == nil && len(list.Items) == 0
	})
	return time.Since(began), err
}

func (a *agent) timeOne(ctx context.Context, i int, r *report) error {
	took, err := a.timeReady(ctx, fmt.Sprintf("one-%d", i), 1)
	if err != nil {
		return err
	}
	r.agent(a.kind, oneOfRun, took)
	_, err = a.timeGone(ctx)
	return err
}

// timeBatch measures the start of n pods at once, between, and the pods' termination.
func (a *agent) timeBatch(ctx context.Context, prefix string, n int, between func() error, r *report) error {
	say("%s: berth run, %d pods at once: %s", a.kind.name, n, prefix)
	defer func(before time.Duration) { a.look = before }(a.look)
	a.look = 50*time.Millisecond + time.Duration(n)*time.Millisecond/5 // each poll costs CPU of agent and runtime
	before, agentBefore, err := a.cpu()
	if err != nil {
		return err
	}
	took, err := a.timeReady(ctx, prefix, n)
	if err != nil {
		return err
	}
	started, agentStarted, err := a.cpu()
	if err != nil {
		return err
	}
	if err := between(); err != nil {
		return err
	}
	rested, agentRested, err := a.cpu()
	if err != nil {
		return err
	}
	say("%s: berth run, %d pods end", a.kind.name, n)
	gone, err := a.timeGone(ctx)
	if err != nil {
		return err
	}
	stopped, agentStopped, err := a.cpu()
	if err != nil {
		return err
	}
	what := fmt.Sprintf(manyOfRun, n)
	r.agent(a.kind, what, took)
	r.agent(a.kind, fmt.Sprintf(goneOfRun, n), gone)
	a.addCPU(r, what, "", n, cost{startedCPU: started - before, stoppedCPU: stopped - rested})
	a.addCPU(r, what, ofAgent, n, cost{startedCPU: agentStarted - agentBefore, stoppedCPU: agentStopped - agentRested})
	return nil
}

// cpu returns the CPU time of runtime and pods, and of the agent.
func (a *agent) cpu() (below, itself time.Duration, err error) {
	u, err := usageOf(a.cmd.Process.Pid)
	if err != nil {
		return 0, 0, err
	}
	all, err := a.m.cpu()
	return all - u.CPU, u.CPU, err
}

// addCPU adds the CPU time per pod of n pods; of names the subject, and "" is the runtime with all
// that it starts.
func (a *agent) addCPU(r *report, what, of string, n int, c cost) {
	r.add(a.kind.name, what+startCPU+of, "ms", 1000*c.startedCPU.Seconds()/float64(n))
	r.add(a.kind.name, what+stopCPU+of, "ms", 1000*c.stoppedCPU.Seconds()/float64(n))
}

// measureBothFloors measures both runtimes themselves.
func measureBothFloors(ctx context.Context, both [2]*agent, r *report) error {
	say("%s and %s: floor, one pod alone of each, %d times", byShims, byPodshims, alone)
	if err := inTurns(both, alone, func(a *agent, i int) error {
		c, err := a.m.batch(ctx, 1, 1+i)
		if err == nil {
			r.floor(a.kind.name, oneOfFloor, c.start)
		}
		return err
	}); err != nil {
		return err
	}
	n := r.options.pods
	return inTurns(both, podshimRounds, func(a *agent, i int) error {
		say("%s: floor, %d pods, %d at a time, round %d of %d", a.kind.name, n, ratioParallel, i+1, podshimRounds)
		c, err := a.m.batch(ctx, n, ratioParallel)
		if err == nil {
			r.floor(a.kind.name, fmt.Sprintf(manyOfFloor, n), c.start)
			a.addCPU(r, fmt.Sprintf(manyOfFloor, n), "", n, c)
		}
		return err
	})
}

// veryMany measures very many pods: their start, idle time and termination.
func (a *agent) veryMany(ctx context.Context, r *report) error {
	n := r.options.many
	return a.lives(ctx, func() error {
		if err := a.timeBatch(ctx, "many", n, func() error { return a.rest(ctx, r, count(n), r.options.rest) }, r); err != nil {
			return err
		}
		addPodMemory(r, a.kind.name, n)
		for what, name := range map[string]string{"start": manyOfRun, "end": goneOfRun} {
			if took, ok := r.find(a.kind.name, fmt.Sprintf(name, n)); ok {
				r.add(a.kind.name, fmt.Sprintf("berth run, %d pods: that %s in a second", n, what), "/s", float64(n)/took)
			}
		}
		return nil
	})
}

// computePodshimGoals computes the goals of ADR 13 for pod shims.
func (r *report) computePodshimGoals() {
	n := r.options.pods
	ratio := func(what string, limit float64) {
		k, ok := r.find(byPodshims, what)
		s, ok2 := r.find(byShims, what)
		if ok && ok2 {
			r.Goals = append(r.Goals, goal{What: what + ": by pod shims, times that by shims", Unit: "×", Limit: limit, Value: k / s})
		}
	}
	for _, name := range []string{oneOfFloor, oneOfRun} {
		ratio(name, 0.35)
	}
	for _, name := range []string{manyOfFloor, manyOfRun} {
		ratio(fmt.Sprintf(name, n), 0.35)
		ratio(fmt.Sprintf(name, n)+startCPU, 0.30)
		ratio(fmt.Sprintf(name, n)+stopCPU, 0.20)
	}
	itself := func(what, unit string, limit float64) {
		if v, ok := r.find(byPodshims, what); ok {
			r.Goals = append(r.Goals, goal{What: "by pod shims, " + what, Unit: unit, Limit: limit, Value: v})
		}
	}
	at := fmt.Sprintf("at rest with %d pods: ", n)
	itself(fmt.Sprintf(podMemory, n), "MiB", 0.6)
	itself(at+"PSS of agent, runtime and shims", "MiB", 150)
	itself(at+"CPU of agent, runtime and shims", "% of a core", 0.2)
}
