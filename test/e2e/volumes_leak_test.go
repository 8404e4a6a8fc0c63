//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

const shownObjects = `apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {a: "1", b: "2"}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {key: hush}
`

// volumesPod is a pod with five kinds of volumes, and with those of more besides.
func volumesPod(name, volumes, mounts string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: disk, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: conf, configMap: {name: conf}}
  - {name: keys, secret: {secretName: keys}}
  - name: all
    projected:
      sources:
      - configMap: {name: conf}
      - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
%s  containers:
  - name: main
    image: berth.local/hello:1
    args: ["serve"]
    volumeMounts:
    - {name: disk, mountPath: /disk}
    - {name: memory, mountPath: /memory}
    - {name: conf, mountPath: /conf}
    - {name: keys, mountPath: /keys}
    - {name: all, mountPath: /all}
%s`, name, volumes, mounts)
}

// Pods with five volumes each come and go, and leave no mount, no folder, no goroutine and no open
// file. TEST_VOLUME_PODS says how many there are.
func TestVolumesLeaveNothing(t *testing.T) {
	t.Parallel()
	many, wave := 20, 10 // as many come, or go, at one time
	if text := os.Getenv("TEST_VOLUME_PODS"); text != "" {
		var err error
		if many, err = strconv.Atoi(text); err != nil {
			t.Fatalf("TEST_VOLUME_PODS: %v", err)
		}
	}
	n := newNode(t)
	n.write("objects.yaml", shownObjects)
	a := n.start()
	round := func(from, pods int) {
		t.Helper()
		var names []string
		for i := range pods {
			names = append(names, fmt.Sprintf("p%d", from+i))
			n.write(names[i]+".yaml", volumesPod(names[i], "", ""))
		}
		running := n.awaitReady(names...)
		if m, err := n.place.mounts(); err != nil || len(m) < 3*pods {
			t.Errorf("%d pods have %d mounts, %v", pods, len(m), err)
		}
		for _, name := range names {
			n.remove(name + ".yaml")
		}
		for _, p := range running {
			n.awaitGone(p.UID)
		}
	}
	folders := filepath.Join(n.place.Root, "pods")
	clean := func() {
		t.Helper()
		until(t, "no folder of a pod to be left", func() bool {
			left, err := os.ReadDir(folders)
			return err == nil && len(left) == 0
		})
	}
	round(0, wave) // what the first of all costs is no leak
	clean()
	before := n.holding(a.cmd.Process.Pid)
	began := time.Now()
	for done := 0; done < many; done += wave {
		round(wave+done, min(wave, many-done))
	}
	clean()
	mounts, err := n.place.mounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if strings.Contains(m, folders) {
			t.Errorf("%s is left", m)
		}
	}
	const spare = 5 // what a moment of the agent's own work may hold
	var after held
	until(t, "the agent to hold no more than before", func() bool {
		after = n.holding(a.cmd.Process.Pid)
		return after.goroutines <= before.goroutines+spare && after.files <= before.files+spare
	})
	t.Logf("%d pods in %v; before %+v, after %+v", many, time.Since(began).Round(time.Second), before, after)
}

// An agent that is killed at any step of a pod with volumes of each kind leaves nothing that the
// next one does not find, finish or clean up; what is not its own stays.
func TestVolumesAgentKilledAtEachStep(t *testing.T) {
	t.Parallel()
	for _, at := range []moment{duringCall, afterCall} {
		t.Run(string(at), func(t *testing.T) {
			n, x := newTappedNode(t)
			disk, data := n.newDisk(""), filepath.Join(n.place.Dir, "data")
			n.write("objects.yaml", shownObjects)
			n.write("volume.yaml", persistent("formatted", "local: {path: "+disk+"}"))
			a := n.start()
			for nth, all := 1, false; !all; nth++ {
				name := fmt.Sprintf("pod%d", nth)
				x.arm(strike{agent: a, nth: nth, moment: at})
				n.write("pod.yaml", volumesPod(name, "  - {name: host, hostPath: {path: "+data+", type: DirectoryOrCreate}}\n"+
					"  - {name: claim, persistentVolumeClaim: {claimName: formatted}}\n  - {name: image, image: {reference: \"berth.local/hello:1\", pullPolicy: IfNotPresent}}\n",
					"    - {name: image, mountPath: /image}\n    - {name: host, mountPath: /host}\n    - {name: claim, mountPath: /claim}\n    - {name: disk, mountPath: /part, subPath: a/b}\n"))
				starting := n.awaitOrKilled(&a, x, func(p pods) bool { return p.ready(name) })
				p := n.awaitReady(name).named(name)
				n.wantVolumes(p, starting)
				inside := fmt.Sprintf("/proc/%d/root", n.pid(containerID(p, "main")))
				for _, file := range []string{"/host/kept", "/claim/kept"} {
					must(t, os.WriteFile(inside+file, []byte(name), 0o600))
				}

				x.arm(strike{agent: a, nth: nth, moment: at})
				n.remove("pod.yaml")
				ending := n.awaitOrKilled(&a, x, func(p pods) bool { return len(p) == 0 })
				n.wantNothingOf(p, ending)
				if got := readText(t, filepath.Join(data, "kept")); got != name {
					t.Errorf("killed %s: the host's file is %q", ending, got)
				}
				t.Logf("killed %q and %q", starting, ending)
				all = starting == "" && ending == ""
			}
		})
	}
}

// wantVolumes checks what the container of a volumesPod sees.
func (n *node) wantVolumes(p *v1.Pod, where string) {
	n.t.Helper()
	inside := fmt.Sprintf("/proc/%d/root", n.pid(containerID(p, "main")))
	for file, want := range map[string]string{"/conf/a": "1", "/keys/key": "hush", "/all/b": "2", "/all/name": p.Name} {
		if got, err := os.ReadFile(inside + file); err != nil || string(got) != want {
			n.t.Errorf("the agent was killed %s: %s is %q, %v", where, file, got, err)
		}
	}
	mounts := readText(n.t, fmt.Sprintf("/proc/%d/mountinfo", n.pid(containerID(p, "main"))))
	for _, point := range []string{"/disk", "/memory", "/host", "/claim", "/part", "/image"} {
		if strings.Count(mounts, " "+point+" ") != 1 {
			n.t.Errorf("the agent was killed %s: %s is mounted %d times", where, point, strings.Count(mounts, " "+point+" "))
		}
	}
}
