package cpumanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/pod"
	"berth/internal/resources/topologymanager"
)

// host is a runtime with pods of one container each, which has the pod's name as its id.
type host struct {
	t       *testing.T
	manager *CPUManager
	cfg     Config
	stop    context.CancelFunc

	mu    sync.Mutex
	cpus  map[pod.ContainerID]string // what containers that run are confined to
	calls []string
	fails map[pod.ContainerID]string // calls that fail, and how
	hangs map[pod.ContainerID]chan struct{}
	most  int // calls at once
	under int
}

// onHost runs the test in a bubble, with a manager that runs.
func onHost(t *testing.T, b box, test func(*host)) {
	t.Helper()
	cfg := configOf(t, b)
	synctest.Test(t, func(t *testing.T) {
		h := &host{t: t, cpus: map[pod.ContainerID]string{}, fails: map[pod.ContainerID]string{}, hangs: map[pod.ContainerID]chan struct{}{}}
		cfg.Changed = pod.NewInbox[pod.UID]() // of this bubble
		h.start(cfg)
		test(h)
		h.stop()
		synctest.Wait()
		if err := h.manager.Health(); err != nil {
			t.Errorf("when all is over: %v", err)
		}
	})
}

// start begins a new agent.
func (h *host) start(cfg Config) {
	cfg.Runtime, cfg.Newest = h, h.newest
	h.manager, h.cfg = load(h.t, cfg), cfg
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.manager.Run(ctx) }()
	h.stop = func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			h.t.Errorf("Run ended: %v", err)
		}
	}
	h.mu.Lock()
	run := slices.Collect(maps.Keys(h.cpus))
	h.mu.Unlock()
	for _, id := range run {
		h.cfg.Changed.Put(pod.UID(id))
	}
	synctest.Wait()
}

func (h *host) newest(uid pod.UID) (*pod.Status, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &pod.Status{UID: uid, Namespace: "default", Name: string(uid)}
	id := pod.ContainerID(uid)
	if _, ok := h.cpus[id]; ok {
		s.Containers = []pod.ContainerStatus{{ID: id, Name: "c", State: pod.StateRunning, CreatedAt: time.Now()}}
	}
	return s, true
}

func (h *host) UpdateContainerResources(ctx context.Context, id pod.ContainerID, r *runtimeapi.LinuxContainerResources) error {
	h.mu.Lock()
	h.calls = append(h.calls, fmt.Sprintf("%s %s", id, r.GetCpusetCpus()))
	hang, fail := h.hangs[id], h.fails[id]
	h.under++
	h.most = max(h.most, h.under)
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.under--
	}()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if fail != "" {
		return errors.New(fail)
	}
	if _, ok := h.cpus[id]; !ok {
		return errors.New("not found")
	}
	h.cpus[id] = r.GetCpusetCpus()
	return nil
}

// run admits a pod and starts its container, as the agent does.
func (h *host) run(uid, cpu string) {
	h.t.Helper()
	p := podOf(uid, ask{"c", cpu, ""})
	if err := h.manager.Allocate(p, &p.Spec.Containers[0], topologymanager.Hint{}); err != nil {
		h.t.Fatal(err)
	}
	h.create(uid)
}

func (h *host) create(uid string) {
	cpus := h.manager.CPUs(pod.UID(uid), "c")
	h.mu.Lock()
	h.cpus[pod.ContainerID(uid)] = cpus
	h.mu.Unlock()
	h.cfg.Changed.Put(pod.UID(uid))
	synctest.Wait()
}

// end ends the container, and the pod.
func (h *host) end(uid string) {
	h.exit(uid)
	h.manager.Release(pod.UID(uid))
	synctest.Wait()
}

func (h *host) exit(uid string) {
	h.mu.Lock()
	delete(h.cpus, pod.ContainerID(uid))
	h.mu.Unlock()
	h.cfg.Changed.Put(pod.UID(uid))
	synctest.Wait()
}

