//go:build e2e && kubelet

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/resources/devicemanager/checkpoint"
	"berth/internal/resources/devicemanager/devicetest"
)

// sharingConfig has both agents share out CPUs, of which only one is not reserved, and memory.
func sharingConfig(cpus split) string {
	return fmt.Sprintf(`cpuManagerPolicy: static
memoryManagerPolicy: Static
systemReserved: {memory: 100Mi}
evictionHard: {memory.available: 100Mi}
reservedMemory: [{numaNode: 0, limits: {memory: 200Mi}}]
reservedSystemCPUs: %q
syncFrequency: 10s
`, cpus.reserved)
}

// shares are what containers have to themselves, as the files say that agents share.
type shares struct {
	CPUs, Memory json.RawMessage
	Devices      map[string]checkpoint.DevicesPerNUMA // by pod
}

func (s *swapNode) shares() (out shares) {
	s.t.Helper()
	entries := func(file string) json.RawMessage {
		var state struct{ Entries map[string]any }
		must(s.t, json.Unmarshal([]byte(s.read(file)), &state))
		b, err := json.Marshal(state.Entries) // in the order of keys
		must(s.t, err)
		return b
	}
	out.CPUs, out.Memory = entries("cpu_manager_state"), entries("memory_manager_state")
	devices, err := checkpoint.Decode([]byte(s.read("device-plugins/kubelet_internal_checkpoint")))
	must(s.t, err)
	out.Devices = map[string]checkpoint.DevicesPerNUMA{}
	for _, e := range devices.PodDeviceEntries {
		out.Devices[e.PodUID] = e.DeviceIDs
	}
	return out
}

// lasting is what must stay as it is of the pods that run, and of those that ended, whoever is the
// agent. A mirror pod is made anew by a kubelet that starts, with its conditions; and of a pod that
// ended, a kubelet that starts forgets the address.
func (s *swapNode) lasting(made swapPods, now pods) map[string]any {
	out := map[string]any{}
	for _, name := range slices.Concat(made.running, made.ended) {
		p := now.named(name)
		if p == nil {
			out[name] = "gone"
			continue
		}
		containers := lives(pods{p})
		if name == "crashing" {
			containers = nil
		}
		for _, c := range p.Status.InitContainerStatuses {
			containers[name+"/"+c.Name] = v1.ContainerStatus{ContainerID: c.ContainerID, State: c.State, RestartCount: c.RestartCount}
		}
		for c, last := range containers {
			last.LastTerminationState = container(p, strings.TrimPrefix(c, name+"/")).LastTerminationState
			containers[c] = last
		}
		seen := []any{p.Status.Phase, containers}
		if p.Annotations[v1.MirrorPodAnnotationKey] != "" {
			seen = append(seen, p.Annotations[v1.MirrorPodAnnotationKey], isReady(p), p.Status.PodIP)
		} else if slices.Contains(made.running, name) {
			seen = append(seen, p.UID, podCondition(p, v1.PodReady), podCondition(p, v1.ContainersReady), p.Status.PodIPs, p.Status.StartTime)
		}
		out[name] = seen
	}
	return out
}

// wantLasting checks for a while that the pods stay as they were, and then that the agent does
// something at all: it runs another pod.
func (s *swapNode) wantLasting(made swapPods, before map[string]any, who string) {
	s.t.Helper()
	same := func() bool {
		now, _ := s.apiPods()
		diff := cmp.Diff(before, s.lasting(made, now))
		if diff != "" {
			s.t.Errorf("the pods changed with %s (-before +after):\n%s", who, diff)
		}
		return diff == ""
	}
	s.stays("the pods go on as they were with "+who, 5*time.Second, same)
	s.create(s.helloPod("with-"+who, "serve"))
	s.awaitAPIReady("with-" + who)
	same()
}

