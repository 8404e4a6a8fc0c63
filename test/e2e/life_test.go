//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/record/journal"
)

// actor is a container that has the host's programs and runs a script of the shell. In it "say
// WORDS" adds a line to the pod's story, which begins with the container's name, $run is the number
// of the run, beginning with 1, and "stay" goes on until the container is asked to end, which it
// says.
func actor(name, script string) v1.Container {
	const prelude = `PATH=/usr/bin
say() { echo "$me $*" >> /shared/story; }
stay() { trap "say asked; exit 0" TERM; say began; sleep infinity & wait; }
run=$(($(cat /shared/$me.runs 2>/dev/null || echo 0) + 1))
echo $run > /shared/$me.runs
`
	return v1.Container{Name: name, Image: helloImage, Command: []string{"/usr/bin/sh", "-c", "me=" + name + "\n" + prelude + script}}
}

// hookOf is a hook that runs a script in an actor, in whose name it says what it says.
func hookOf(name, script string) *v1.LifecycleHandler {
	return &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{
		"/usr/bin/sh", "-c", "PATH=/usr/bin\nsay() { echo \"" + name + " $*\" >> /shared/story; }\n" + script,
	}}}
}

// marked is a probe that succeeds when its pod was given the mark.
func marked(mark string) *v1.Probe {
	return &v1.Probe{
		ProbeHandler:  v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/usr/bin/test", "-e", "/shared/" + mark}}},
		PeriodSeconds: 1, FailureThreshold: 600,
	}
}

// sidecar makes a container an init container that runs for as long as the pod does.
func sidecar(c v1.Container) v1.Container {
	always := v1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
	return c
}

// act makes a pod of actors. Its containers have, in /shared, a folder of the host that is the
// pod's own.
func (n *node) act(name string, policy v1.RestartPolicy, init []v1.Container, containers ...v1.Container) *v1.Pod {
	n.t.Helper()
	if err := os.MkdirAll(n.stage(name), 0o755); err != nil {
		n.t.Fatal(err)
	}
	grace := int64(20)
	p := &v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.PodSpec{RestartPolicy: policy, TerminationGracePeriodSeconds: &grace, InitContainers: init, Containers: containers},
	}
	for _, m := range []struct{ volume, host, inside string }{
		{"shared", n.stage(name), "/shared"}, {"usr", "/usr", "/usr"}, {"lib", "/usr/lib", "/lib"}, {"lib64", "/lib64", "/lib64"},
	} {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: m.volume, VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: m.host}}})
		for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				list[i].VolumeMounts = append(list[i].VolumeMounts, v1.VolumeMount{Name: m.volume, MountPath: m.inside, ReadOnly: m.volume != "shared"})
			}
		}
	}
	return p
}

// stage is the folder that is /shared in the pod of that name.
func (n *node) stage(pod string) string { return filepath.Join(n.place.Dir, "shared", pod) }

// put writes the pod's manifest.
func (n *node) put(p *v1.Pod) {
	n.t.Helper()
	text, err := json.Marshal(p) // which is YAML too
	if err != nil {
		n.t.Fatal(err)
	}
	n.write(p.Name+".yaml", string(text))
}

// mark gives the pod a mark, which its actors can see as a file.
func (n *node) mark(pod, mark string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.stage(pod), mark), nil, 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// story is what the actors of the pod have said.
func (n *node) story(pod string) []string {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join(n.stage(pod), "story"))
	if err != nil && !os.IsNotExist(err) {
		n.t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// awaitStory waits until an actor of the pod has said that.
func (n *node) awaitStory(pod, line string) {
	n.t.Helper()
	until(n.t, fmt.Sprintf("%s to say %q", pod, line), func() bool { return slices.Contains(n.story(pod), line) })
}

// wantStory checks that the actors of the pod have said this in this order, with nothing or
// anything between.
func (n *node) wantStory(pod string, lines ...string) {
	n.t.Helper()
	left := lines
	for _, line := range n.story(pod) {
		if len(left) > 0 && line == left[0] {
			left = left[1:]
		}
	}
	if len(left) > 0 {
		n.t.Errorf("the story of %s lacks %q of %q, in this order; it is\n%s", pod, left[0], lines, strings.Join(n.story(pod), "\n"))
	}
}

// said is how often the actors of the pod have said that.
func (n *node) said(pod, line string) int {
	n.t.Helper()
	times := 0
	for _, l := range n.story(pod) {
		if l == line {
			times++
		}
	}
	return times
}

// newestStory is what the journal has of the pod's newest incarnation.
func (n *node) newestStory(pod string) journal.Timeline {
	n.t.Helper()
	var said struct {
		Stories []journal.Timeline `json:"stories"`
	}
	if err := json.Unmarshal([]byte(n.berth("explain", "--all", pod, "-o", "json")), &said); err != nil {
		n.t.Fatal(err)
	}
	if len(said.Stories) == 0 {
		n.t.Fatalf("the journal has nothing of %s", pod)
	}
	return said.Stories[len(said.Stories)-1]
}

// endsOf are the ends of the container's incarnations, oldest first.
func endsOf(s journal.Timeline, container string) []journal.End {
	var out []journal.End
	for _, e := range s.Ends {
		if e.Container == container {
			out = append(out, e)
		}
	}
	return out
}

// inPhase reports whether the pod of this name is in the phase.
func (p pods) inPhase(name string, phase v1.PodPhase) bool {
	pod := p.named(name)
	return pod != nil && pod.Status.Phase == phase
}

// wantTerminated checks that the container has ended with the code and for the reason.
func wantTerminated(t *testing.T, p *v1.Pod, name string, code int32, reason string) {
	t.Helper()
	switch end := container(p, name).State.Terminated; {
	case end == nil:
		t.Errorf("container %s of %s is %+v, want it ended", name, p.Name, container(p, name).State)
	case end.ExitCode != code || end.Reason != reason:
		t.Errorf("container %s of %s ended with code %d and reason %s, want %d and %s: %s", name, p.Name, end.ExitCode, end.Reason, code, reason, end.Message)
	}
}
