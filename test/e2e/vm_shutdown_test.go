//go:build e2e && vm

package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/api/server"
	"berth/internal/cluster/kube"
)

// shutdownGroups gives pods 20 s, those of priority 1000 and critical ones 60 s each.
const shutdownGroups = `shutdownGracePeriodByPodPriority:
- {priority: 0, shutdownGracePeriodSeconds: 20}
- {priority: 1000, shutdownGracePeriodSeconds: 60}
- {priority: 2000000000, shutdownGracePeriodSeconds: 60}
`

// shutdownDelay is what those come to, in microseconds.
const shutdownDelay = "140000000"

// Units that run beside the agent until the machine goes down: the control plane, and what writes
// down each state of an object in it.
const (
	planeUnit    = "berth-plane.service"
	recorderUnit = "berth-recorder-"
)

// recorded are the kinds whose states are written down.
var recorded = []string{"nodes", "pods", "events"}

// A reboot waits until pods have ended, those of lower priority first, and what the API has of them
// and of the node says why. Pods of manifests run again afterwards, others do not.
//
// The test runs twice, before the reboot that it asks for, and after it.
func TestVMShutdown(t *testing.T) {
	n, back := newRebootNode(t, "shut")
	n.binary = n.place.Dir + "/berth"
	c := &cluster{node: n, name: nodeName(0), namespace: "default", changed: make(chan struct{}, 1), more: shutdownGroups}
	c.plane = &controlPlane{t: t, ctx: n.ctx, binary: os.Getenv("CONTROLPLANE"), dir: n.place.Dir + "/plane"}
	if back {
		c.wasShutDown()
		return
	}
	must(t, os.MkdirAll(n.manifests(), 0o711))
	n.copyProgram(os.Getenv("BERTH"), n.binary, "")
	c.startPlane()
	c.shutsDown()
	askForReboot(t)
}

// startPlane starts the control plane and what records, which live on when the test ends.
func (c *cluster) startPlane() {
	c.t.Helper()
	service := func(unit string, args ...string) {
		c.t.Helper()
		if out, err := exec.Command("systemd-run", append([]string{"--quiet", "--unit", unit}, args...)...).CombinedOutput(); err != nil {
			c.t.Fatalf("systemd-run %s: %v\n%s", unit, err, out)
		}
	}
	service(planeUnit, c.plane.binary, "up", "--dir", c.plane.dir, "--node", c.name, "--wait", patience(2*time.Minute).String())
	c.awaitWithin("the control plane", func() bool {
		_, err := c.plane.kubectl("admin", "", "get", "serviceaccount/default", "-n", "default")
		return err == nil
	})
	for _, kind := range recorded {
		service(recorderUnit+kind, "--property=StandardOutput=file:"+c.recording(kind),
			c.plane.binary, "kubectl", "--kubeconfig", c.plane.dir+"/admin.kubeconfig", "get", kind, "-A", "--watch", "-o", "json")
	}
	config, err := kube.LoadKubeconfig(c.plane.dir + "/admin.kubeconfig")
	must(c.t, err)
	c.client, err = kube.Open(kube.Config{REST: config, Version: "e2e", Log: slog.New(slog.DiscardHandler)})
	must(c.t, err)
}

// recording is the file of what was recorded of a kind.
func (c *cluster) recording(kind string) string { return c.place.Dir + "/" + kind + ".json" }

// ending is a script that tells when it is asked to end and when it has, for which it takes two
// seconds.
const ending = `trap 'say asked $(date +%s.%N); i=0; while [ $i -lt 20 ]; do sleep 0.1; i=$((i+1)); done; say ended $(date +%s.%N); exit 0' TERM
say began
sleep infinity & wait
`

