//go:build e2e && vm

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// After a reboot of the machine the service brings the pods back: the same pods, in new sandboxes,
// with containers that were restarted. What had run to its end does not run again, what is on disk
// is there, and what the kernel has forgotten (mounts, networks, cgroups) disturbs nothing.
//
// The test runs twice, before the reboot that it asks for, and after it.
func TestVMReboot(t *testing.T) {
	n, back := newRebootNode(t, "rebooted")
	if back {
		n.comesBack()
		return
	}
	n.goesDown()
	askForReboot(t)
}

// newRebootNode makes the node of this name, whose folder outlives a reboot of the machine, and
// reports whether there was one. The run directory is one that a reboot empties.
func newRebootNode(t *testing.T, name string) (n *node, back bool) {
	t.Helper()
	needsSystemd(t)
	ask := os.Getenv("BERTH_REBOOT")
	if ask == "" {
		t.Fatal("nobody here reboots the machine and runs this test again: run this test by make e2e-vm")
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), testLimit, fmt.Errorf("the test took longer than %v", testLimit))
	t.Cleanup(cancel)
	dir := filepath.Join(filepath.Dir(ask), name)
	n = &node{t: t, ctx: ctx, binary: os.Getenv("BERTH"), place: place{Dir: dir, Root: dir + "/root", Run: "/run/berth-" + name, Cgroup: "/berth-" + name}}
	t.Cleanup(func() {
		if t.Failed() {
			n.tell()
		}
	})
	return n, exists(t, ask+".done")
}

// askForReboot has the machine be rebooted when all tests have run, and then run this test again.
func askForReboot(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(os.Getenv("BERTH_REBOOT"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(t, err)
	info, err := f.Stat()
	must(t, err)
	pattern := "^" + t.Name() + "$"
	if info.Size() > 0 {
		pattern = "|" + pattern
	}
	_, err = f.WriteString(pattern)
	must(t, err, f.Close())
}

// sweepReboot ends the unit and removes the node when the test ends.
func (n *node) sweepReboot(remove func()) {
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.tell()
		}
		remove()
		if err := sweep(n.place); err != nil {
			n.t.Errorf("clean up: %v", err)
		}
	})
}

// rebootedUnit is the service of the agent that is rebooted.
const rebootedUnit = "berth-rebooted.service"

// goesDown has pods run that a reboot is to end, and writes down how they are.
func (n *node) goesDown() {
	n.t.Helper()
	must(n.t, os.MkdirAll(n.manifests(), 0o711))
	script := `echo kept > /disk/$me.$run; ls /disk /memory > /shared/saw.$run; echo lost > /memory/file
say run $run
stay
`
	for _, name := range []string{"plain", "apart"} {
		p := n.act(name, v1.RestartPolicyAlways, nil, actor("main", script))
		for volume, medium := range map[string]v1.StorageMedium{"disk": v1.StorageMediumDefault, "memory": v1.StorageMediumMemory} {
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: volume, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: medium}}})
			p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: volume, MountPath: "/" + volume})
		}
		if name == "apart" {
			p.Spec.HostUsers = ptr.To(false)
			must(n.t, os.Chmod(n.stage(name), 0o777), os.Chmod(n.place.Dir, 0o711))
		}
		n.put(p)
	}
	n.put(n.act("once", v1.RestartPolicyNever, nil, actor("main", "say ran\n")))
	u := n.writeUnit(rebootedUnit, n.newAgent().cmd.Args...)
	systemctl(n.t, "enable", "--now", u.name)
	u.awaitAnswer(0)
	before := n.await("the pods to run and once to end", func(p pods) bool { return p.ready("plain", "apart") && p.inPhase("once", v1.PodSucceeded) })
	kept, err := json.Marshal(before)
	must(n.t, err, os.WriteFile(n.place.Dir+"/before", kept, 0o644))
}

// comesBack checks what the reboot has left of that, and ends it.
func (n *node) comesBack() {
	n.t.Helper()
	t := n.t
	var before pods
	kept, err := os.ReadFile(n.place.Dir + "/before")
	must(t, err)
	must(t, json.Unmarshal(kept, &before))
	u := n.unit(rebootedUnit)
	n.sweepReboot(u.remove)
	u.awaitAnswer(0)
	// Until the runtime is asked, an agent that has just been started tells what the last one saw.
	boot := bootTime(t)
	after := n.await("the pods to run since the reboot, and once to be known", func(p pods) bool {
		for _, name := range []string{"plain", "apart"} {
			if !p.ready(name) || container(p.named(name), "main").State.Running.StartedAt.Time.Before(boot) {
				return false
			}
		}
		return p.inPhase("once", v1.PodSucceeded)
	})

	for _, name := range []string{"plain", "apart"} {
		was, is := before.named(name), after.named(name)
		if was.UID != is.UID {
			t.Errorf("%s has UID %s, and had %s", name, is.UID, was.UID)
		}
		if containerID(was, "main") == containerID(is, "main") {
			t.Errorf("%s: container %s has outlived a reboot", name, containerID(is, "main"))
		}
		c := container(is, "main")
		// More than once when it was started again while the machine went down.
		if c.RestartCount < 1 || c.LastTerminationState.Terminated == nil {
			t.Errorf("%s was restarted %d times, want once at least, and its last end is %+v", name, c.RestartCount, c.LastTerminationState)
		}
		// The file of the first run is on disk, that in memory is gone.
		var run string
		until(t, name+" to tell of another run", func() bool {
			for _, line := range n.story(name) {
				if r, ok := strings.CutPrefix(line, "main run "); ok {
					run = r
				}
			}
			return run != "1"
		})
		if saw := readFile(t, filepath.Join(n.stage(name), "saw."+run)); !strings.HasPrefix(saw, "/disk:\nmain.1\n") || !strings.HasSuffix(saw, "\n/memory:") {
			t.Errorf("%s found %q on disk and in memory", name, saw)
		}
		if said := n.execIn("", name, "--", "/usr/bin/cat", "/proc/self/uid_map"); said.code != 0 {
			t.Errorf("exec into %s: %v", name, said)
		}
	}
	if said := n.story("once"); len(said) != 1 || said[0] != "main ran" {
		t.Errorf("what had run to its end ran again: %q", said)
	}
	n.berth("stop", "--all")
	n.wantNothingRuns()
}

// bootTime is when the machine was started.
func bootTime(t *testing.T) time.Time {
	t.Helper()
	for line := range strings.Lines(readFile(t, "/proc/stat")) {
		if value, ok := strings.CutPrefix(line, "btime "); ok {
			seconds, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			must(t, err)
			return time.Unix(seconds, 0)
		}
	}
	t.Fatal("/proc/stat has no btime")
	return time.Time{}
}