// wantUsable checks that the pods can be used through the agent, and see what they saw.
func (s *swapNode) wantUsable(made swapPods, who, greeting string) {
	t := s.t
	t.Helper()
	now, _ := s.apiPods()
	for _, name := range []string{"emptydir", "memory", "subpath", "grouped"} {
		if !slices.Contains(made.running, name) {
			continue
		}
		if got := s.exec(name, "/usr/bin/cat", "/data/file"); got != "kept\n" {
			t.Errorf("with %s the volume of %s has %q", who, name, got)
		}
	}
	if got := s.exec("subpath", "/usr/bin/cat", "/conf.txt"); got != "first\n" {
		t.Errorf("with %s the file of a config map is %q", who, got)
	}
	for name, url := range map[string]string{"web": "http://" + now.named("web").Status.PodIP + ":8080/to-" + who, "hostport": fmt.Sprintf("http://127.0.0.1:%d/to-%s", made.port, who)} {
		answers(t, url)
		until(t, "kubectl logs "+name, func() bool { return strings.Contains(s.kubectl("logs", name), "GET /to-"+who+" 404") })
	}
	if got := s.kubectlIn("", "exec", "static-"+s.name, "--", "/hello", "exit", "3"); got.code != 3 {
		t.Errorf("with %s kubectl exec in the static pod: %v", who, got)
	}
	if out := s.kubectl("logs", "failed"); out != "" {
		t.Errorf("with %s a container that wrote nothing has the log %q", who, out)
	}
	if s.kubectl("logs", "crashing") != "crashed\n" {
		t.Errorf("with %s the log of a container that crashed is not shown", who)
	}
	// The volumes that another agent made are kept up to date.
	s.kubectl("patch", "configmap", "conf", "-p", fmt.Sprintf(`{"data": {"greeting": %q}}`, greeting))
	s.awaitWithin("the files of a config map to change with "+who, func() bool {
		return s.exec("reader", "/usr/bin/cat", "/conf/greeting", "/all/greeting") == greeting+greeting
	})
}

// device is the device that the pod has.
func (s *swapNode) device(pod string) string {
	s.t.Helper()
	return strings.TrimSpace(s.exec(pod, "/usr/bin/sh", "-c", "echo $"+devicetest.EnvName(swapDevice)))
}

// asRun are the pods of the API, under the UIDs by which the runtime knows them.
func (s *swapNode) asRun() pods {
	now, _ := s.apiPods()
	for i, p := range now {
		if uid := p.Annotations[v1.MirrorPodAnnotationKey]; uid != "" {
			now[i] = p.DeepCopy()
			now[i].UID = types.UID(uid)
		}
	}
	return now
}

// awaitOwnCPU waits until the pod pinned has its CPU, and nobody else.
func (s *swapNode) awaitOwnCPU(own string) {
	s.t.Helper()
	var got map[string]string
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the CPUs of pods are %v", got)
		}
	}()
	s.awaitWithin("the CPU "+own+" to be one pod's alone", func() bool {
		got = s.cpusOfPods(s.asRun())
		mine := got["pinned"]
		delete(got, "pinned")
		return mine == own && !slices.ContainsFunc(slices.Collect(maps.Values(got)), func(cpus string) bool { return strings.Contains(cpus, own) })
	})
}

// killed kills a pod's container, and waits until it runs again as often restarted as that.
func (s *swapNode) killed(pod string, restarts int32) {
	s.t.Helper()
	now, _ := s.apiPods()
	s.signal(now.named(pod), "main", unix.SIGKILL)
	s.awaitAPI("the container to run again", func(p pods) bool {
		c := container(p.named(pod), "main")
		return c.RestartCount == restarts && c.Ready && c.LastTerminationState.Terminated != nil
	})
}

// removed deletes pods, and waits until nothing of them is left.
func (s *swapNode) removed(names ...string) {
	s.t.Helper()
	now, _ := s.apiPods()
	var all []traces
	for _, name := range names {
		all = append(all, s.clusterTraces(now.named(name)))
	}
	s.kubectl(append([]string{"delete", "pod", "--wait=false", "--grace-period=1"}, names...)...)
	for _, tr := range all {
		var left []string
		defer func() {
			if len(left) > 0 {
				s.t.Logf("pod %s has left %v", tr.pod.Name, left)
			}
		}()
		s.awaitWithin("pod "+tr.pod.Name+" to leave nothing", func() bool {
			left = s.left(tr)
			return len(left) == 0
		})
	}
}

