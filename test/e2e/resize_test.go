//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/host/cgroups"
)

// sized gives a container requests and limits of CPU and memory.
func sized(c v1.Container, cpu, memory string) v1.Container {
	c.Resources.Requests, c.Resources.Limits = amounts("50m", "8Mi"), amounts(cpu, memory)
	return c
}

// restartedForMemory makes a container one that is restarted when its memory is resized.
func restartedForMemory(c v1.Container) v1.Container {
	c.ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
	return c
}

// resize asks for other limits of a container, as a user does.
func (c *cluster) resize(pod, container, cpu, memory string) {
	c.t.Helper()
	c.kubectl("patch", "pod", pod, "--subresource=resize", "-p",
		fmt.Sprintf(`{"spec":{"containers":[{"name":%q,"resources":{"limits":{"cpu":%q,"memory":%q}}}]}}`, container, cpu, memory))
}

// limits are the CPU quota and the memory limit, in bytes, of the cgroup that holds a running
// container, or of one so many levels above it.
func (c *cluster) limits(s v1.ContainerStatus, above int) string {
	_, id, _ := strings.Cut(s.ContainerID, "://")
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.pid(id)))
	if err != nil {
		return err.Error()
	}
	read := func(controller, v1File, v2File string) string {
		version, _ := cgroups.Detect()
		for line := range strings.Lines(string(b)) {
			parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
			file := filepath.Join(cgroupMount, controller, parts[2], strings.Repeat("../", above), v1File)
			if version == 2 {
				file = filepath.Join(cgroupMount, parts[2], strings.Repeat("../", above), v2File)
			} else if !strings.Contains(","+parts[1]+",", ","+controller+",") {
				continue
			}
			value, err := os.ReadFile(file)
			if err != nil {
				return err.Error()
			}
			return strings.Fields(string(value))[0]
		}
		return "none"
	}
	return read("cpu", "cpu.cfs_quota_us", "cpu.max") + " " + read("memory", "memory.limit_in_bytes", "memory.max")
}

// awaitLimits waits until the API server shows the container running with these limits and nothing
// more to be done, and compares them with those that hold.
func (c *cluster) awaitLimits(pod, name, cpu, memory string) v1.ContainerStatus {
	c.t.Helper()
	p := c.awaitAPI(fmt.Sprintf("%s/%s to have %s and %s", pod, name, cpu, memory), func(p pods) bool {
		w := p.named(pod)
		s := container(w, name)
		return s.State.Running != nil && s.Resources != nil && equality.Semantic.DeepEqual(s.Resources.Limits, amounts(cpu, memory)) &&
			podCondition(w, v1.PodResizeInProgress).Status == "" && podCondition(w, v1.PodResizePending).Status == ""
	}).named(pod)
	s := container(p, name)
	q, m := resource.MustParse(cpu), resource.MustParse(memory)
	if got, want := c.limits(s, 0), fmt.Sprintf("%d %d", q.MilliValue()*cgroups.QuotaPeriod/1000, m.Value()); got != want {
		c.t.Errorf("the cgroup of %s/%s has %s, want %s", pod, name, got, want)
	}
	return s
}

func wantRestarts(t *testing.T, s v1.ContainerStatus, id string, restarts int32) {
	t.Helper()
	if s.RestartCount != restarts || restarts == 0 && s.ContainerID != id {
		t.Errorf("container %s is %s after %d restarts, want %s and %d", s.Name, s.ContainerID, s.RestartCount, id, restarts)
	}
}

