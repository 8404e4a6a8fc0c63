//go:build e2e

package main

import (
	"strconv"
	"strings"

	"berth/test/addons"
)

// metricsServerObjects are those of the metrics server's own documentation, with its image from
// here. The nodes sign the certificates of their kubelets themselves, as kubeadm has it.
var metricsServerObjects = addons.MetricsServerAccount("kube-system") + `---
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec: {selector: {k8s-app: metrics-server}, ports: [{name: https, port: 443, targetPort: https}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: metrics-server, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: metrics-server}}
  strategy: {rollingUpdate: {maxUnavailable: 0}}
  template:
    metadata: {labels: {k8s-app: metrics-server}}
    spec:
      serviceAccountName: metrics-server
      priorityClassName: system-cluster-critical
      nodeSelector: {kubernetes.io/os: linux}
      volumes: [{name: tmp-dir, emptyDir: {}}]
      containers:
      - name: metrics-server
        image: ` + metricsServerImage + `
        args: [--cert-dir=/tmp, --secure-port=10250, "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
          --kubelet-use-node-status-port, --metric-resolution=15s, --kubelet-insecure-tls]
        ports: [{name: https, containerPort: 10250}]
        resources: {requests: {cpu: 100m, memory: 200Mi}}
        livenessProbe: {httpGet: {path: /livez, port: https, scheme: HTTPS}, periodSeconds: 10}
        readinessProbe: {httpGet: {path: /readyz, port: https, scheme: HTTPS}, initialDelaySeconds: 20, periodSeconds: 10}
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          runAsNonRoot: true
          runAsUser: 1000
          capabilities: {drop: [ALL]}
          seccompProfile: {type: RuntimeDefault}
        volumeMounts: [{name: tmp-dir, mountPath: /tmp}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  service: {name: metrics-server, namespace: kube-system}
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
`

// testMetricsServer begins what testAutoscaling uses: figures take half a minute to come.
func (w *world) testMetricsServer() {
	w.apply(metricsServerObjects)
}

// scaler scales the Deployment by what its pods use of the CPU that they ask for, 20m each.
const scaler = `apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 3
  maxReplicas: 5
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 100}}}]
`

// load are clients that ask the Deployment's Service without a pause.
const load = `apiVersion: apps/v1
kind: Deployment
metadata: {name: load}
spec:
  replicas: 4
  selector: {matchLabels: {app: load}}
  template:
    metadata: {labels: {app: load}}
    spec:
      terminationGracePeriodSeconds: 5
      ` + anywhere + `
      containers: [{name: main, image: "` + clientImage + `", args: ["-quiet", "-every", "1us", "http://web"]}]
`

// testAutoscaling: a Deployment gets more pods when the metrics server tells of more load, by what
// the nodes count, and not before.
func (w *world) testAutoscaling() {
	w.kubectl("-n", "kube-system", "rollout", "status", "deployment/metrics-server", "--timeout=120s")
	w.kubectl("wait", "--for=condition=Available", "apiservice/v1beta1.metrics.k8s.io", "--timeout=60s")
	pods := ""
	w.await("kubectl top to tell of three idle pods", func() bool {
		out, err := w.try("", "top", "pods", "-l", "app=web", "--no-headers")
		if err != nil {
			return false // no figures yet
		}
		pods = out
		used := milliCPUs(out)
		return len(used) == 3 && used[0]+used[1]+used[2] < 3*20
	})
	if out := w.kubectl("top", "nodes", "--no-headers"); strings.Count(out, "berth-") != 2 || strings.Contains(out, "unknown") {
		w.t.Errorf("kubectl top nodes says\n%s", out)
	}

	w.apply(scaler)
	field := func(path string) string { return w.kubectl("get", "hpa/web", "-o", "jsonpath={"+path+"}") }
	w.await("the autoscaler to have figures", func() bool { return field(".status.currentMetrics[0].resource.current.averageUtilization") != "" })
	idle := field(".status.currentMetrics[0].resource.current.averageUtilization")
	if got := field(".status.desiredReplicas"); got != "3" {
		w.t.Fatalf("the autoscaler wants %s idle pods at %s%%; kubectl top pods says\n%s", got, idle, pods)
	}
	w.apply(load)
	busy := ""
	w.await("the autoscaler to want more pods", func() bool {
		busy = field(".status.currentMetrics[0].resource.current.averageUtilization")
		more, err := strconv.Atoi(field(".status.desiredReplicas"))
		return err == nil && more > 3
	})
	w.t.Logf("idle pods used %s%% of what they ask for, busy ones %s%%", idle, busy)
	events := w.kubectl("get", "events", "--field-selector", "involvedObject.kind=HorizontalPodAutoscaler,reason=SuccessfulRescale", "-o", "jsonpath={.items[*].message}")
	if !strings.Contains(events, "cpu resource utilization (percentage of request) above target") {
		w.t.Errorf("the autoscaler says %q", events)
	}
	w.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
	if got := len(w.podsOn(w.nodes[0], "app=web")) + len(w.podsOn(w.nodes[1], "app=web")); got < 4 {
		w.t.Errorf("the Deployment has %d pods", got)
	}

	w.kubectl("delete", "hpa/web", "deployment/load")
	w.kubectl("scale", "deployment/web", "--replicas=3")
	if _, err := w.try(metricsServerObjects, "delete", "-f", "-"); err != nil {
		w.t.Error(err)
	}
	w.await("three pods to be left", func() bool {
		return w.kubectl("get", "deployment/web", "-o", "jsonpath={.status.replicas} {.status.readyReplicas}") == "3 3" &&
			len(w.podsOn(w.nodes[0], "app=web"))+len(w.podsOn(w.nodes[1], "app=web")) == 3
	})
}

// milliCPUs are the figures of CPU of kubectl top pods.
func milliCPUs(top string) (used []int) {
	for line := range strings.Lines(top) {
		fields := strings.Fields(line) // NAME CPU(cores) MEMORY(bytes)
		if len(fields) != 3 {
			continue
		}
		if m, err := strconv.Atoi(strings.TrimSuffix(fields[1], "m")); err == nil {
			used = append(used, m)
		}
	}
	return used
}

// closed lets nobody reach the pods of the Deployment, where a network plugin heeds it.
const closed = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
`

// testNetworkPolicy: the bridge of the runtime inside is a network without policies, as
// docs/networking.md says: the API server takes one, and traffic goes on.
func (w *world) testNetworkPolicy() {
	w.apply(closed)
	for _, n := range w.nodes {
		name := "closed-to-" + n.name
		w.apply(clientPod(name, n.name, "-quiet", "-times", "30", "http://web"))
		w.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+name, "--timeout=60s")
		if got := w.kubectl("logs", name); !strings.Contains(got, "asked 30 failed 0") {
			w.t.Errorf("a pod on %s: %s", n.name, got)
		}
		w.kubectl("delete", "pod", name)
	}
	if got := w.kubectl("get", "networkpolicy/closed", "-o", "jsonpath={.spec.policyTypes[0]}"); got != "Ingress" {
		w.t.Errorf("the policy is %q", got)
	}
	w.kubectl("delete", "networkpolicy/closed")
}
