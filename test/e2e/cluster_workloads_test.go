//go:build e2e

package e2e

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A Deployment of the hello image grows from nothing to five pods that answer, and shrinks to
// nothing.
func TestClusterDeployment(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	c.apply(`apiVersion: apps/v1
kind: Deployment
metadata: {name: hello}
spec:
  replicas: 0
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      nodeSelector: {kubernetes.io/hostname: THE_NODE}
      containers: [{name: main, image: "berth.local/hello:1", ports: [{containerPort: 8080}]}]
`)
	c.kubectl("scale", "deployment/hello", "--replicas=5")
	c.kubectl("rollout", "status", "deployment/hello", "--timeout=180s")
	five := c.awaitAPI("five ready pods", func(p pods) bool {
		for _, pod := range p {
			if !isReady(pod) {
				return false
			}
		}
		return len(p) == 5
	})
	var all []traces
	addresses := map[string]bool{}
	for _, p := range five {
		if p.Status.Phase != v1.PodRunning || p.Status.HostIP == "" || p.Status.StartTime == nil || p.Status.QOSClass != v1.PodQOSBestEffort {
			t.Errorf("pod %s is ready with the status %+v", p.Name, p.Status)
		}
		addresses[p.Status.PodIP] = true
		wantText(t, "the pod's answer", answers(t, "http://"+p.Status.PodIP+":8080/"), "Hello from "+p.Name)
		all = append(all, c.clusterTraces(p))
	}
	if len(addresses) != 5 {
		t.Errorf("five pods have the addresses %v", addresses)
	}
	c.kubectl("scale", "deployment/hello", "--replicas=0")
	c.awaitAPI("all pods to go", func(p pods) bool { return len(p) == 0 })
	for _, tr := range all {
		// The API's object goes when the containers have; the rest of a pod may be removed after
		// it.
		until(t, "pod "+tr.pod.Name+" to leave nothing", func() bool { return len(c.left(tr)) == 0 && len(c.sandboxes(tr.pod)) == 0 })
	}
}

// clusterTraces are the pod's traces; links to logs have the kubelet's place, which nodes of this
// host share.
func (c *cluster) clusterTraces(p *v1.Pod) traces {
	c.t.Helper()
	without := p.DeepCopy()
	without.Status.ContainerStatuses = nil
	return c.traces(without)
}

// A Job's pods run to their end: one that succeeds at once, and one whose first pods fail.
func TestClusterJob(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	const job = `apiVersion: batch/v1
kind: Job
metadata: {name: NAME}
spec:
  completions: COUNT
  parallelism: COUNT
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {kubernetes.io/hostname: THE_NODE}
      containers: [{name: main, image: "berth.local/hello:1", args: [exit, "CODE"]}]
---
`
	c.apply(strings.NewReplacer("NAME", "good", "COUNT", "3", "CODE", "0").Replace(job) + strings.NewReplacer("NAME", "bad", "COUNT", "1", "CODE", "4").Replace(job))
	c.kubectl("wait", "job/good", "--for=condition=Complete", "--timeout=180s")
	c.kubectl("wait", "job/bad", "--for=condition=Failed", "--timeout=180s")
	now, _ := c.apiPods()
	good, bad := 0, 0
	for _, p := range now {
		end := container(p, "main").State.Terminated
		switch {
		case end == nil:
			t.Errorf("the container of pod %s is %+v, want ended", p.Name, container(p, "main").State)
		case p.Status.Phase == v1.PodSucceeded && end.ExitCode == 0 && end.Reason == "Completed":
			good++
		case p.Status.Phase == v1.PodFailed && end.ExitCode == 4 && end.Reason == "Error":
			bad++
		default:
			t.Errorf("pod %s is %s and its container ended as %+v", p.Name, p.Status.Phase, end)
		}
	}
	if good != 3 || bad != 1 {
		t.Errorf("%d pods succeeded and %d failed, want 3 and 1", good, bad)
	}
	c.kubectl("delete", "job", "--all")
	c.awaitAPI("the pods of the jobs to go", func(p pods) bool { return len(p) == 0 })
}