// CPU and memory of a running container grow and shrink without a restart, and the pod's with them;
// a container whose policy says so is restarted for it; and what changes the pod's class is
// refused.
func TestResizeInPlace(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	c.create(c.inCluster(c.act("web", v1.RestartPolicyAlways, nil,
		sized(actor("main", "stay"), "200m", "32Mi"), restartedForMemory(sized(actor("other", "stay"), "100m", "16Mi")))))
	main := c.awaitLimits("web", "main", "200m", "32Mi")
	other := c.awaitLimits("web", "other", "100m", "16Mi")
	wantPod := func(quota, memory int64) {
		t.Helper()
		want := fmt.Sprintf("%d %d", quota, memory)
		if got := c.limits(main, 1); got != want {
			t.Errorf("the pod's cgroup has %s, want %s", got, want)
		}
	}
	wantPod(30000, 48<<20)

	for _, to := range []struct {
		cpu, memory   string
		quota, memAll int64
	}{{"500m", "96Mi", 60000, 112 << 20}, {"100m", "24Mi", 20000, 40 << 20}, {"150m", "48Mi", 25000, 64 << 20}} {
		c.resize("web", "main", to.cpu, to.memory)
		wantRestarts(t, c.awaitLimits("web", "main", to.cpu, to.memory), main.ContainerID, 0)
		wantPod(to.quota, to.memAll)
	}
	// Those in the container see it too.
	file := "/sys/fs/cgroup/memory/memory.limit_in_bytes"
	if version, _ := cgroups.Detect(); version == 2 {
		file = "/sys/fs/cgroup/memory.max"
	}
	if got := strings.TrimSpace(c.kubectl("exec", "web", "-c", "main", "--", "/usr/bin/cat", file)); got != strconv.Itoa(48<<20) {
		t.Errorf("the container sees a memory limit of %q, want 48 MiB", got)
	}

	c.resize("web", "other", "250m", "16Mi")
	wantRestarts(t, c.awaitLimits("web", "other", "250m", "16Mi"), other.ContainerID, 0)
	c.resize("web", "other", "250m", "20Mi")
	wantRestarts(t, c.awaitLimits("web", "other", "250m", "20Mi"), "", 1)
	wantRestarts(t, c.awaitLimits("web", "main", "150m", "48Mi"), main.ContainerID, 0)

	if out, err := c.try("patch", "pod", "web", "--subresource=resize", "-p", `{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"150m","memory":"48Mi"}}},
		{"name":"other","resources":{"requests":{"cpu":"250m","memory":"20Mi"}}}]}}`); err == nil || !strings.Contains(out+err.Error(), "QOS Class") {
		t.Errorf("a resize to another class: %v, %s", err, out)
	}
	for _, reason := range []string{"ResizeStarted", "ResizeCompleted"} {
		until(t, "the event "+reason, func() bool {
			out, err := c.try("get", "events", "--field-selector=reason="+reason, "-o", "jsonpath={.items[*].message}")
			return err == nil && strings.Contains(out, `{"containers":[{"name":"main","resources":{"limits":{"cpu":"500m","memory":"96Mi"}`)
		})
	}
}

// What a pod may use as a whole is resized without a restart: the pod's cgroup, and the containers
// without a limit of their own.
func TestResizePodLevel(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	p := c.inCluster(c.act("web", v1.RestartPolicyAlways, nil, actor("shared", "stay"), sized(actor("own", "stay"), "100m", "16Mi")))
	whole := resourcesOf("100m 32Mi", "200m 64Mi")
	p.Spec.Resources = &whole
	c.create(p)
	before := c.awaitAPIReady("web").named("web")
	check := func(w *v1.Pod, whole string) {
		t.Helper()
		shared, own := container(w, "shared"), container(w, "own")
		for what, limits := range map[string][2]string{
			"the pod": {c.limits(shared, 1), whole}, "the container without limits": {c.limits(shared, 0), whole}, "the container with limits": {c.limits(own, 0), "10000 16777216"},
		} {
			if limits[0] != limits[1] {
				t.Errorf("%s has %s, want %s", what, limits[0], limits[1])
			}
		}
		wantRestarts(t, shared, container(before, "shared").ContainerID, 0)
		wantRestarts(t, own, container(before, "own").ContainerID, 0)
	}
	check(before, "20000 67108864")
	for _, to := range []struct{ requests, limits, holds string }{
		{"200m 48Mi", "400m 96Mi", "40000 100663296"},
		{"100m 32Mi", "150m 48Mi", "15000 50331648"},
	} {
		want := resourcesOf(to.requests, to.limits)
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"resources": want}})
		if err != nil {
			t.Fatal(err)
		}
		c.kubectl("patch", "pod", "web", "--subresource=resize", "-p", string(patch))
		check(c.awaitAPI("the pod to have "+to.limits, func(p pods) bool {
			w := p.named("web")
			return w != nil && w.Status.Resources != nil && equality.Semantic.DeepEqual(*w.Status.Resources, want) &&
				equality.Semantic.DeepEqual(w.Status.AllocatedResources, want.Requests) &&
				podCondition(w, v1.PodResizeInProgress).Status == "" && podCondition(w, v1.PodResizePending).Status == ""
		}).named("web"), to.holds)
	}
}

