//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// memoryOf is a pod that takes so many MiB, and, when it is told so, more: a few in a second.
func (c *cluster) memoryOf(name, priority string, take, more int) *v1.Pod {
	p := shell(c.helloPod(name), fmt.Sprintf(`exec /usr/bin/perl -e '
$SIG{TERM} = sub { exit 0 };
sub take { my $n = shift; for (1..$n) { push @have, pack("a1048576", $_); select undef, undef, undef, $_[0] if $_[0] } }
take(%d, 0.005);
open my $ready, ">", "/tmp/ready"; close $ready;
sleep 1 until -e "/tmp/go";
take(%d, 0.25);
sleep 1 while 1'`, take, more))
	p.Spec.PriorityClassName = priority
	p.Spec.Containers[0].ReadinessProbe = &v1.Probe{
		ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/usr/bin/test", "-e", "/tmp/ready"}}}, PeriodSeconds: 1,
	}
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: "tmp", MountPath: "/tmp"})
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "tmp", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	return p
}

// Pods that take more memory than all pods together may have end by priority, while the one that
// grows, a Guaranteed pod, and everybody else go on. The Node, its taint and admission say what is
// so, also when the agent is killed in the middle, and it is over after the transition period.
func TestClusterMemoryPressure(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	prefix := c.namespace + "-"
	for name, value := range map[string]int{"low": 10, "middle": 100, "high": 1000} {
		c.kubectl("create", "priorityclass", prefix+name, fmt.Sprint("--value=", value))
		t.Cleanup(func() {
			c.plane.kubectl("admin", "", "delete", "priorityclass", prefix+name, "--ignore-not-found", "--wait=false")
		})
	}
	c.configure(fmt.Sprintf(`systemReserved: {memory: "%d"}
evictionHard: {memory.available: 200Mi}
evictionPressureTransitionPeriod: 20s
`, memoryTotal(t)-1<<30))
	a := c.startMember()
	guaranteed := c.memoryOf("guaranteed", prefix+"low", 150, 0)
	limits := v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("300Mi")}
	guaranteed.Spec.Containers[0].Resources.Limits = limits
	c.create(guaranteed, c.memoryOf("low", prefix+"low", 100, 0), c.memoryOf("middle", prefix+"middle", 200, 0), c.memoryOf("high", prefix+"high", 200, 400))
	ready := c.awaitAPIReady("guaranteed", "low", "middle", "high")

	c.kubectl("exec", "high", "--", "/usr/bin/touch", "/tmp/go")
	until(t, "a pod to be evicted", func() bool { return strings.Contains(a.said(), "a pod is evicted") })
	a.kill()
	a = c.startKubelet()
	evicted := c.awaitAPI("two pods to be evicted", func(p pods) bool { return p.inPhase("low", v1.PodFailed) && p.inPhase("middle", v1.PodFailed) })
	for _, name := range []string{"low", "middle"} {
		s := evicted.named(name).Status
		if s.Reason != "Evicted" || podCondition(evicted.named(name), v1.DisruptionTarget).Reason != v1.PodReasonTerminationByKubelet {
			t.Errorf("%s: %s, conditions %+v", name, s.Reason, s.Conditions)
		}
		wantText(t, "the message of "+name, s.Message, "The node was low on resource: memory. Threshold quantity: 200Mi, available: ",
			"Container main was using ", "request is 0, has larger consumption of memory. Pods by rank: "+c.namespace+"/"+name+" (uses ", "evicted)")
	}
	first, second := podCondition(evicted.named("low"), v1.DisruptionTarget), podCondition(evicted.named("middle"), v1.DisruptionTarget)
	if second.LastTransitionTime.Before(&first.LastTransitionTime) {
		t.Error("the pod of higher priority was evicted first")
	}
	for _, name := range []string{"guaranteed", "high"} {
		is, was := evicted.named(name), ready.named(name)
		if is.Status.Phase != v1.PodRunning || containerID(is, "main") != containerID(was, "main") {
			t.Errorf("%s is %+v", name, is.Status)
		}
	}

	tainted := func() bool {
		n, err := c.client.GetNode(c.ctx, c.name)
		return err == nil && nodeCondition(n, v1.NodeMemoryPressure).Status == v1.ConditionTrue &&
			slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool {
				return t.Key == v1.TaintNodeMemoryPressure && t.Effect == v1.TaintEffectNoSchedule
			})
	}
	until(t, "the Node to be tainted", tainted)
	// The scheduler would not send it.
	late := c.helloPod("late", "sleep")
	late.Spec.NodeSelector, late.Spec.NodeName = nil, c.name
	c.create(late)
	refused := c.awaitAPI("the pod to be refused", func(p pods) bool { return p.inPhase("late", v1.PodFailed) }).named("late")
	if s := refused.Status; s.Reason != "Evicted" || !strings.Contains(s.Message, "The node had condition: [MemoryPressure]. ") {
		t.Errorf("the pod is refused with %s %q", s.Reason, s.Message)
	}
	wantText(t, "events", c.kubectl("get", "events", "-o", "yaml"), "starved_resource: memory", "offending_containers: main")

	c.awaitWithin("the Node to have enough memory", func() bool {
		n, err := c.client.GetNode(c.ctx, c.name)
		return err == nil && nodeCondition(n, v1.NodeMemoryPressure).Status == v1.ConditionFalse && len(n.Spec.Taints) == 0
	})
	c.create(c.helloPod("after", "sleep"))
	now := c.awaitAPIReady("after", "guaranteed", "high")
	for _, name := range []string{"guaranteed", "high"} {
		if container(now.named(name), "main").RestartCount != 0 {
			t.Errorf("%s was restarted", name)
		}
	}
}
