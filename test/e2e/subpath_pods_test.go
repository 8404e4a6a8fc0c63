//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// partsPod mounts parts of volumes, an image and a host's directory that has a filesystem inside,
// and takes a variable from a file.
const partsPod = `apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {page: one}
---
apiVersion: v1
kind: Pod
metadata: {name: parts}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: data, emptyDir: {}}
  - {name: conf, configMap: {name: conf}}
  - {name: image, image: {reference: "berth.local/hello:1", pullPolicy: IfNotPresent}}
  - {name: host, hostPath: {path: %q}}
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["serve"]
    env:
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: TOKEN, valueFrom: {fileKeyRef: {volumeName: data, path: run/vars.env, key: TOKEN}}}
    - {name: NONE, valueFrom: {fileKeyRef: {volumeName: data, path: run/vars.env, key: NONE, optional: true}}}
    volumeMounts:
    - {name: data, mountPath: /logs, subPathExpr: logs/$(NAME)}
    - {name: conf, mountPath: /etc/page, subPath: page}
    - {name: conf, mountPath: /etc/hosts, subPath: page}
    - {name: image, mountPath: /image}
    - {name: host, mountPath: /all, readOnly: true, recursiveReadOnly: Enabled}
    - {name: host, mountPath: /top, readOnly: true}
    - {name: host, mountPath: /follows, mountPropagation: HostToContainer}
`

// mountOptions are the options of the mount at the path, as the process sees it.
func mountOptions(t *testing.T, pid int, path string) string {
	t.Helper()
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	must(t, err)
	options := ""
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) > 5 && f[4] == path {
			options = f[5]
		}
	}
	return options
}

func isReadOnly(options string) bool {
	return strings.HasPrefix(options, "ro,") || options == "ro"
}

func TestSubpathPods(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	host := filepath.Join(n.place.Dir, "host")
	inner := filepath.Join(host, "inner")
	must(t, os.MkdirAll(inner, 0o755))
	// A shared mount, so that what is mounted inside later can be seen to follow.
	must(t, unix.Mount(host, host, "", unix.MS_BIND, ""), unix.Mount("", host, "", unix.MS_SHARED, ""), unix.Mount("tmpfs", inner, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() {
		for _, path := range []string{filepath.Join(host, "later"), inner, host} {
			_ = unix.Unmount(path, unix.MNT_DETACH) // for a test that fails half way
		}
	})
	n.write("parts.yaml", fmt.Sprintf(partsPod, host))
	a := n.start()
	waitsFor := func(message string) *v1.Pod {
		t.Helper()
		return n.await("the container to wait: "+message, func(p pods) bool {
			w := container(p.named("parts"), "main").State.Waiting
			return w != nil && w.Reason == "CreateContainerConfigError" && w.Message == message
		}).named("parts")
	}
	p := waitsFor(`env "TOKEN": file "run/vars.env" of volume "data" not found`)
	data := filepath.Join(n.place.Root, "pods", string(p.UID), "volumes/kubernetes.io~empty-dir/data")
	vars := filepath.Join(data, "run/vars.env")
	must(t, os.Mkdir(filepath.Dir(vars), 0o755), os.WriteFile(vars, []byte("# made by an init container\nTOKEN='open\nsesame'\n"), 0o600))
	p = n.awaitReady("parts").named("parts")

	pid := n.pid(containerID(p, "main"))
	inside := func(path string) string { return fmt.Sprintf("/proc/%d/root%s", pid, path) }
	var environ []byte
	var err error
	until(t, "the container's process to be its program", func() bool { // runc's own process comes first, and says that it runs
		environ, err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		return !strings.Contains(string(environ), "_LIBCONTAINER_")
	})
	if err != nil || !strings.Contains(string(environ), "\x00TOKEN=open\nsesame\x00") || strings.Contains(string(environ), "\x00NONE=") {
		t.Errorf("environment %q, %v; want TOKEN of the file and no NONE", environ, err)
	}
	if inode(t, inside("/logs")) != inode(t, filepath.Join(data, "logs/parts")) {
		t.Error("/logs is not the part of the volume that has the pod's name")
	}
	if st, err := os.Stat(filepath.Join(data, "logs/parts")); err != nil || st.Mode().Perm() != 0o777 {
		t.Errorf("the part of the volume: %v, %v; want the mode of the volume", st, err)
	}
	for _, path := range []string{"/etc/page", "/etc/hosts"} {
		if b, err := os.ReadFile(inside(path)); err != nil || string(b) != "one" {
			t.Errorf("%s shows %q, %v", path, b, err)
		}
	}
	if _, err := os.Stat(inside("/image/hello")); err != nil {
		t.Errorf("the image is not mounted: %v", err)
	}
	for _, path := range []string{"/all", "/all/inner", "/top", "/etc/page", "/image"} {
		if o := mountOptions(t, pid, path); !isReadOnly(o) {
			t.Errorf("%s is mounted with %q, want read-only", path, o)
		}
	}
	for _, path := range []string{"/top/inner", "/logs"} {
		if o := mountOptions(t, pid, path); o == "" || isReadOnly(o) {
			t.Errorf("%s is mounted with %q, want writable", path, o)
		}
	}
	later := filepath.Join(host, "later")
	must(t, os.Mkdir(later, 0o755), unix.Mount("tmpfs", later, "tmpfs", 0, "size=1m"))
	if o := mountOptions(t, pid, "/follows/later"); o == "" {
		t.Error("a new mount of the host does not reach a container with HostToContainer")
	}
	if o := mountOptions(t, pid, "/top/later"); o != "" {
		t.Error("a new mount of the host reaches a container without propagation")
	}

	// A container that makes its part a link to the host is refused its next start, and runs when
	// the link is gone.
	logs := filepath.Join(data, "logs")
	must(t, os.Rename(logs, logs+"-away"), os.Symlink("/etc", logs))
	n.signal(p, "main", unix.SIGKILL) // any other one is lost on a program that has just begun
	waitsFor(`failed to prepare subPath for volumeMount "data" of container "main"`)
	if _, err := os.Lstat("/etc/parts"); err == nil {
		t.Error("a directory was made outside the volume")
	}
	wantText(t, "explain", n.berth("explain", "--all", "parts"), `does not get the subPath "logs/parts" of volume data`)
	must(t, os.Remove(logs))
	p = n.await("the container to run again", func(p pods) bool {
		return p.ready("parts") && container(p.named("parts"), "main").RestartCount == 1
	}).named("parts")
	if entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/logs", n.pid(containerID(p, "main")))); err != nil || len(entries) != 0 {
		t.Errorf("the part that was made anew holds %v, %v", entries, err)
	}

	// What an agent has bound that is dead goes with the pod.
	subpathMounts := func() (found []string) {
		t.Helper()
		all, err := n.place.mounts()
		must(t, err)
		for _, m := range all {
			if strings.Contains(m, "/volume-subpaths/") {
				found = append(found, m)
			}
		}
		return found
	}
	if found := subpathMounts(); len(found) != 3 {
		t.Errorf("mounts of parts: %q, want 3", found)
	}
	gone := n.traces(p)
	a.kill()
	n.remove("parts.yaml")
	n.start()
	n.awaitGone(p.UID)
	until(t, "the pod's folder to go", func() bool { return !exists(t, filepath.Join(n.place.Root, "pods", string(p.UID))) })
	n.wantGone(gone)
	if found := subpathMounts(); len(found) != 0 {
		t.Errorf("left mounts: %q", found)
	}
	if o := mountOptions(t, os.Getpid(), later); o == "" {
		t.Error("the pod's end unmounted a filesystem of the host")
	}
}