// What does not fit waits until another pod goes.
func TestResizeDeferred(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	asking := func(cpu string) v1.Container {
		a := actor("main", "stay")
		a.Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
		return a
	}
	n, err := c.client.GetNode(c.ctx, c.name)
	if err != nil {
		t.Fatal(err)
	}
	cpu := n.Status.Allocatable[v1.ResourceCPU]
	half := cpu.MilliValue() / 2
	c.create(c.inCluster(c.act("big", v1.RestartPolicyAlways, nil, asking(fmt.Sprintf("%dm", half)))))
	c.create(c.inCluster(c.act("web", v1.RestartPolicyAlways, nil, asking("100m"))))
	c.awaitAPI("the pods to run", func(p pods) bool { return p.ready("big") && p.ready("web") })
	c.kubectl("patch", "pod", "web", "--subresource=resize", "-p", fmt.Sprintf(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"%dm"}}}]}}`, half+100))
	deferred := c.awaitAPI("the resize to be deferred", func(p pods) bool {
		return podCondition(p.named("web"), v1.PodResizePending).Reason == v1.PodReasonDeferred
	}).named("web")
	wantText(t, "the condition", podCondition(deferred, v1.PodResizePending).Message, "Node didn't have enough resource: cpu, requested: ")
	if g := podCondition(deferred, v1.PodResizePending).ObservedGeneration; g != 2 {
		t.Errorf("the condition is about generation %d, want 2", g)
	}
	if a := container(deferred, "main").AllocatedResources[v1.ResourceCPU]; a.MilliValue() != 100 {
		t.Errorf("allocated are %s, want 100m", &a)
	}
	c.kubectl("delete", "pod", "big")
	granted := c.awaitAPI("the resize to be done", func(p pods) bool {
		w := p.named("web")
		return podCondition(w, v1.PodResizePending).Status == "" && podCondition(w, v1.PodResizeInProgress).Status == "" &&
			container(w, "main").Resources.Requests.Cpu().MilliValue() == half+100
	}).named("web")
	wantRestarts(t, container(granted, "main"), container(deferred, "main").ContainerID, 0)
}

// A memory limit is not set below what is used; it is when there is room.
func TestResizeBelowUse(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	c.create(c.inCluster(c.act("web", v1.RestartPolicyAlways, nil, sized(actor("main",
		`x=$(head -c 40000000 /dev/zero | tr '\0' x); say full; while [ ! -e /shared/free ]; do sleep 0.1; done; x=; say empty; stay`), "500m", "192Mi"))))
	c.awaitStory("web", "main full")
	before := c.awaitLimits("web", "main", "500m", "192Mi")
	c.resize("web", "main", "500m", "24Mi")
	failed := c.awaitAPI("the resize to be refused", func(p pods) bool {
		return podCondition(p.named("web"), v1.PodResizeInProgress).Reason == v1.PodReasonError
	}).named("web")
	wantText(t, "the condition", podCondition(failed, v1.PodResizeInProgress).Message, "memory limit (25165824) below current usage (")
	if got := c.limits(before, 0); got != "50000 201326592" {
		t.Errorf("the container's limits are %s, want those of before", got)
	}
	c.mark("web", "free")
	c.awaitStory("web", "main empty")
	wantRestarts(t, c.awaitLimits("web", "main", "500m", "24Mi"), before.ContainerID, 0)
}

// Whenever in a resize the agent is killed, the next brings it to its end: in place without a
// restart, and with one where there is to be one.
func TestResizeKilled(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.startMember()
	c.create(c.inCluster(c.act("web", v1.RestartPolicyAlways, nil,
		sized(actor("main", "stay"), "200m", "32Mi"), restartedForMemory(sized(actor("other", "stay"), "100m", "16Mi")))))
	main := c.awaitLimits("web", "main", "200m", "32Mi")
	c.awaitLimits("web", "other", "100m", "16Mi")
	for i, after := range []time.Duration{0, 60, 400} { // more restarts would be held back for longer than a wait
		memory, more := fmt.Sprintf("%dMi", 40+i), fmt.Sprintf("%dMi", 24+i)
		if i%2 == 1 {
			memory = fmt.Sprintf("%dMi", 30-i)
		}
		c.kubectl("patch", "pod", "web", "--subresource=resize", "-p", fmt.Sprintf(
			`{"spec":{"containers":[{"name":"main","resources":{"limits":{"memory":%q}}},{"name":"other","resources":{"limits":{"memory":%q}}}]}}`, memory, more))
		// How far it gets is chance; that it gets to the end is not.
		<-time.After(after * time.Millisecond)
		a.kill()
		a = c.startKubelet()
		wantRestarts(t, c.awaitLimits("web", "main", "200m", memory), main.ContainerID, 0)
		wantRestarts(t, c.awaitLimits("web", "other", "100m", more), "", int32(i+1))
	}
}

// A manifest that keeps its UID asks for a resize too. It is refused: only pods of the API server
// are resized.
func TestResizeStatic(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p := n.act("web", v1.RestartPolicyAlways, nil, sized(actor("main", "stay"), "200m", "32Mi"))
	p.UID = "11111111-2222-4333-8444-555555555555"
	n.put(p)
	n.start()
	before := n.await("the pod to run", func(p pods) bool { return p.ready("web") }).named("web")
	p.Spec.Containers[0] = sized(p.Spec.Containers[0], "300m", "64Mi")
	n.put(p)
	after := n.await("the resize to be refused", func(p pods) bool {
		return podCondition(p.named("web"), v1.PodResizePending).Reason == v1.PodReasonInfeasible
	}).named("web")
	wantRestarts(t, container(after, "main"), container(before, "main").ContainerID, 0)
	if l := container(after, "main").Resources.Limits.Memory().Value(); l != 32<<20 {
		t.Errorf("the container has a memory limit of %d, want 32 MiB", l)
	}
	n.awaitEvents("", "ResizeInfeasible", "In-place resize of static-pods is not supported")
}
