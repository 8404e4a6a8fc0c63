//go:build e2e

package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// What pods are made of. They may be on both nodes.
const (
	helloImage = "berth.local/hello:1" // of the runtime inside
	anywhere   = `tolerations: [{key: node-role.kubernetes.io/control-plane, operator: Exists}]`
	// toolVolumes and toolMounts give a container the programs of the machine.
	toolVolumes = `[{name: usr, hostPath: {path: /usr}}, {name: bin, hostPath: {path: /bin}}, {name: lib, hostPath: {path: /lib}}, {name: lib64, hostPath: {path: /lib64}}]`
	toolMounts  = `[{name: usr, mountPath: /usr, readOnly: true}, {name: bin, mountPath: /bin, readOnly: true}, {name: lib, mountPath: /lib, readOnly: true}, {name: lib64, mountPath: /lib64, readOnly: true}]`
)

// webObjects are three pods behind a Service, on both nodes. Each goes on to answer for a while
// after it was told to end, until every node has heard of it.
const webObjects = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template:
    metadata: {labels: {app: web}}
    spec:
      ` + anywhere + `
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}]
      containers:
      - name: main
        image: ` + helloImage + `
        ports: [{containerPort: 8080}]
        resources: {requests: {cpu: 20m}}
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 3}}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}], ipFamilyPolicy: PreferDualStack}
`

// clientPod is a pod on a node that asks a URL.
func clientPod(name, node string, args ...string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  %s
  restartPolicy: Never
  containers: [{name: main, image: "%s", args: ["%s"]}]
`, name, node, anywhere, clientImage, strings.Join(args, `", "`))
}

var helloFrom = regexp.MustCompile(`Hello from (web-\S+)</h1>`)

// testService: a pod of each node reaches all pods of a Deployment, of both nodes, by the name of
// their Service, and by its address of the other family.
func (w *world) testService() {
	w.apply(webObjects)
	w.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
	var all []string
	for _, n := range w.nodes {
		here := w.podsOn(n, "app=web")
		if len(here) == 0 {
			w.t.Errorf("no pod of the Deployment is on %s", n.name)
		}
		all = append(all, here...)
	}
	slices.Sort(all)
	if len(all) != 3 {
		w.t.Fatalf("the Deployment has the pods %q", all)
	}
	v6 := w.kubectl("get", "service/web", "-o", "jsonpath={.spec.clusterIPs[1]}")
	for _, n := range w.nodes {
		for name, url := range map[string]string{"asks-on-": "http://web.default.svc.cluster.local", "asks-by-ipv6-on-": "http://[" + v6 + "]"} {
			name += n.name
			w.apply(clientPod(name, n.name, "-times", "60", url))
			w.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+name, "--timeout=60s")
			var answered []string
			for _, m := range helloFrom.FindAllStringSubmatch(w.kubectl("logs", name), -1) {
				answered = append(answered, m[1])
			}
			slices.Sort(answered)
			if got := slices.Compact(answered); !slices.Equal(got, all) {
				w.t.Errorf("%s: a pod on %s was answered by %q, the Service has %q", url, n.name, got, all)
			}
		}
	}
}

var asked = regexp.MustCompile(`asked (\d+) failed (\d+)`)

// testRollingUpdate: who asks the Service all the while is always answered.
func (w *world) testRollingUpdate() {
	for _, n := range w.nodes {
		w.apply(clientPod("goes-on-"+n.name, n.name, "-quiet", "http://web"))
	}
	count := func(n *node) (requests int) {
		log := w.kubectl("logs", "goes-on-"+n.name)
		found := asked.FindAllStringSubmatch(log, -1)
		if len(found) == 0 {
			return 0
		}
		last := found[len(found)-1]
		if last[2] != "0" {
			w.t.Errorf("the client on %s: %s", n.name, tail(log, 1000))
		}
		requests, _ = strconv.Atoi(last[1])
		return requests
	}
	for _, n := range w.nodes {
		w.kubectl("wait", "--for=condition=Ready", "pod/goes-on-"+n.name, "--timeout=60s")
		w.await("requests of "+n.name, func() bool { return count(n) > 0 })
	}
	before := slices.Concat(w.podsOn(w.nodes[0], "app=web"), w.podsOn(w.nodes[1], "app=web"))
	w.kubectl("set", "env", "deployment/web", "GENERATION=2")
	w.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
	for _, pod := range before {
		w.kubectl("wait", "--for=delete", "pod/"+pod, "--timeout=60s")
	}
	for _, n := range w.nodes {
		then := count(n)
		w.await("more requests of "+n.name, func() bool { return count(n) > then })
	}
	w.kubectl("delete", "pod", "goes-on-"+w.nodes[0].name, "goes-on-"+w.nodes[1].name)
}

const databaseObjects = `apiVersion: v1
kind: PersistentVolume
metadata: {name: db}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: manual
  hostPath: {path: /srv/db, type: DirectoryOrCreate}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      volumes: ` + toolVolumes + `
      containers:
      - name: main
        image: ` + helloImage + `
        command: [/usr/bin/sh, -c, "echo $HOSTNAME >> /data/starts; exec /usr/bin/sleep 1d"]
        volumeMounts: [{name: data, mountPath: /data}, MOUNTS]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], storageClassName: manual, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 80}]}
`