// set changes how calls for a container end.
func (h *host) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// want checks what containers run on ("a=0-3 b=4"), and which calls were made since the last time.
func (h *host) want(cpus string, calls ...string) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	var got []string
	for id, on := range h.cpus {
		got = append(got, string(id)+"="+on)
	}
	slices.Sort(got)
	if text := strings.Join(got, " "); text != cpus {
		h.t.Errorf("containers run on %s; want %s", text, cpus)
	}
	slices.Sort(h.calls)
	if diff := cmp.Diff(calls, h.calls); diff != "" {
		h.t.Errorf("calls (-want +got):\n%s", diff)
	}
	h.calls = nil
}

func TestContainersFollow(t *testing.T) {
	onHost(t, laptop, func(h *host) {
		h.run("a", "")
		h.run("b", "500m")
		h.want("a=0-7 b=0-7") // a new container need not be told what it was created with
		h.run("x", "2")
		h.want("a=0-1,4-7 b=0-1,4-7 x=2-3", "a 0-1,4-7", "b 0-1,4-7")
		h.exit("x") // it crashes, and keeps its CPUs
		h.want("a=0-1,4-7 b=0-1,4-7")
		h.create("x")
		h.want("a=0-1,4-7 b=0-1,4-7 x=2-3")
		h.end("x")
		h.want("a=0-7 b=0-7", "a 0-7", "b 0-7")
		time.Sleep(time.Hour)
		h.want("a=0-7 b=0-7") // nothing happens, and nothing ticks
	})
}

// A container that was created before the shared CPUs shrank, and seen after, is told.
func TestCreatedBefore(t *testing.T) {
	onHost(t, laptop, func(h *host) {
		p := podOf("x", ask{"c", "2", ""})
		cpus := h.manager.CPUs("a", "c")
		if err := h.manager.Allocate(p, &p.Spec.Containers[0], topologymanager.Hint{}); err != nil {
			t.Fatal(err)
		}
		h.set(func() { h.cpus["a"] = cpus })
		h.cfg.Changed.Put("a")
		synctest.Wait()
		h.want("a=0-1,4-7", "a 0-1,4-7")
	})
}

// What an earlier agent started is told once where it belongs: the CPUs may have changed meanwhile.
func TestAgentStartsAgain(t *testing.T) {
	onHost(t, laptop, func(h *host) {
		h.run("a", "")
		h.run("x", "2")
		h.want("a=0-1,4-7 x=2-3", "a 0-1,4-7")
		h.stop()
		h.set(func() { h.cpus["a"] = "0-7" }) // it was told so and not heard
		h.start(h.cfg)
		h.want("a=0-1,4-7 x=2-3", "a 0-1,4-7", "x 2-3")
		// CPUs that were handed out for a container that is still to come say nothing of the one
		// that runs.
		h.stop()
		h.set(func() { h.cpus["a"] = "0-7" })
		cfg := h.cfg
		cfg.Changed = pod.NewInbox[pod.UID]()
		cpus := h.cpus
		h.cpus = nil
		h.start(cfg)
		time.Sleep(time.Minute)
		h.manager.store.mu.Lock()
		h.manager.store.initial["a"] = map[string]initialCPUs{"c": {"0-1,4-7", time.Now().Add(time.Second)}}
		h.manager.store.mu.Unlock()
		h.set(func() { h.cpus = cpus })
		h.cfg.Changed.Put("a")
		synctest.Wait()
		h.want("a=0-1,4-7 x=2-3", "a 0-1,4-7")
	})
}

