//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// podTemplate is that of a workload whose pods have the label app: NAME and serve.
const podTemplate = `
    metadata: {labels: {app: NAME}}
    spec:
      nodeSelector: {kubernetes.io/hostname: THE_NODE}
      terminationGracePeriodSeconds: 5
      containers: [{name: main, image: "berth.local/hello:1", args: [serve]}]
`

func (c *cluster) workload(kind, name, spec string) {
	c.t.Helper()
	c.apply("apiVersion: apps/v1\nkind: " + kind + "\nmetadata: {name: " + name + "}\nspec:\n  selector: {matchLabels: {app: " + name + "}}\n" + spec +
		"  template:" + strings.ReplaceAll(podTemplate, "NAME", name))
}

// of are the pods of a workload.
func (p pods) of(app string) pods {
	return slices.DeleteFunc(slices.Clone(p), func(pod *v1.Pod) bool { return pod.Labels["app"] != app })
}

// ofJob are the pods of Jobs whose names begin so.
func (p pods) ofJob(prefix string) pods {
	return slices.DeleteFunc(slices.Clone(p), func(pod *v1.Pod) bool { return !strings.HasPrefix(pod.Labels["batch.kubernetes.io/job-name"], prefix) })
}

// jobsManifest is a CronJob that strikes every minute, and a Job that goes soon after it has ended.
const jobsManifest = `apiVersion: batch/v1
kind: CronJob
metadata: {name: clock}
spec:
  schedule: "* * * * *"
  concurrencyPolicy: Forbid
  jobTemplate:
    spec: {template: {spec: {restartPolicy: Never, nodeSelector: {kubernetes.io/hostname: THE_NODE}, containers: [{name: main, image: "berth.local/hello:1", args: [exit, "0"]}]}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: brief}
spec:
  ttlSecondsAfterFinished: 1
  template: {spec: {restartPolicy: Never, nodeSelector: {kubernetes.io/hostname: THE_NODE}, containers: [{name: main, image: "berth.local/hello:1", args: [exit, "0"]}]}}
`

func (p pods) allReady() bool {
	return !slices.ContainsFunc(p, func(pod *v1.Pod) bool { return !isReady(pod) })
}

// Everything that makes pods in a cluster has its pods here: many at once, in order, on each node,
// by the clock, in place of others; and a node can be drained.
func TestClusterControllers(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	c.apply(jobsManifest) // whose time comes beside all the rest

	c.workload("Deployment", "many", "  replicas: 0\n")
	c.kubectl("scale", "deployment/many", "--replicas=20")
	twenty := c.awaitAPI("twenty ready pods", func(p pods) bool { return len(p.of("many")) == 20 && p.of("many").allReady() }).of("many")
	var all []traces
	for _, p := range twenty {
		all = append(all, c.clusterTraces(p))
	}
	c.kubectl("scale", "deployment/many", "--replicas=0")
	c.awaitAPI("all of them to go", func(p pods) bool { return len(p.of("many")) == 0 })
	for _, tr := range all {
		until(t, "pod "+tr.pod.Name+" to leave nothing", func() bool { return len(c.left(tr)) == 0 && len(c.sandboxes(tr.pod)) == 0 })
	}

	c.workload("Deployment", "rolling", "  replicas: 3\n")
	c.workload("StatefulSet", "ordered", "  replicas: 2\n  serviceName: ordered\n")
	c.workload("DaemonSet", "each", "")
	c.kubectl("create", "job", "--from=cronjob/clock", "now") // as the clock does
	c.kubectl("wait", "job/now", "--for=condition=Complete", "--timeout=180s")
	before := c.awaitAPI("the workloads to be ready", func(p pods) bool {
		return len(p.of("rolling")) == 3 && p.of("rolling").allReady() && p.ready("ordered-0", "ordered-1") && len(p.of("each")) == 1 && p.of("each").allReady()
	})

	c.kubectl("set", "env", "deployment/rolling", "statefulset/ordered", "daemonset/each", "ROUND=2")
	for _, w := range []string{"deployment/rolling", "statefulset/ordered", "daemonset/each"} {
		c.kubectl("rollout", "status", w, "--timeout=180s")
	}
	after := c.awaitAPI("only the new pods to be there", func(p pods) bool {
		for _, pod := range slices.Concat(p.of("rolling"), p.of("ordered"), p.of("each")) {
			if before.has(pod.UID) || !isReady(pod) {
				return false
			}
		}
		return len(p.of("rolling")) == 3 && len(p.of("ordered")) == 2 && len(p.of("each")) == 1
	})
	for _, p := range after.of("rolling") {
		wantText(t, "the pod's answer", answers(t, "http://"+p.Status.PodIP+":8080/"), "Hello from "+p.Name)
	}

	c.kubectl("wait", "job/brief", "--for=delete", "--timeout=120s")
	c.awaitWithin("the clock to strike", func() bool {
		now, _ := c.apiPods()
		struck := now.ofJob("clock-")
		return len(now.ofJob("brief")) == 0 && len(struck) > 0 && struck[0].Status.Phase == v1.PodSucceeded
	})
	c.kubectl("delete", "cronjob/clock") // and with it its Jobs and their pods
	c.awaitAPI("the pods of Jobs to go", func(p pods) bool { return len(p.ofJob("clock-"))+len(p.ofJob("now")) == 0 })
	// What a drain leaves is the DaemonSet's, which tolerates it; the others wait for a node.
	c.kubectl("drain", c.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s")
	c.awaitAPI("the pods of the drained node to wait for another", func(p pods) bool {
		here := slices.DeleteFunc(slices.Clone(p), func(pod *v1.Pod) bool { return pod.Spec.NodeName != c.name || pod.Status.Phase != v1.PodRunning })
		return len(here) == 1 && here[0].Labels["app"] == "each" && isReady(here[0])
	})
	c.kubectl("uncordon", c.name)
	c.awaitAPI("them to come back", func(p pods) bool {
		return len(p.of("rolling")) == 3 && p.of("rolling").allReady() && p.ready("ordered-0", "ordered-1")
	})
}