// shutsDown has pods run that a shutdown is to end, and looks at the lock.
func (c *cluster) shutsDown() {
	t := c.t
	t.Helper()
	c.port, c.healthzPort, c.readOnlyPort = freePort(t), freePort(t), freePort(t)
	u := c.writeKubeletUnit()
	static := c.act("static", v1.RestartPolicyAlways, nil, actor("main", ending))
	static.Spec.PriorityClassName, static.Spec.Priority = "system-node-critical", ptr.To(critical)
	c.put(static)
	u.command("start")
	systemctl(t, "enable", u.name)
	c.nodeReady()
	c.plane.mustKubectl("apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 1000\n", "apply", "-f", "-")
	low := c.act("low", v1.RestartPolicyAlways, nil, actor("main", ending))
	low.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: hookOf("hook", "i=0; while [ $i -lt 20 ]; do sleep 0.1; i=$((i+1)); done; say done $(date +%s.%N)")}
	stubborn := c.act("stubborn", v1.RestartPolicyAlways, nil, actor("main", "trap '' TERM\nsay began\nwhile :; do sleep 1; done\n"))
	stubborn.Spec.TerminationGracePeriodSeconds = ptr.To(int64(600))
	high := c.act("high", v1.RestartPolicyAlways, nil, actor("main", ending))
	high.Spec.PriorityClassName = "high"
	for _, p := range []*v1.Pod{low, stubborn, high} {
		p.Namespace = c.namespace
		p.Spec.NodeSelector = map[string]string{v1.LabelHostname: c.name}
		c.create(p)
	}
	c.awaitReady("low", "stubborn", "high", "static-"+c.name)
	for _, name := range []string{"low", "stubborn", "high", "static"} {
		c.awaitStory(name, "main began")
	}

	if said := c.inhibitors(); !strings.Contains(said, "kubelet") || !strings.Contains(said, "delay") {
		t.Errorf("systemd-inhibit lists %q", said)
	}
	if said := readFile(t, "/etc/systemd/logind.conf.d/99-kubelet.conf"); !strings.HasSuffix(said, "\n[Login]\nInhibitDelayMaxSec=140") {
		t.Errorf("the drop-in for logind is %q", said)
	}
	if got := c.delay(); got != shutdownDelay {
		t.Errorf("logind delays shutdowns for %s µs, want %s", got, shutdownDelay)
	}
	// The lock of an agent that was killed is gone with it, and the next one has its own.
	u.command("restart")
	c.awaitReady("low", "stubborn", "high", "static-"+c.name)
	until(t, "one lock of the next agent", func() bool { return strings.Count(c.inhibitors(), "kubelet") == 2 }) // who, and the command
}

// inhibitors are the locks of shutdowns that logind has.
func (c *cluster) inhibitors() (locks string) {
	c.t.Helper()
	out, err := exec.Command("systemd-inhibit", "--list", "--no-legend", "--no-pager").Output()
	must(c.t, err)
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "Kubelet needs time to handle node shutdown") {
			locks += strings.TrimSuffix(line, "Kubelet needs time to handle node shutdown")
		}
	}
	return locks
}

// delay is how long logind lets shutdowns be delayed, in microseconds.
func (c *cluster) delay() string {
	c.t.Helper()
	out, err := exec.Command("busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "InhibitDelayMaxUSec").Output()
	must(c.t, err)
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "t ")
}

// critical is the priority of system-node-critical, which a manifest has to name besides.
const critical int32 = 2000001000

// states are those of the objects that were recorded, the oldest first.
func states[T any](c *cluster, kind string) (out []T) {
	c.t.Helper()
	f, err := os.Open(c.recording(kind))
	must(c.t, err)
	defer f.Close()
	for d := json.NewDecoder(f); ; {
		var object T
		if err := d.Decode(&object); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return out // what writes was ended with the machine
		} else if err != nil {
			c.t.Fatalf("%s: %v", f.Name(), err)
		}
		out = append(out, object)
	}
}

// when is the time that a pod's story has for an event.
func (c *cluster) when(pod, event string) float64 {
	c.t.Helper()
	for _, line := range c.story(pod) {
		if at, ok := strings.CutPrefix(line, event+" "); ok {
			value, err := strconv.ParseFloat(at, 64)
			must(c.t, err)
			return value
		}
	}
	c.t.Errorf("%s: no %q in %q", pod, event, c.story(pod))
	return 0
}