func TestRuntimeFails(t *testing.T) {
	onHost(t, laptop, func(h *host) {
		h.run("a", "")
		h.run("b", "")
		h.set(func() { h.fails["a"] = "no such cpuset" })
		h.run("x", "2")
		h.want("a=0-7 b=0-1,4-7 x=2-3", "a 0-1,4-7", "b 0-1,4-7")
		if err := h.manager.Health(); err != nil {
			t.Errorf("after one failure: %v", err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		h.want("a=0-7 b=0-1,4-7 x=2-3", "a 0-1,4-7")
		sick := "container c of pod default/a is not moved to the CPUs 0-1,4-7: no such cpuset"
		wantError(t, h.manager.Health(), sick)
		for range 5 {
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		h.mu.Lock()
		if n := len(h.calls); n < 8 || n > 10 {
			t.Errorf("%d calls in five minutes", n)
		}
		h.calls = nil
		h.mu.Unlock()
		h.run("y", "2") // other CPUs are tried at once
		h.want("a=0-7 b=0-1,6-7 x=2-3 y=4-5", "a 0-1,6-7", "b 0-1,6-7")
		h.set(func() { delete(h.fails, "a") })
		time.Sleep(time.Minute)
		synctest.Wait()
		h.want("a=0-1,6-7 b=0-1,6-7 x=2-3 y=4-5", "a 0-1,6-7")
		if err := h.manager.Health(); err != nil {
			t.Error(err)
		}
		got := story(h.manager, "a")
		if len(got) != 2 || got[0] != "c: the container is not moved to the CPUs 0-1,4-7, and tried again: no such cpuset" ||
			!strings.HasPrefix(got[1], "c: the container is moved to the CPUs 0-1,6-7: after ") {
			t.Errorf("the journal has %q", got)
		}
	})
}

// A call that failed may have done its work: going back needs a call, too.
func TestFailedCallDidIt(t *testing.T) {
	onHost(t, laptop, func(h *host) {
		h.run("a", "")
		h.set(func() { h.fails["a"] = "no answer" })
		h.run("x", "2")
		h.set(func() { h.cpus["a"] = "0-1,4-7"; delete(h.fails, "a") })
		h.end("x")
		h.want("a=0-7", "a 0-1,4-7", "a 0-7")
	})
}

// A container that has ended is no failure, whichever is known first.
func TestContainerDies(t *testing.T) {
	onHost(t, laptop, func(h *host) {
		h.run("a", "")
		h.run("b", "")
		h.set(func() { delete(h.cpus, "a") })
		h.run("x", "2")
		h.want("b=0-1,4-7 x=2-3", "a 0-1,4-7", "b 0-1,4-7")
		h.exit("a")
		time.Sleep(time.Hour)
		h.want("b=0-1,4-7 x=2-3")

		hang := make(chan struct{})
		h.set(func() { h.hangs["b"], h.fails["b"] = hang, "killed" })
		h.end("x")
		h.exit("b")
		close(hang)
		time.Sleep(time.Hour)
		h.want("", "b 0-7")
		if s := append(story(h.manager, "a"), story(h.manager, "b")...); len(s) != 0 {
			t.Errorf("the journal has %q", s)
		}
	})
}

// The second failure is told, unless the container has ended while the call was under way.
func TestContainerDiesLater(t *testing.T) {
	onHost(t, laptop, func(h *host) {
		h.run("a", "")
		hang := make(chan struct{})
		h.set(func() { h.fails["a"] = "killed" })
		h.run("x", "2")
		h.set(func() { h.hangs["a"] = hang })
		time.Sleep(time.Second)
		synctest.Wait()
		h.exit("a")
		close(hang)
		synctest.Wait()
		h.want("x=2-3", "a 0-1,4-7", "a 0-1,4-7")
		if err := h.manager.Health(); err != nil || len(story(h.manager, "a")) != 0 {
			t.Errorf("health %v, journal %q", err, story(h.manager, "a"))
		}
	})
}

// What a container was created with says nothing any more once it was seen.
func TestContainerIsSeenAgain(t *testing.T) {
	onHost(t, laptop, func(h *host) {
		h.run("a", "")
		h.run("x", "2")
		h.exit("a") // an observation without it
		h.end("x")
		h.set(func() { h.cpus["a"] = "0-1,4-7" })
		h.cfg.Changed.Put("a")
		synctest.Wait()
		h.want("a=0-7", "a 0-1,4-7", "a 0-7")
	})
}

// A call that hangs holds up nobody, and is followed by what is right then.
func TestRuntimeHangs(t *testing.T) {
	onHost(t, laptop, func(h *host) {
		h.run("a", "")
		h.run("b", "")
		hang := make(chan struct{})
		h.set(func() { h.hangs["a"] = hang })
		h.run("x", "2")
		h.run("y", "2")
		h.want("a=0-7 b=0-1,6-7 x=2-3 y=4-5", "a 0-1,4-7", "b 0-1,4-7", "b 0-1,6-7")
		h.set(func() { delete(h.hangs, "a") })
		close(hang)
		synctest.Wait()
		h.want("a=0-1,6-7 b=0-1,6-7 x=2-3 y=4-5", "a 0-1,6-7")
		h.set(func() { h.hangs["a"] = make(chan struct{}) }) // for ever: the agent ends
		h.end("y")
		h.want("a=0-1,6-7 b=0-1,4-7 x=2-3", "a 0-1,4-7", "b 0-1,4-7")
	})
}

// Few containers are moved at once, and those that failed before leave room to others.
func TestManyContainers(t *testing.T) {
	onHost(t, laptop, func(h *host) {
		const n = 40
		for i := range n {
			h.run(fmt.Sprintf("p%02d", i), "")
		}
		hang := make(chan struct{})
		h.set(func() {
			for i := range 20 {
				h.fails[pod.ContainerID(fmt.Sprintf("p%02d", i))] = "slow"
			}
		})
		h.run("x", "2")
		h.set(func() {
			if h.most > maxUpdates || len(h.calls) != n {
				t.Errorf("%d calls, %d at once", len(h.calls), h.most)
			}
			h.calls = nil
			for i := range 20 {
				h.hangs[pod.ContainerID(fmt.Sprintf("p%02d", i))] = hang
			}
		})
		time.Sleep(time.Second) // those that failed are tried again, and hang
		synctest.Wait()
		h.end("x")
		h.set(func() {
			if h.under != maxUpdates/2 {
				t.Errorf("%d calls hang", h.under)
			}
			for i := 20; i < n; i++ {
				if got := h.cpus[pod.ContainerID(fmt.Sprintf("p%02d", i))]; got != "0-7" {
					t.Errorf("container %d runs on %s", i, got)
				}
			}
			clear(h.fails)
			clear(h.hangs)
		})
		close(hang)
		time.Sleep(time.Minute)
		synctest.Wait()
		h.set(func() {
			for id, got := range h.cpus {
				if got != "0-7" {
					t.Errorf("container %s runs on %s", id, got)
				}
			}
		})
	})
}

// A file that could not be written is written when the disk is well again.
func TestFileIsWrittenLater(t *testing.T) {
	onHost(t, laptop, func(h *host) {
		h.run("x", "2")
		path := h.cfg.StateFile
		mend := checkpointtest.ReadOnly(t, strings.TrimSuffix(path, "/cpu_manager_state"))
		p := podOf("y", ask{"c", "2", ""})
		if err := h.manager.Allocate(p, &p.Spec.Containers[0], topologymanager.Hint{}); err == nil {
			t.Error("a pod was given CPUs")
		}
		mend()
		time.Sleep(time.Second)
		synctest.Wait()
		if err := h.manager.Persistence(); err != nil {
			t.Error(err)
		}
		mend = checkpointtest.ReadOnly(t, strings.TrimSuffix(path, "/cpu_manager_state"))
		h.end("x")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		wantError(t, h.manager.Persistence(), "write "+path+": read-only file system; make its file system writable")
		mend()
		time.Sleep(time.Minute)
		synctest.Wait()
		wantFile(t, h.manager, `{"policyName":"static","defaultCpuSet":"0-7","checksum":`+fmt.Sprint((&state{Policy: Static, Shared: "0-7"}).checksum())+`}`)
		if err := h.manager.Persistence(); err != nil {
			t.Error(err)
		}
	})
}