// A node goes from a kubelet to Berth and back, with 25 pods of all sorts. Those that run notice
// nothing of it, keep what they have to themselves, and can be used, changed and removed by either.
func TestSwap(t *testing.T) {
	cpus := splitCPUs(t)
	s := newSwapNode(t, sharingConfig(cpus))
	kubelet := s.startReal()
	_, driver := s.startDrivers()
	made := s.makePods()
	now, _ := s.apiPods()
	before, had, bodies := s.lasting(made, now), s.shares(), s.bodiesOf(made)
	first := s.device("device")
	wantSame := func(who string) {
		t.Helper()
		s.wantLasting(made, before, who)
		if diff := cmp.Diff(had, s.shares()); diff != "" {
			t.Errorf("with %s other things belong to containers alone (-before +after):\n%s", who, diff)
		}
		if diff := cmp.Diff(bodies, s.bodiesOf(made)); diff != "" {
			t.Errorf("with %s other processes run (-before +after):\n%s", who, diff)
		}
		if got := s.device("device"); got != first {
			t.Errorf("with %s the pod has the device %s, want %s", who, got, first)
		}
		s.awaitOwnCPU(cpus.own)
	}

	s.stop(kubelet)
	berth := s.startBerth()
	wantSame("berth")
	s.wantBackOff()
	s.wantUsable(made, "berth", "hello")
	s.killed("hooks", 1)
	second := s.shellPod("second", goOn, func(_ *v1.Pod, c *v1.Container) { c.Resources.Limits = quantities(swapDevice, "1") })
	s.create(second)
	s.awaitAPIReady("second")
	if got := s.device("second"); got == first {
		t.Errorf("the device %s of a pod was given to another", got)
	}
	if n := driver.prepared(); n != 1 {
		t.Errorf("the driver has prepared %d claims, want 1", n)
	}
	s.removed("grouped", "claim")
	until(t, "the claim to be taken back", func() bool { return driver.prepared() == 0 })

	// A resize that a kubelet must not do once more.
	s.kubectl("patch", "pod", "limited", "--subresource=resize", "-p", `{"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "200m"}}}]}}`)
	s.awaitAPI("the container to be resized", func(p pods) bool {
		c := container(p.named("limited"), "main")
		return c.RestartCount == 1 && c.Ready && c.Resources != nil && c.Resources.Limits.Cpu().String() == "200m"
	})

	made.without("grouped", "claim")
	now = s.awaitAPIReady(append(made.running, "second")...)
	// A kubelet that starts takes what has not run for 10 s for unready until it is probed.
	s.awaitWithin("the restarted containers to have run for 10 s", func() bool {
		return time.Since(container(now.named("limited"), "main").State.Running.StartedAt.Time) > 11*time.Second
	})
	before, had, bodies = s.lasting(made, now), s.shares(), s.bodiesOf(made)
	s.stop(berth)
	kubelet = s.startReal()
	wantSame("kubelet")
	if said := kubelet.said(); strings.Contains(strings.ToLower(said), "checksum") || strings.Contains(strings.ToLower(said), "corrupt") {
		t.Errorf("the kubelet cannot read a file that Berth left:\n%s", said)
	}
	s.wantUsable(made, "kubelet", "good-day")
	s.killed("hooks", 2)
	s.removed("second", "with-berth")
	now, _ = s.apiPods()
	limited := now.named("limited")
	if c := container(limited, "main"); c.RestartCount != 1 || c.Resources.Limits.Cpu().String() != "200m" || podCondition(limited, v1.PodResizeInProgress).Status != "" {
		t.Errorf("the resize that Berth did is, with the kubelet, %+v, %v", c, limited.Status.Conditions)
	}
	if out := s.kubectl("get", "events", "--field-selector", "involvedObject.name=limited,reason=ResizeStarted", "-o", "jsonpath={.items[*].message}{.items[*].count}"); strings.Count(out, "Pod resize started") != 1 {
		t.Errorf("the resize is told as %s", out)
	}
	entries, err := filepath.Glob(s.place.Root + "/pods/*")
	must(t, err)
	for _, dir := range entries {
		if !s.asRun().has(types.UID(filepath.Base(dir))) {
			t.Errorf("the folder %s is nobody's", dir)
		}
	}
}

// without takes pods out that are gone.
func (m *swapPods) without(names ...string) {
	m.running = slices.DeleteFunc(m.running, func(name string) bool { return slices.Contains(names, name) })
}

// bodiesOf are the processes of the pods that run.
func (s *swapNode) bodiesOf(made swapPods) map[string]int {
	s.t.Helper()
	now, _ := s.apiPods()
	return s.bodies(slices.DeleteFunc(now, func(p *v1.Pod) bool { return !slices.Contains(made.running, p.Name) }))
}

// wantBackOff checks that the container that crashes is held back for longer than one that has
// crashed for the first time.
func (s *swapNode) wantBackOff() {
	s.t.Helper()
	s.awaitAPI("the container that crashes to be held back", func(p pods) bool {
		c := container(p.named("crashing"), "main")
		if c.State.Waiting == nil || c.State.Waiting.Reason != "CrashLoopBackOff" {
			return false
		}
		var text string
		_, err := fmt.Sscanf(c.State.Waiting.Message, "back-off %s restarting", &text)
		must(s.t, err)
		delay, err := time.ParseDuration(text)
		must(s.t, err)
		if delay < 20*time.Second || c.RestartCount < 2 {
			s.t.Errorf("after %d restarts the container is held back for %v", c.RestartCount, delay)
		}
		return true
	})
}