// testStatefulSet: a pod that is replaced has its name and its data again.
func (w *world) testStatefulSet() {
	w.apply(strings.Replace(databaseObjects, "MOUNTS", strings.Trim(toolMounts, "[]"), 1))
	w.kubectl("rollout", "status", "statefulset/db", "--timeout=60s")
	w.kubectl("delete", "pod", "db-0", "--timeout=60s")
	w.kubectl("rollout", "status", "statefulset/db", "--timeout=60s")
	if got := w.kubectl("exec", "db-0", "--", "/usr/bin/cat", "/data/starts"); got != "db-0\ndb-0\n" {
		w.t.Errorf("the volume has %q", got)
	}
	w.kubectl("delete", "statefulset/db", "pvc/data-db-0", "pv/db")
}

func jobSpec(image string) string {
	return `template: {spec: {restartPolicy: Never, containers: [{name: main, image: "` + image + `", args: ["exit", "0"]}]}}`
}

// testJob: a Job ends when its pods have.
func (w *world) testJob() {
	w.apply(`{apiVersion: batch/v1, kind: Job, metadata: {name: sums}, spec: {completions: 3, parallelism: 2, ` + jobSpec(helloImage) + `}}`)
	w.kubectl("wait", "--for=condition=Complete", "job/sums", "--timeout=60s")
	if got := w.kubectl("get", "job/sums", "-o", "jsonpath={.status.succeeded}"); got != "3" {
		w.t.Errorf("%s pods succeeded", got)
	}
}

// testCronJob begins what testCronJobHasRun waits for, a minute at most.
func (w *world) testCronJob() {
	w.apply(`{apiVersion: batch/v1, kind: CronJob, metadata: {name: tick}, spec: {schedule: "* * * * *", jobTemplate: {spec: {` + jobSpec(helloImage) + `}}}}`)
}

func (w *world) testCronJobHasRun() {
	w.kubectl("wait", "--for=jsonpath={.status.lastSuccessfulTime}", "cronjob/tick", "--timeout=90s")
	w.kubectl("delete", "cronjob/tick")
}

// testDaemonSet: each node has a pod, with what the node is.
func (w *world) testDaemonSet() {
	w.apply(`apiVersion: apps/v1
kind: DaemonSet
metadata: {name: each}
spec:
  selector: {matchLabels: {app: each}}
  template:
    metadata: {labels: {app: each}}
    spec: {` + anywhere + `, containers: [{name: main, image: "` + helloImage + `"}]}
`)
	w.kubectl("rollout", "status", "daemonset/each", "--timeout=60s")
	for _, n := range w.nodes {
		if got := w.podsOn(n, "app=each"); len(got) != 1 {
			w.t.Errorf("node %s has the pods %q", n.name, got)
		}
	}
}

// testDrain: a node that is drained has no pods but those of DaemonSets; afterwards it takes some
// again.
func (w *world) testDrain() {
	worker := w.nodes[1]
	w.kubectl("drain", worker.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
	if got := w.podsOn(worker, "app=web"); len(got) > 0 {
		w.t.Errorf("node %s still has %q", worker.name, got)
	}
	if got := w.podsOn(worker, "app=each"); len(got) != 1 {
		w.t.Errorf("the DaemonSet has %q on node %s", got, worker.name)
	}
	w.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
	w.kubectl("uncordon", worker.name)
	w.kubectl("rollout", "restart", "deployment/web")
	w.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
	if got := w.podsOn(worker, "app=web"); len(got) == 0 {
		w.t.Errorf("node %s takes no pods", worker.name)
	}
}

// testDebug: a container beside those of a pod, which sees what they see; and a pod that has the
// node's network.
func (w *world) testDebug() {
	pod := w.podsOn(w.nodes[1], "app=web")[0]
	w.kubectl("debug", pod, "--image", clientImage, "--container", "look", "--target", "main", "--profile", "general",
		"--", "/client", "-times", "3", "http://127.0.0.1:8080/healthz")
	w.await("the container for debugging to end", func() bool {
		return w.kubectl("get", "pod", pod, "-o", "jsonpath={.status.ephemeralContainerStatuses[0].state.terminated.exitCode}") == "0"
	})
	if got := w.kubectl("logs", pod, "-c", "look"); !strings.Contains(got, "asked 3 failed 0") {
		w.t.Errorf("it says %q", got)
	}
	out := w.kubectl("debug", "node/"+w.nodes[1].name, "--image", clientImage, "--profile", "sysadmin",
		"--", "/client", "-times", "1", "http://127.0.0.1:10248/healthz")
	name := regexp.MustCompile(`node-debugger-[\w-]+`).FindString(out)
	w.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+name, "--timeout=60s")
	if got := w.kubectl("logs", name); !strings.HasPrefix(got, "ok") {
		w.t.Errorf("the node's kubelet says %q", got)
	}
	w.kubectl("delete", "pod", name)
}

// testCopy: files go into a container and come back.
func (w *world) testCopy() {
	w.apply(`apiVersion: v1
kind: Pod
metadata: {name: tools}
spec:
  terminationGracePeriodSeconds: 1
  volumes: ` + toolVolumes + `
  containers: [{name: main, image: "` + helloImage + `", args: ["sleep"], env: [{name: PATH, value: /usr/bin}], volumeMounts: ` + toolMounts + `}]
`)
	w.kubectl("wait", "--for=condition=Ready", "pod/tools", "--timeout=60s")
	dir := w.t.TempDir()
	if err := os.WriteFile(dir+"/in", []byte("as it was\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.kubectl("cp", dir+"/in", "tools:/there")
	w.kubectl("cp", "tools:/there", dir+"/out")
	if got, err := os.ReadFile(dir + "/out"); err != nil || string(got) != "as it was\n" {
		w.t.Errorf("%q, %v", got, err)
	}
	w.kubectl("delete", "pod", "tools")
}
