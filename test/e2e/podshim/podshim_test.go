//go:build e2e && podshim

package podshim

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podshimOf is the pid of a pod's podshim.
func (r *rig) podshimOf(pod string) int {
	r.Helper()
	b, err := os.ReadFile(r.path("state", "keepers", pod, "pod.json"))
	r.must(err)
	var record struct{ Pid int }
	r.must(json.Unmarshal(b, &record))
	return record.Pid
}

// A pod shim is killed: its pod has ended, and no other.
func TestPodshimIsKilled(t *testing.T) {
	r := newRig(t)
	for _, away := range []bool{false, true} {
		first, c1 := r.runs(fmt.Sprintf("killed-%t", away), "sleep")
		second, c2 := r.runs(fmt.Sprintf("other-%t", away), "sleep")
		if away {
			r.kill()
		}
		r.must(syscall.Kill(r.podshimOf(first), syscall.SIGKILL))
		if away {
			r.start()
		}
		if s := r.exits(c1); s.ExitCode != 137 {
			t.Errorf("away %t: the container of the pod shim: %v, want exit code 137", away, s)
		}
		eventually(r, "the pod is not ready", func() error {
			if s := r.podStatus(first); s.State != cri.PodSandboxState_SANDBOX_NOTREADY {
				return fmt.Errorf("it is %s", s.State)
			}
			return nil
		})
		if s, p := r.status(c2), r.podStatus(second); s.State != cri.ContainerState_CONTAINER_RUNNING || p.State != cri.PodSandboxState_SANDBOX_READY {
			t.Errorf("away %t: the other pod: %v %v, want it to run", away, s.State, p.State)
		}
		r.must(r.remove(first))
		r.must(r.remove(second))
		r.wantNothingLeft()
	}
}

// After a restart, a pod of before takes containers, its own are stopped and removed, its files are
// there, and the time it was made is told by its status, if not by the list.
func TestAPodOfBeforeTheRestart(t *testing.T) {
	r := newRig(t)
	pod, old := r.runs("before", "write")
	made := r.podStatus(pod).CreatedAt
	r.kill()
	r.start()
	if s := r.podStatus(pod); s.CreatedAt != made || s.State != cri.PodSandboxState_SANDBOX_READY {
		t.Errorf("the pod after the restart: %v, want it ready and made at %d", s, made)
	}
	p := &place{rig: r, handler: "podshim", name: "before", pod: pod, sandbox: podConfig(r, "before")}
	f, err := p.look("later", row{change: nothing})
	r.must(err)
	if f["file /etc/hostname"] != "NAME" || f["mount /etc/hosts"] == "" || f["make a folder in /dev/shm"] != "" {
		t.Errorf("a container that was made after the restart: %q", f)
	}
	ctx, cancel := r.within()
	defer cancel()
	_, err = r.rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: old, Timeout: 0})
	r.must(err)
	if s := r.exits(old); s.ExitCode != 137 {
		t.Errorf("the container of before: %v, want exit code 137", s)
	}
	_, err = r.rt.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: old})
	r.must(err)
	r.lines(r.logFile("before", "c"))
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// Logs that are rotated while they are written lose no line, told of it or not.
func TestRotatedLogs(t *testing.T) {
	r := newRig(t)
	pod, id := r.runs("rotated", "write")
	file := r.logFile("rotated", "c")
	var all []byte
	for i := range 10 {
		eventually(r, "the log is written", func() error {
			if b, err := os.ReadFile(file); err != nil || len(b) < 2000 {
				return fmt.Errorf("%d bytes, %v", len(b), err)
			}
			return nil
		})
		r.must(os.Rename(file, fmt.Sprintf("%s.%d", file, i)))
		if i%2 == 0 {
			ctx, cancel := r.within()
			_, err := r.rt.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: id})
			cancel()
			r.must(err)
		}
	}
	ctx, cancel := r.within()
	defer cancel()
	_, err := r.rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: 0})
	r.must(err)
	for i := range 11 {
		name := fmt.Sprintf("%s.%d", file, i)
		if i == 10 {
			name = file
		}
		b, err := os.ReadFile(name)
		if i < 10 || !os.IsNotExist(err) {
			r.must(err)
		}
		all = append(all, b...)
	}
	r.must(os.WriteFile(file+".all", all, 0o600))
	if n := r.lines(file + ".all"); n < 100 {
		t.Errorf("%d lines in all", n)
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// What is not as this containerd knows it is told by its name, and nothing is done to a pod that
// runs.
func TestTheStartIsRefused(t *testing.T) {
	r := newRig(t)
	pod, id := r.runs("kept", "sleep")
	file := r.path("state", "keepers", pod, "pod.json")
	good, err := os.ReadFile(file)
	r.must(err)

	first, firstEnded := r.cmd, r.ended
	r.wantRefused("keepers/lock", "another containerd")
	r.cmd, r.ended = first, firstEnded
	if s := r.status(id); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container, beside a second containerd: %v", s)
	}
	r.kill()
	r.must(os.WriteFile(file, []byte(strings.Replace(string(good), `"Version":1`, `"Version":7`, 1)), 0o600))
	r.wantRefused(file, "version 7", "version 1")
	r.must(os.WriteFile(file, good, 0o600))
	r.start()
	if s := r.status(id); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container, when its file is there again: %v", s)
	}
	r.wantModes(pod)
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// A pod whose file is damaged is ended at containerd's start, which goes on, as do other pods.
func TestDamagedPodIsEnded(t *testing.T) {
	r := newRig(t)
	damaged, gone := r.runs("damaged", "sleep")
	other, stays := r.runs("other", "sleep")
	r.kill()
	file := r.path("state", "keepers", damaged, "pod.json")
	good, err := os.ReadFile(file)
	r.must(err)
	r.must(os.WriteFile(file, good[:10], 0o600))
	r.start()
	log, err := os.ReadFile(r.path("log"))
	r.must(err)
	if !strings.Contains(string(log), "pod "+damaged+" is ended") || !strings.Contains(string(log), file) {
		t.Error("the log does not say that the pod is ended")
	}
	if s := r.status(gone); s.State != cri.ContainerState_CONTAINER_EXITED {
		t.Errorf("the container of the damaged pod: %v", s)
	}
	if s := r.status(stays); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container of the other pod: %v", s)
	}
	r.must(r.remove(damaged))
	r.must(r.remove(other))
	r.wantNothingLeft()
}

