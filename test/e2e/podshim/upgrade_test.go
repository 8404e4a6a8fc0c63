//go:build e2e && podshim

package podshim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// startNext starts the containerd of a release to come, whose pod shims speak one version more.
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

// A pod shim of the release before serves its pod until that ends, beside those of the new one, and
// how its containers ended meanwhile is known. The release before does not begin over pod shims
// that it cannot ask, and leaves them as they are.
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
	r.wantRefused("pod "+young, "the pod shim speaks version", "this containerd versions", "end the pod by the containerd that started it")
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", r.podshimOf(young))); err != nil {
		t.Errorf("the pod shim that could not be asked: %v", err)
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
	podshim := r.podshimOf(young)
	r.must(os.WriteFile(file, []byte("{"), 0o600))
	if out, err := r.endPodshims(); err == nil || !strings.Contains(out, "speaks version") {
		t.Errorf("end of all pods, one of which nobody knows the pod shim of: %v, %s", err, out)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", podshim)); err != nil {
		t.Errorf("the pod shim that nobody knows: %v", err)
	}
	r.must(os.WriteFile(file, good, 0o600))
	if out, err := r.endPodshims(); err != nil || !strings.Contains(out, "speaks version") {
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

// The previous release calls the pod shim "keeper", in its configuration and in what it records.
// Its pods run on under this release, and those of this release, which the agent creates by the
// previous name, under that one.
func TestPreviousName(t *testing.T) {
	r := newRig(t)
	b, err := os.ReadFile(r.path("config.toml"))
	r.must(err)
	renamed := strings.NewReplacer("runtimes.podshim]", "runtimes.keeper]", "default_runtime_name = 'podshim'", "default_runtime_name = 'keeper'", "sandboxer = 'podshim'", "sandboxer = 'keeper'")
	previous := renamed.Replace(string(b))
	const handler = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.podshim]\n  runtime_type = 'io.containerd.runc.v2'\n  sandboxer = 'podshim'\n  container_annotations = ['berth.dev/log-path']\n"
	if !strings.Contains(string(b), handler) {
		t.Fatalf("the configuration lacks\n%s", handler)
	}
	current := strings.Replace(string(b), handler, handler+renamed.Replace(handler), 1)
	restart := func(config string) {
		r.kill()
		r.must(os.WriteFile(r.path("config.toml"), []byte(config), 0o600))
		r.start()
	}
	type created struct{ pod, container string }
	pods := map[string]created{}
	create := func(name, handler string) {
		t.Helper()
		id, err := r.podBy(handler, podConfig(r, name))
		r.must(err)
		c, err := r.container(id, containerConfig(r, name, "c", "write"), func() {})
		r.must(err)
		pods[name] = created{id, c}
	}
	// Each container still runs, and its pod takes another one.
	serves := func(who string) {
		t.Helper()
		for name, p := range pods {
			if s := r.status(p.container); s.State != cri.ContainerState_CONTAINER_RUNNING {
				t.Errorf("%s: the container of %s: %v, want it to run", who, name, s)
			}
			another := strings.ReplaceAll(who, " ", "-")
			id, err := r.container(p.pod, containerConfig(r, name, another, "exit", "0", "3"), func() {})
			if err != nil {
				t.Errorf("%s: another container in %s: %v", who, name, err)
				continue
			}
			if s := r.exits(id); s.ExitCode != 3 {
				t.Errorf("%s: another container in %s: %v, want exit code 3", who, name, s)
			}
		}
	}
	restart(previous)
	create("before", "keeper")
	restart(current)
	create("after", "keeper")
	create("new", "podshim")
	serves("this release")
	delete(pods, "new") // its handler is unknown to the previous release: the agent does not create such pods yet
	restart(previous)
	serves("the previous release")
	restart(current)
	serves("this release again")
}
