//go:build e2e

package e2e

import (
	"fmt"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// condition returns how a condition of the node stands.
func (n *node) condition(kind v1.NodeConditionType) v1.ConditionStatus {
	n.t.Helper()
	return nodeCondition(n.self(), kind).Status
}

// killAtEviction ends the agent with SIGKILL as soon as it evicts a pod, and starts the next one.
func (n *node) killAtEviction(a *agent, start func() *agent) *agent {
	n.t.Helper()
	until(n.t, "a pod to be evicted", func() bool { return strings.Contains(a.said(), "a pod is evicted") })
	a.kill()
	return start()
}

// awaitEvicted waits until the pod is evicted with the message, which is told everywhere.
func (n *node) awaitEvicted(name string, message ...string) *v1.Pod {
	n.t.Helper()
	p := n.await(name+" to be evicted", func(p pods) bool { return p.inPhase(name, v1.PodFailed) }).named(name)
	if p.Status.Reason != "Evicted" {
		n.t.Errorf("%s has failed with the reason %q", name, p.Status.Reason)
	}
	wantText(n.t, "the message of "+name, p.Status.Message, message...)
	if c := podCondition(p, v1.DisruptionTarget); c.Status != v1.ConditionTrue || c.Reason != v1.PodReasonTerminationByKubelet {
		n.t.Errorf("%s: DisruptionTarget is %+v", name, c)
	}
	said := strings.Join(strings.Fields(n.berth("explain", "--all", name)), " ") // lines end where they are full
	wantText(n.t, "explain", said, "Evicted", "Pods by rank: default/"+name+" (", ", evicted)")
	return p
}

// A disk that runs full of what a pod writes has that pod evicted, whatever it writes to, and no
// other; the agent is killed in the middle of each eviction. Then the node has enough again.
func TestDiskPressure(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.newRootDisk(448)
	n.flags = append(n.flags, "--pod-logs-dir", n.place.Root+"/logs", "--container-log-max-size", "1Gi",
		"--eviction-hard", "nodefs.available<150Mi,imagefs.available<0%,nodefs.inodesFree<0%,imagefs.inodesFree<0%", "--eviction-pressure-transition-period", "4s")
	withData := func(p *v1.Pod) *v1.Pod { return withLimitedVolume(p, "2Gi") }
	n.put(withData(n.act("calm", v1.RestartPolicyAlways, nil, actor("main", "head -c 3000000 /dev/zero > /data/some; stay"))))
	start := func() *agent { return n.start() }
	a := start()
	calm := n.awaitReady("calm").named("calm")
	// Some 30 MB in a second, until it is asked to end.
	const slowly = `trap "exit 0" TERM; say began; while :; do head -c 4000000 /dev/urandom; sleep 0.1; done `
	for _, writer := range []*v1.Pod{
		n.act("layer", v1.RestartPolicyAlways, nil, actor("main", slowly+"> /big")),
		withData(n.act("volume", v1.RestartPolicyAlways, nil, actor("main", slowly+"> /data/big"))),
		n.act("logs", v1.RestartPolicyAlways, nil, actor("main", slowly+"| /usr/bin/base64")),
	} {
		n.put(writer)
		n.awaitStory(writer.Name, "main began")
		a = n.killAtEviction(a, start)
		p := n.awaitEvicted(writer.Name, "The node was low on resource: ephemeral-storage. Threshold quantity: 150Mi, available: ")
		until(t, "the node to have enough again", func() bool { return n.condition(v1.NodeDiskPressure) == v1.ConditionFalse })
		until(t, "nothing of "+writer.Name+" to run", func() bool {
			sandboxes, containers := n.running(p)
			return sandboxes+containers == 0
		})
		wantText(t, "berth check", n.command(n.ctx, "check").out, "nodefs.available<150Mi", "left")
		n.remove(writer.Name + ".yaml")
		n.awaitGone(p.UID)
	}
	if now := n.awaitReady("calm").named("calm"); containerID(now, "main") != containerID(calm, "main") {
		t.Errorf("the pod that writes little is %+v", now.Status)
	}
	n.awaitEvents("", "EvictionThresholdMet", "Attempting to reclaim ephemeral-storage")
}

// A pod that fills the disk faster than anybody looks is evicted from the full disk, on which
// neither the agent nor the runtime can write, and the node has enough again.
func TestFullDiskPressure(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.newRootDisk(448)
	n.flags = append(n.flags, "--pod-logs-dir", n.place.Root+"/logs", "--container-log-max-size", "1Gi",
		"--eviction-hard", "nodefs.available<50Mi,imagefs.available<0%,nodefs.inodesFree<0%,imagefs.inodesFree<0%", "--eviction-pressure-transition-period", "4s")
	n.put(n.act("calm", v1.RestartPolicyAlways, nil, actor("main", "stay")))
	n.start()
	calm := n.awaitReady("calm").named("calm")
	// The file system gives a large file more than it needs: small ones take the rest.
	fill := func(dir string) string {
		return `trap "exit 0" TERM; say began; cat /dev/zero > ` + dir + `/big; i=0; while :; do i=$((i+1)); echo more > ` + dir + `/$i || sleep 0.1; done`
	}
	for _, writer := range []*v1.Pod{
		n.act("layer", v1.RestartPolicyAlways, nil, actor("main", fill(""))),
		withLimitedVolume(n.act("volume", v1.RestartPolicyAlways, nil, actor("main", fill("/data"))), "2Gi"),
		n.act("logs", v1.RestartPolicyAlways, nil, actor("main", `trap "exit 0" TERM; say began; while :; do head -c 400000000 /dev/zero | /usr/bin/base64; done`)),
	} {
		n.put(writer)
		p := n.awaitEvicted(writer.Name, "The node was low on resource: ephemeral-storage. Threshold quantity: 50Mi, available: ")
		until(t, "the node to have enough again", func() bool { return n.condition(v1.NodeDiskPressure) == v1.ConditionFalse })
		until(t, "nothing of "+writer.Name+" to run", func() bool {
			sandboxes, containers := n.running(p)
			return sandboxes+containers == 0
		})
		n.remove(writer.Name + ".yaml")
		n.awaitGone(p.UID)
	}
	if now := n.awaitReady("calm").named("calm"); containerID(now, "main") != containerID(calm, "main") {
		t.Errorf("the pod that writes nothing is %+v", now.Status)
	}
}

// A disk without inodes has the pod evicted that has taken them.
func TestInodePressure(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.newRootDisk(512, "-N", "20000")
	n.flags = append(n.flags, "--eviction-hard", "nodefs.inodesFree<3000,imagefs.inodesFree<0%,nodefs.available<0%,imagefs.available<0%", "--eviction-pressure-transition-period", "4s")
	n.put(n.act("calm", v1.RestartPolicyAlways, nil, actor("main", "stay")))
	n.put(withLimitedVolume(n.act("many", v1.RestartPolicyAlways, nil,
		actor("main", `trap "exit 0" TERM; say began; i=0; while :; do i=$((i+1)); : > /data/$i; done`)), "2Gi"))
	a := n.start()
	n.killAtEviction(a, func() *agent { return n.start() })
	n.awaitEvicted("many", "The node was low on resource: inodes. Threshold quantity: 3k, available: ")
	until(t, "the node to have enough again", func() bool { return n.condition(v1.NodeDiskPressure) == v1.ConditionFalse })
	n.awaitReady("calm")
}

// A disk that runs full of images loses those that no pod uses, and no pod.
func TestImagePressure(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.newRootDisk(768)
	r := newRegistry(t, httptest.NewTLSServer)
	a := n.startKubelet(`imageMinimumGCAge: 1s
evictionHard: {imagefs.available: 250Mi}
evictionPressureTransitionPeriod: 4s
`)
	r.trust(n)
	n.write("calm.yaml", manifest("calm", "serve"))
	calm := n.awaitReady("calm-n1").named("calm-n1")
	var names []string
	for i := range 4 {
		name, _ := r.pushLarge(n, fmt.Sprint("large", i), 100<<20)
		names = append(names, name)
		n.command(n.ctx, "image", "pull", name) // which may find no room
	}
	until(t, "unused images to be removed", func() bool { return strings.Contains(n.events(""), "ImagesRemoved") })
	until(t, "the node to have enough again", func() bool { return n.condition(v1.NodeDiskPressure) == v1.ConditionFalse })
	left := 0
	for _, name := range names {
		if strings.Contains(n.berth("image", "ls"), name) {
			left++
		}
	}
	if left == len(names) {
		t.Errorf("all images are there: %v", names)
	}
	if now := n.awaitReady("calm-n1").named("calm-n1"); containerID(now, "main") != containerID(calm, "main") {
		t.Errorf("the pod is %+v", now.Status)
	}
	if strings.Contains(a.said(), "a pod is evicted") {
		t.Error("a pod was evicted")
	}
}

// A machine that runs out of tasks loses the pod that has most.
func TestPIDPressure(t *testing.T) {
	n := newNode(t)
	threshold := tasksLeft(t) - 700
	n.put(n.act("calm", v1.RestartPolicyAlways, nil, actor("main", "stay")))
	n.put(n.act("bomb", v1.RestartPolicyAlways, nil, actor("main", `
until test -e /shared/go; do sleep 0.1; done
exec perl -e '$SIG{TERM} = sub { exit 0 }; for (1..1500) { if (fork() == 0) { $SIG{TERM} = "DEFAULT"; sleep 600; exit 0 } } sleep 1 while 1'`)))
	start := func() *agent {
		return n.start("--eviction-hard", "pid.available<"+strconv.Itoa(threshold), "--eviction-pressure-transition-period", "4s")
	}
	a := start()
	n.awaitReady("calm", "bomb")
	if got := n.condition(v1.NodePIDPressure); got != v1.ConditionFalse {
		t.Fatalf("PIDPressure is %s before the bomb", got)
	}
	n.mark("bomb", "go")
	n.killAtEviction(a, start)
	n.awaitEvicted("bomb", "The node was low on resource: pids. Threshold quantity: ", "Pods by rank: default/bomb (tasks ")
	until(t, "the node to have enough again", func() bool { return n.condition(v1.NodePIDPressure) == v1.ConditionFalse })
	n.awaitReady("calm")
}

// tasksLeft is how many tasks this machine can still have.
func tasksLeft(t *testing.T) int {
	t.Helper()
	number := func(name string) int {
		b, err := os.ReadFile("/proc/sys/kernel/" + name)
		must(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		must(t, err)
		return n
	}
	b, err := os.ReadFile("/proc/loadavg")
	must(t, err)
	_, all, _ := strings.Cut(strings.Fields(string(b))[3], "/")
	now, err := strconv.Atoi(all)
	must(t, err)
	return min(number("pid_max"), number("threads-max")) - now
}
