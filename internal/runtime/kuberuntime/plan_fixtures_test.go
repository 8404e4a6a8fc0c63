package kuberuntime

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const testImage = "berth.local/hello:1"

// specOf makes a pod of words: its restart policy, then containers. A container is its name with
// marks:
//
//	i:NAME s:NAME e:NAME   an init container, a sidecar, an ephemeral one; without a prefix a regular one
//	NAME?                  with a startup and a liveness probe
//	NAME!POLICY            with a restart policy of its own
//	NAME{Action/Op/1,2}    with a restart rule
//
// The words deleted and host stand for a pod that is being deleted and one in the host's network.
func specOf(t *testing.T, words string) *v1.Pod {
	t.Helper()
	p := &v1.Pod{}
	p.Name, p.Namespace, p.UID = "web", "default", "u1"
	for i, w := range strings.Fields(words) {
		switch {
		case i == 0:
			p.Spec.RestartPolicy = v1.RestartPolicy(w)
		case w == "deleted":
			p.DeletionTimestamp = &metav1.Time{Time: t0}
		case w == "host":
			p.Spec.HostNetwork = true
		default:
			addContainer(t, p, w)
		}
	}
	return p
}

func addContainer(t *testing.T, p *v1.Pod, w string) {
	t.Helper()
	kind, w, ok := strings.Cut(w, ":")
	if !ok {
		kind, w = "", kind
	}
	c := v1.Container{Image: testImage}
	if kind == "s" {
		c.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
	}
	w, rule, hasRule := strings.Cut(strings.TrimSuffix(w, "}"), "{")
	if hasRule {
		parts := strings.Split(rule, "/")
		r := v1.ContainerRestartRule{
			Action:    v1.ContainerRestartRuleAction(parts[0]),
			ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOperator(parts[1])},
		}
		for code := range strings.SplitSeq(parts[2], ",") {
			r.ExitCodes.Values = append(r.ExitCodes.Values, int32(number(t, code)))
		}
		c.RestartPolicyRules = append(c.RestartPolicyRules, r)
	}
	w, own, hasOwn := strings.Cut(w, "!")
	if hasOwn {
		c.RestartPolicy = new(v1.ContainerRestartPolicy(own))
	}
	c.Name = strings.TrimSuffix(w, "?")
	if c.Name != w {
		c.StartupProbe, c.LivenessProbe = &v1.Probe{}, &v1.Probe{}
	}
	switch kind {
	case "":
		p.Spec.Containers = append(p.Spec.Containers, c)
	case "e":
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon(c)})
	default:
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
}

// podOf returns a pod with the named containers; a name with the prefix "init-" is an init
// container, "sidecar-" a sidecar.
func podOf(policy v1.RestartPolicy, names ...string) *v1.Pod {
	p := &v1.Pod{}
	p.Name, p.Namespace, p.UID = "web", "default", "u1"
	p.Spec.RestartPolicy = policy
	for _, n := range names {
		c := v1.Container{Name: n, Image: testImage}
		switch {
		case strings.HasPrefix(n, "init-"):
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		case strings.HasPrefix(n, "sidecar-"):
			c.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		default:
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}

// inputOf makes an observation of words. Sandboxes, newest first: sb (ready), sb-dead, sb-host (in
// the host's network), sb-noip. Then containers, newest first, in the newest sandbox: NAME=running,
// NAME=created, NAME=unknown, NAME=CODE (exited), with marks:
//
//	+changed                made from another definition
//	+live +dead             its liveness probe succeeded, failed
//	+started +stuck         its startup probe succeeded, failed
//	+oom                    killed for memory
//	+old                    in the second sandbox
//	+held                   its restart is held back for 20 s
//
// failed:NAME is a container that could not be created, failed a sandbox that could not.
func inputOf(t *testing.T, p *v1.Pod, words string) planInput {
	t.Helper()
	in := planInput{
		Pod: p, Observed: &pod.Status{UID: p.UID, Name: p.Name, Namespace: p.Namespace}, Holds: map[string]lifecycle.Hold{}, Failed: map[string]creationFailure{},
		Probes: pod.ProbeVerdicts{Liveness: map[pod.ContainerID]pod.ProbeVerdict{}, Startup: map[pod.ContainerID]pod.ProbeVerdict{}},
	}
	for _, w := range strings.Fields(words) {
		if what, name, _ := strings.Cut(w, ":"); what == "failed" {
			in.Failed[name] = creationFailure{Until: t0.Add(10 * time.Second)}
			continue
		}
		name, marks, isContainer := strings.Cut(w, "=")
		if !isContainer {
			addSandbox(t, in.Observed, w)
			continue
		}
		addStatus(t, &in, name, strings.Split(marks, "+"))
	}
	for i := range in.Observed.Sandboxes {
		in.Observed.Sandboxes[i].Attempt = uint32(len(in.Observed.Sandboxes) - 1 - i)
	}
	return in
}

func addSandbox(t *testing.T, s *pod.Status, w string) {
	t.Helper()
	sb := pod.SandboxStatus{ID: pod.SandboxID(fmt.Sprintf("s%d", len(s.Sandboxes))), Ready: true, CreatedAt: t0, IPs: []string{"10.0.0.1"}}
	switch w {
	case "sb":
	case "sb-dead":
		sb.Ready = false
	case "sb-host":
		sb.HostNetwork, sb.IPs = true, nil
	case "sb-noip":
		sb.IPs = nil
	default:
		t.Fatalf("%q is no sandbox", w)
	}
	s.Sandboxes = append(s.Sandboxes, sb)
}

func addStatus(t *testing.T, in *planInput, name string, marks []string) {
	t.Helper()
	n := len(in.Observed.Containers)
	cs := pod.ContainerStatus{
		ID: pod.ContainerID(fmt.Sprintf("c%d", n)), SandboxID: "s0", Name: name, CreatedAt: t0.Add(-time.Duration(n) * time.Second),
		Hash: lifecycle.ContainerHash(&v1.Container{Name: name, Image: testImage}),
	}
	switch marks[0] {
	case "running":
		cs.State = pod.StateRunning
	case "created":
		cs.State = pod.StateCreated
	case "unknown":
		cs.State = pod.StateUnknown
	default:
		cs.State, cs.ExitCode, cs.FinishedAt = pod.StateExited, int32(number(t, marks[0])), t0
	}
	for _, m := range marks[1:] {
		switch m {
		case "changed":
			cs.Hash = "0"
		case "live":
			in.Probes.Liveness[cs.ID] = pod.ProbeSuccess
		case "dead":
			in.Probes.Liveness[cs.ID] = pod.ProbeFailure
		case "started":
			in.Probes.Startup[cs.ID] = pod.ProbeSuccess
		case "stuck":
			in.Probes.Startup[cs.ID] = pod.ProbeFailure
		case "oom":
			cs.Reason = lifecycle.OOMKilled
		case "old":
			cs.SandboxID = "s1"
		case "held":
			in.Holds[name] = lifecycle.Hold{Until: t0.Add(20 * time.Second), Delay: 20 * time.Second}
		default:
			t.Fatalf("%q is no mark", m)
		}
	}
	in.Observed.Containers = append(in.Observed.Containers, cs)
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