// wantRefused: containerd ends at its start, and says why.
func (r *rig) wantRefused(words ...string) {
	r.Helper()
	before, err := os.ReadFile(r.path("log"))
	r.must(err)
	r.launch("podshim-containerd")
	select {
	case <-r.ended:
	case <-time.After(slower() * time.Minute):
		r.cmd.Process.Kill()
		r.Fatal("containerd runs")
	}
	after, err := os.ReadFile(r.path("log"))
	r.must(err)
	said := string(after[len(before):])
	for _, w := range words {
		if !strings.Contains(said, w) {
			r.Errorf("containerd said %q, want %q in it", said, w)
		}
	}
}

// wantModes: nobody but root reads what is in a pod's folder.
func (r *rig) wantModes(pod string) {
	r.Helper()
	for path, want := range map[string]os.FileMode{".": 0o700, "socket": 0o600, "pod.json": 0o600, "hosts": 0o644, "../task.sock": 0o600, "..": 0o700} {
		st, err := os.Stat(r.path("state", "keepers", pod, path))
		r.must(err)
		if st.Mode().Perm() != want {
			r.Errorf("mode of %s: %s, want %s", path, st.Mode().Perm(), want)
		}
	}
}

// A link of an image leads nowhere but into the container, however it is written.
func TestALinkInAnImageStaysInside(t *testing.T) {
	r := newRig(t)
	pod, err := r.pod("links")
	r.must(err)
	r.must(os.MkdirAll(r.path("volume"), 0o755))
	c := containerConfig(r, "links", "c", "sleep")
	c.Mounts = []*cri.Mount{{HostPath: r.path("volume"), ContainerPath: "/outside/made"}}
	// The image has no such folder: what the link names is made, inside.
	id, err := r.container(pod, c, func() {})
	r.must(err)
	if o := r.execSync(id, 0, "/payload", "look", "/outside/made"); o.Code != 0 || o.Error != "" {
		t.Errorf("the folder in the container: %+v", o)
	}
	if _, err := os.Stat(r.path("made")); err == nil {
		t.Error("a folder was made on the host")
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// The path of a log must be absolute.
func TestALogWithoutAPathIsRefused(t *testing.T) {
	r := newRig(t)
	pod, err := r.pod("asks")
	r.must(err)
	c := containerConfig(r, "asks", "c", "sleep")
	c.Annotations[logAnnotation] = "relative"
	ctx, cancel := r.within()
	defer cancel()
	a, err := r.rt.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: pod, Config: c, SandboxConfig: podConfig(r, "asks")})
	if err == nil {
		_, err = r.rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: a.ContainerId})
	}
	if err == nil || !strings.Contains(err.Error(), "annotations["+logAnnotation+"]") {
		t.Errorf("error %v, want one that names the annotation", err)
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// What a container has of the host is not for it to change: the device that hides a file, and what
// it has in place of an input.
func TestTheHostsNullDevice(t *testing.T) {
	r := newRig(t)
	before, err := os.Stat(os.DevNull)
	r.must(err)
	t.Cleanup(func() { os.Chmod(os.DevNull, before.Mode().Perm()) })
	pod, id := r.runs("null", "sleep")
	for path, want := range map[string]string{"/proc/keys": "read-only file system", "/proc/1/fd/0": "", "/proc/self/fd/0": ""} {
		if o := r.execSync(id, 0, "/payload", "chmod", path, "640"); !strings.Contains(o.Out, want) || (o.Code == 0) != (want == "") {
			t.Errorf("chmod of %s: %+v, want %q", path, o, want)
		}
		if now, err := os.Stat(os.DevNull); err != nil || now.Mode() != before.Mode() {
			t.Errorf("after chmod of %s, the host's %s is %v, %v, was %s", path, os.DevNull, now.Mode(), err, before.Mode())
		}
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}
