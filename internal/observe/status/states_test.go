package status

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"berth/internal/pod"
)

var updateStates = flag.Bool("update", false, "write the statuses of testdata/states anew, to be read before they are believed")

// TestStates holds observed states against the exact status of each: testdata/states says how it is
// written.
func TestStates(t *testing.T) {
	files, err := filepath.Glob("testdata/states/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	states := 0
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			head, cases := readStates(t, string(content))
			written := bytes.NewBufferString(head)
			var before v1.PodStatus
			for _, c := range cases {
				t.Run(c.title, func(t *testing.T) {
					s := c.status(t, before)
					got := describeStatus(s)
					if diff := cmp.Diff(c.want, got); diff != "" && !*updateStates {
						t.Errorf("status (-want +got):\n%s", diff)
					}
					fmt.Fprintf(written, "\n== %s\n%s---\n%s", c.title, c.input, got)
					before = s
				})
				states++
			}
			if *updateStates {
				if err := os.WriteFile(file, written.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if states < 120 {
		t.Errorf("%d states, there were 120 and more", states)
	}
}

// state is one case of a file.
type state struct{ title, input, want string }

func readStates(t *testing.T, content string) (head string, out []state) {
	t.Helper()
	parts := strings.Split(content, "\n== ")
	for _, part := range parts[1:] {
		title, rest, _ := strings.Cut(part, "\n")
		input, want, ok := strings.Cut(rest, "---\n")
		if !ok && !*updateStates {
			t.Fatalf("case %q has no status", title)
		}
		if !strings.HasSuffix(want, "\n") && want != "" {
			want += "\n"
		}
		out = append(out, state{title, strings.TrimRight(input, "\n") + "\n", want})
	}
	return parts[0], out
}

// status returns the status after what the case says; before is that of the case above.
func (c *state) status(t *testing.T, before v1.PodStatus) v1.PodStatus {
	t.Helper()
	p := newPod()
	p.Spec.Containers = nil
	in := Input{Pod: p, Observed: observed(), RuntimeName: "containerd"}
	now, again, terminated := epoch, false, false
	for line := range strings.Lines(c.input) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " # ")
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		var err error
		switch word {
		case "", "#":
		case "pod":
			stateOfPod(p, strings.Fields(rest))
		case "spec":
			err = yaml.UnmarshalStrict([]byte(rest), &p.Spec)
		case "api":
			err = yaml.UnmarshalStrict([]byte(rest), &p.Status)
		case "container":
			name, fields, _ := strings.Cut(rest, " ")
			err = yaml.UnmarshalStrict([]byte(fields), containerNamed(p, name))
		case "sandbox":
			in.Observed.Sandboxes, in.Observed.IPs = stateOfSandbox(rest)
		case "runtime":
			var cs pod.ContainerStatus
			cs, err = stateOfContainer(rest)
			in.Observed.Containers = append(in.Observed.Containers, cs)
		case "error":
			f := strings.SplitN(rest, " ", 3)
			startError(f[0], f[1], strings.Join(f[2:], ""))(&in)
		case "passed":
			in.Probes = stateOfProbes(strings.Fields(rest))
		case "host":
			in.HostIPs = strings.Fields(rest)
		case "after":
			in.Old, again = before, true
		case "at":
			var seconds int
			seconds, err = strconv.Atoi(rest)
			now = at(seconds).Time
		case "is":
			switch rest {
			case "deleted":
				deleted(p)
			case "static":
				static(p)
			case "ended":
				in.Terminal = true
			case "without mounts":
				in.MountsMissing = true
			case "terminated":
				terminated = true
			default:
				err = fmt.Errorf("a pod is never %q", rest)
			}
		default:
			err = fmt.Errorf("nobody knows the word %q", word)
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	if !again {
		in.Old = p.Status
	}
	in.Now = now
	made := Generate(in)
	if terminated {
		made = terminatedStatus(p, in.Old)
	} else if err := checkTransitions(p, &in.Old, &made); err != nil {
		t.Fatal(err)
	}
	return settle(p, in.Old, made, metav1.NewTime(now))
}

// stateOfPod reads "Always first(init) side(sidecar) app debug(ephemeral)".
func stateOfPod(p *v1.Pod, words []string) {
	p.Spec.RestartPolicy = v1.RestartPolicy(words[0])
	for _, word := range words[1:] {
		name, kind, _ := strings.Cut(strings.TrimSuffix(word, ")"), "(")
		c := containers(name)
		switch kind {
		case "init":
			p.Spec.InitContainers = append(p.Spec.InitContainers, c...)
		case "sidecar":
			p.Spec.InitContainers = append(p.Spec.InitContainers, sidecar(name))
		case "ephemeral":
			p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon(c[0])})
		default:
			p.Spec.Containers = append(p.Spec.Containers, c...)
		}
	}
}

func containerNamed(p *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// stateOfSandbox reads "none", "dead" or "ready" and its addresses.
func stateOfSandbox(text string) ([]pod.SandboxStatus, []string) {
	switch f := strings.Fields(text); f[0] {
	case "none":
		return nil, nil
	case "dead":
		return []pod.SandboxStatus{{ID: "s1"}}, nil
	default:
		return []pod.SandboxStatus{{ID: "s1", Ready: true, IPs: f[1:]}}, f[1:]
	}
}

// stateOfContainer reads "app#1 exited 1 Reason: message", with "created", "running" and "unknown"
// in place of "exited 1". Fields of the observation may follow in braces.
func stateOfContainer(text string) (cs pod.ContainerStatus, err error) {
	text, fields, more := strings.Cut(text, " {")
	f := strings.SplitN(text, " ", 4)
	name, number, _ := strings.Cut(f[0], "#")
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return cs, err
	}
	switch f[1] {
	case "created":
		cs = seen(name, uint32(n), pod.StateCreated)
	case "running":
		cs = seen(name, uint32(n), pod.StateRunning)
	case "unknown":
		cs = seen(name, uint32(n), pod.StateUnknown)
	case "exited":
		code, err := strconv.ParseInt(f[2], 10, 32)
		if err != nil {
			return cs, err
		}
		cs = seenExited(name, uint32(n), int32(code))
		if len(f) == 4 {
			cs.Reason, cs.Message, _ = strings.Cut(f[3], ": ")
		}
	default:
		return cs, fmt.Errorf("a container is never %q", f[1])
	}
	if more {
		err = yaml.Unmarshal([]byte("{"+fields), &cs)
	}
	return cs, err
}

// stateOfProbes reads "ready:app#1 started:app#1".
func stateOfProbes(words []string) pod.ProbeVerdicts {
	v := pod.ProbeVerdicts{Readiness: passed(), Startup: passed()}
	for _, word := range words {
		kind, ref, _ := strings.Cut(word, ":")
		id := pod.ContainerID(strings.Replace(ref, "#", "-", 1))
		if kind == "ready" {
			v.Readiness[id] = pod.ProbeSuccess
		} else {
			v.Startup[id] = pod.ProbeSuccess
		}
	}
	return v
}

// describeStatus writes a status in lines that say all of it: what has no words of its own comes as
// YAML.
func describeStatus(s v1.PodStatus) string {
	s = *s.DeepCopy()
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s, generation %d, %s", take(&s.Phase), because(take(&s.Reason), take(&s.Message)), take(&s.ObservedGeneration), take(&s.QOSClass))
	if start := take(&s.StartTime); start != nil {
		fmt.Fprintf(&b, ", since %s", clock(*start))
	}
	addresses(&b, "pod", take(&s.PodIP), take(&s.PodIPs))
	addresses(&b, "host", take(&s.HostIP), take(&s.HostIPs))
	b.WriteString("\n")
	for _, c := range take(&s.Conditions) {
		fmt.Fprintf(&b, "  %s %s", take(&c.Type), take(&c.Status))
		fmt.Fprintf(&b, "%s, since %s", because(take(&c.Reason), take(&c.Message)), clock(take(&c.LastTransitionTime)))
		if g := take(&c.ObservedGeneration); g != 4 {
			fmt.Fprintf(&b, ", generation %d", g)
		}
		if probed := take(&c.LastProbeTime); !probed.IsZero() {
			fmt.Fprintf(&b, ", probed %s", clock(probed))
		}
		b.WriteString("\n")
		rest(&b, c)
	}
	for _, list := range []struct {
		what     string
		statuses []v1.ContainerStatus
	}{{"init ", take(&s.InitContainerStatuses)}, {"", take(&s.ContainerStatuses)}, {"ephemeral ", take(&s.EphemeralContainerStatuses)}} {
		for _, c := range list.statuses {
			describeContainer(&b, list.what, c)
		}
	}
	rest(&b, s)
	return b.String()
}

func describeContainer(b *strings.Builder, what string, c v1.ContainerStatus) {
	fmt.Fprintf(b, "%s%s: %s", what, take(&c.Name), describeContainerState(take(&c.State)))
	if last := take(&c.LastTerminationState); last != (v1.ContainerState{}) {
		fmt.Fprintf(b, "\n  before: %s", describeContainerState(last))
	}
	fmt.Fprintf(b, "\n  restarts %d", take(&c.RestartCount))
	if started := take(&c.Started); started != nil && *started {
		b.WriteString(", started")
	} else if started == nil {
		b.WriteString(", started unset")
	}
	if take(&c.Ready) {
		b.WriteString(", ready")
	}
	fmt.Fprintf(b, "; image %s %s; id %s\n", take(&c.Image), orDash(take(&c.ImageID)), orDash(take(&c.ContainerID)))
	rest(b, c)
}

func describeContainerState(s v1.ContainerState) string {
	switch {
	case s.Waiting != nil:
		return "waiting" + because(s.Waiting.Reason, s.Waiting.Message)
	case s.Running != nil:
		return "running since " + clock(s.Running.StartedAt)
	case s.Terminated != nil:
		e := s.Terminated
		text := fmt.Sprintf("exited with %d%s, ran %s to %s, id %s", e.ExitCode, because(e.Reason, e.Message), clock(e.StartedAt), clock(e.FinishedAt), orDash(e.ContainerID))
		if e.Signal != 0 {
			text += fmt.Sprintf(", signal %d", e.Signal)
		}
		return text
	}
	return "nothing"
}

// rest writes what nobody took.
func rest(b *strings.Builder, v any) {
	if reflect.ValueOf(v).IsZero() {
		return
	}
	text, err := yaml.Marshal(v)
	if err != nil {
		panic(err) // of a Kubernetes type
	}
	for line := range strings.Lines(string(text)) {
		switch strings.TrimSpace(line) {
		// Fields that JSON has although they are empty.
		case "state: {}", "lastState: {}", `name: ""`, `image: ""`, `imageID: ""`, "ready: false", "restartCount: 0":
		default:
			b.WriteString("  | " + line)
		}
	}
}

func addresses[T any](b *strings.Builder, what, first string, all []T) {
	if first == "" && len(all) == 0 {
		return
	}
	fmt.Fprintf(b, ", %s %s %v", what, first, all)
}

// take returns the value and leaves nothing there.
func take[T any](v *T) T {
	var none T
	taken := *v
	*v = none
	return taken
}

func because(reason, message string) string {
	switch {
	case message != "":
		return fmt.Sprintf(" %s %q", reason, message)
	case reason != "":
		return " " + reason
	}
	return ""
}

func clock(t metav1.Time) string {
	if t.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%+d", int(t.Sub(epoch)/time.Second))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