// wasShutDown checks how the machine went down, and how it is since.
func (c *cluster) wasShutDown() {
	t := c.t
	t.Helper()
	u := c.unit("kubelet.service")
	c.sweepReboot(c.removeKubeletUnit)

	// In order, and each in its time.
	order := []string{"low hook done", "low main asked", "low main ended", "high main asked", "high main ended", "static main asked", "static main ended"}
	times := make([]float64, len(order))
	for i, name := range order {
		pod, event, _ := strings.Cut(name, " ")
		times[i] = c.when(pod, event)
	}
	if !slices.IsSorted(times) {
		t.Errorf("pods ended in another order than %q: at %.1f", order, times)
	}

	// What the API was told.
	last := map[string]v1.Pod{}
	for _, p := range states[v1.Pod](c, "pods") {
		if p.Namespace == c.namespace {
			last[p.Name] = p
		}
	}
	for _, name := range []string{"low", "stubborn", "high", "static-" + c.name} {
		p := last[name]
		s := p.Status
		if s.Phase != v1.PodFailed || s.Reason != "Terminated" || s.Message != "Pod was terminated in response to imminent node shutdown." {
			t.Errorf("the API has %s as %s for %s: %s", name, s.Phase, s.Reason, s.Message)
		}
		if d := podCondition(&p, v1.DisruptionTarget); d.Status != v1.ConditionTrue || d.Reason != "TerminationByKubelet" {
			t.Errorf("the API has for %s the condition %+v", name, d)
		}
	}
	nodes := states[v1.Node](c, "nodes")
	if ready := nodeCondition(&nodes[len(nodes)-1], v1.NodeReady); ready.Status != v1.ConditionFalse || !strings.Contains(ready.Message, "node is shutting down") {
		t.Errorf("the API has the node as %+v", ready)
	}
	if !slices.ContainsFunc(states[v1.Event](c, "events"), func(e v1.Event) bool {
		return e.InvolvedObject.Kind == "Node" && e.Reason == "Shutdown" && e.Message == "Shutdown manager detected shutdown event"
	}) {
		t.Error("the API has no event of the shutdown")
	}

	c.runsSince(u)
}

// runsSince checks what runs after the boot, and what is known of the shutdown. There is no control
// plane any more.
func (c *cluster) runsSince(u *unit) {
	t := c.t
	t.Helper()
	u.awaitAnswer(0)
	boot := bootTime(t)
	c.await("the static pod to run since the reboot", func(p pods) bool {
		name := "static-" + c.name
		return p.ready(name) && container(p.named(name), "main").State.Running.StartedAt.After(boot)
	})
	for _, name := range []string{"low", "stubborn", "high"} {
		if began := strings.Count(strings.Join(c.story(name), "\n"), "main began"); began != 1 {
			t.Errorf("%s was started %d times, want once", name, began)
		}
	}
	var past struct{ StartTime, EndTime time.Time }
	decode(t, []byte(readFile(t, c.place.Root+"/graceful_node_shutdown_state")), &past)
	if past.StartTime.IsZero() || past.EndTime.Before(past.StartTime) || past.EndTime.After(boot.Add(time.Second)) {
		t.Errorf("the file of the shutdown has %v to %v; the machine was booted at %v", past.StartTime, past.EndTime, boot)
	}
	// One pod of the first group does not end before its 20 s are over.
	if took := c.when("high", "main asked") - float64(past.StartTime.UnixNano())/1e9; took < 20 {
		t.Errorf("the second group of pods was ended %.1f s after the first", took)
	}
	metrics := c.node.ask(server.PathMetrics)
	for name, want := range map[string]time.Time{"start": past.StartTime, "end": past.EndTime} {
		name = "kubelet_graceful_shutdown_" + name + "_time_seconds"
		var got float64
		for line := range strings.Lines(metrics) {
			if value, ok := strings.CutPrefix(line, name+" "); ok {
				var err error
				got, err = strconv.ParseFloat(strings.TrimSpace(value), 64)
				must(t, err)
			}
		}
		if int64(got) != want.Unix() {
			t.Errorf("%s is %.0f, want %d", name, got, want.Unix())
		}
	}
	until(t, "the lock to be held again", func() bool { return c.inhibitors() != "" })
	if got := c.delay(); got != shutdownDelay {
		t.Errorf("after the reboot logind delays shutdowns for %s µs, want %s", got, shutdownDelay)
	}
}
