//go:build e2e && keeper

package keeper

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// startNext starts the containerd of a release to come, whose keepers speak one version more.
func (r *rig) startNext() {
	r.Helper()
	all := r.programs
	r.programs = filepath.Join(all, "next")
	r.start()
	r.programs = all
}

// serves: a pod does all that a user asks for, whoever made it.
func (r *rig) serves(name, pod string, n int) {
	r.Helper()
	id, err := r.container(pod, containerConfig(r, name, fmt.Sprintf("more%d", n), "lines", "200", "7"), func() {})
	r.must(err)
	if s := r.exits(id); s.ExitCode != 7 {
		r.Errorf("%s: a container that was made later: %v, want exit code 7", name, s)
	}
	if got := r.lines(r.logFile(name, fmt.Sprintf("more%d", n))); got != 200 {
		r.Errorf("%s: its log has %d lines, want 200", name, got)
	}
	id, err = r.container(pod, containerConfig(r, name, fmt.Sprintf("stopped%d", n), "sleep"), func() {})
	r.must(err)
	if o := r.execSync(id, 0, "/payload", "say", "x", "y", "2"); o != (outcome{"x", "y", 2, ""}) {
		r.Errorf("%s: an exec: %q", name, o)
	}
	ctx, cancel := r.within()
	defer cancel()
	_, err = r.rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: 0})
	r.must(err)
	if s := r.exits(id); s.ExitCode != 137 {
		r.Errorf("%s: a container that was stopped: %v, want exit code 137", name, s)
	}
}

// A keeper of the release before serves its pod until that ends, beside those of the new one, and
// how its containers ended meanwhile is known. The release before does not begin over keepers that
// it cannot ask, and leaves them as they are.
func TestUpgrade(t *testing.T) {
	r := newRig(t)
	old, runs := r.runs("old", "write")
	_, ends := r.runs("ends", "exit", "300", "42")
	r.kill()
	for i := range 2 {
		r.startNext()
		if s := r.status(runs); s.State != cri.ContainerState_CONTAINER_RUNNING {
			t.Errorf("upgrade %d: the container of before: %v, want it to run", i, s)
		}
		if s := r.exits(ends); s.ExitCode != 42 {
			t.Errorf("upgrade %d: the container that ended meanwhile: %v, want exit code 42", i, s)
		}
		r.serves("old", old, i)
		r.kill()
	}
	// Back: the pods are all of a version that this one speaks.
	r.start()
	r.serves("old", old, 2)
	r.kill()

	r.startNext()
	young, alone := r.runs("young", "write")
	r.serves("young", young, 0)
	r.kill()
	r.wantRefused("pod "+young, "the keeper speaks version", "this containerd versions", "end the pod by the containerd that started it")
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", r.keeperOf(young))); err != nil {
		t.Errorf("the keeper that could not be asked: %v", err)
	}
	r.startNext()
	for _, id := range []string{runs, alone} {
		if s := r.status(id); s.State != cri.ContainerState_CONTAINER_RUNNING {
			t.Errorf("a container, after all that: %v, want it to run", s)
		}
	}
	for _, name := range []string{"old", "young"} {
		if n := r.lines(r.logFile(name, "c")); n < 100 {
			t.Errorf("%s: %d lines in the log", name, n)
		}
	}
	// Back in earnest: the pods end.
	r.kill()
	file := r.path("state", "keepers", young, "pod.json")
	good, err := os.ReadFile(file)
	r.must(err)
	keeper := r.keeperOf(young)
	r.must(os.WriteFile(file, []byte("{"), 0o600))
	if out, err := r.endKeepers(); err == nil || !strings.Contains(out, "speaks version") {
		t.Errorf("end of all pods, one of which nobody knows the keeper of: %v, %s", err, out)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", keeper)); err != nil {
		t.Errorf("the keeper that nobody knows: %v", err)
	}
	r.must(os.WriteFile(file, good, 0o600))
	if out, err := r.endKeepers(); err != nil || !strings.Contains(out, "speaks version") {
		t.Errorf("end of all pods: %v, %s", err, out)
	}
	r.start()
	for _, id := range []string{runs, alone} {
		if s := r.exits(id); s.ExitCode == 0 {
			t.Errorf("a container, after the end of all: %v", s)
		}
	}
	r.removeAll()
}
