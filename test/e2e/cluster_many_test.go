//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/internal/cluster/kube"
)

// manyPods is how many pods a node has that is full for a test: BERTH_MANY_PODS, or as many as a
// small machine starts in reasonable time.
func manyPods(t *testing.T) int {
	t.Helper()
	text := os.Getenv("BERTH_MANY_PODS")
	if text == "" {
		return 30
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("BERTH_MANY_PODS: %v", err)
	}
	return n
}

// transitions are what a watcher of the API server sees of pods: each change of readiness, restart
// count or container.
type transitions struct {
	mu   sync.Mutex
	last map[string]string
	seen []string // guarded by mu
}

// followTransitions watches the namespace's pods beside the test, until its end.
func (c *cluster) followTransitions() *transitions {
	c.t.Helper()
	tr := &transitions{last: map[string]string{}}
	synced := make(chan struct{}, 1)
	var watch *kube.Watch[*v1.Pod]
	watch = kube.NewWatch[*v1.Pod](c.client, kube.Selector{Namespace: c.namespace}, func() {
		all, _ := watch.List()
		tr.mu.Lock()
		for _, p := range all {
			now := fmt.Sprintf("%s %s deleted: %v", p.UID, p.Status.Phase, p.DeletionTimestamp != nil)
			for _, condition := range p.Status.Conditions {
				now += fmt.Sprintf(" %s: %s since %s", condition.Type, condition.Status, condition.LastTransitionTime.UTC())
			}
			for _, s := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
				now += fmt.Sprintf(" %s: %s ready: %v restarts: %d", s.Name, s.ContainerID, s.Ready, s.RestartCount)
			}
			if old := tr.last[p.Name]; old != "" && old != now {
				tr.seen = append(tr.seen, p.Name+":\n"+cmp.Diff(old, now))
			}
			tr.last[p.Name] = now
		}
		tr.mu.Unlock()
		select {
		case synced <- struct{}{}:
		default:
		}
	})
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = watch.Run(ctx) // ends with ctx only
	}()
	c.t.Cleanup(func() { cancel(); <-ended })
	select {
	case <-synced:
	case <-c.ctx.Done():
		c.t.Fatal(context.Cause(c.ctx))
	}
	return tr
}

func (tr *transitions) list() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.seen
}

// An agent that is killed and started again on a full node is seen by nobody: no pod changes its
// readiness, no container is restarted.
func TestClusterRestartUnderManyReadyPods(t *testing.T) {
	c := newCluster(t)
	a := c.startMember()
	n := manyPods(t)
	began := time.Now()
	var names []string
	always := v1.ContainerRestartPolicyAlways
	for i := range n {
		p := c.helloPod(fmt.Sprintf("web-%03d", i), "serve")
		probe := &v1.Probe{
			ProbeHandler:  v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)}},
			PeriodSeconds: 2, TimeoutSeconds: 10,
		}
		switch main := &p.Spec.Containers[0]; i % 3 {
		case 0:
			main.ReadinessProbe = probe
		case 1:
			main.ReadinessProbe, main.LivenessProbe, main.StartupProbe = probe.DeepCopy(), probe.DeepCopy(), probe.DeepCopy()
			main.ReadinessProbe.SuccessThreshold = 3
			main.StartupProbe.FailureThreshold = 30
		case 2:
			p.Spec.InitContainers = []v1.Container{{Name: "side", Image: helloImage, Args: []string{"sleep"}, RestartPolicy: &always}}
		}
		c.create(p)
		names = append(names, p.Name)
		if len(names)%15 == 0 {
			c.awaitAPIReady(names...)
		}
	}
	before := c.awaitAPIReady(names...)
	t.Logf("%d pods ready after %s", n, time.Since(began).Round(time.Second))
	bodies := c.bodies(before)
	tr := c.followTransitions()

	// Verdicts of probes are on disk within a second (ADR 7); of those that are younger the next
	// agent knows nothing.
	c.stays("nothing changes before", 2*time.Second, func() bool { return len(tr.list()) == 0 })
	for range 2 {
		a.kill()
		a = c.startMember()
		c.awaitReady(names...) // the agent's own view
		c.stays("nothing changes", 8*time.Second, func() bool { return len(tr.list()) == 0 })
	}
	if seen := tr.list(); len(seen) > 0 {
		t.Errorf("a watcher saw %d changes, the first: %s", len(seen), seen[0])
	}
	now, _ := c.apiPods()
	if diff := cmp.Diff(bodies, c.bodies(now)); diff != "" {
		t.Errorf("processes changed with the agent (-before +after):\n%s", diff)
	}
}
