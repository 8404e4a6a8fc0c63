package kuberuntime

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// planWorlds is how many random pods with random observations the properties are checked on.
const planWorlds = 20_000

func TestPlanProperties(t *testing.T) {
	for seed := range uint64(planWorlds) {
		rng := rand.New(rand.NewPCG(seed, 7))
		in := randomInput(rng)
		before := planInput{Pod: in.Pod.DeepCopy(), Observed: cloneStatus(in.Observed), Probes: in.Probes, Holds: in.Holds, Failed: in.Failed}
		a := computePodActions(in)
		problems := violations(in, &a)
		if !reflect.DeepEqual(before, in) { // cmp is slow on what is equal nearly always
			problems = append(problems, "the inputs were changed: "+cmp.Diff(before.Pod, in.Pod)+cmp.Diff(before.Observed, in.Observed))
		}
		if again := computePodActions(before); !reflect.DeepEqual(a, again) {
			problems = append(problems, "equal inputs give another plan: "+cmp.Diff(a, again))
		}
		if len(problems) > 0 {
			t.Fatalf("seed %d\npolicy %s, deleted %v\n%s\nplan: %s\n%q", seed, in.Pod.Spec.RestartPolicy, in.Pod.DeletionTimestamp != nil, in, a.String(), problems)
		}
	}
}

// A pod whose containers do what they should comes to rest: plans that are carried out lead to one
// that is empty.
func TestPlansComeToRest(t *testing.T) {
	for seed := range uint64(planWorlds / 4) {
		rng := rand.New(rand.NewPCG(seed, 11))
		in := randomInput(rng)
		in.Holds, in.Failed, in.Pod.DeletionTimestamp = nil, nil, nil
		var lines []string
		rest := false
		for pass := 0; pass < 60 && !rest; pass++ {
			a := computePodActions(in)
			lines = append(lines, in.String(), "  "+a.String())
			rest = a.empty() && !succeedProbes(&in)
			carryOut(&in, &a, pass)
		}
		if !rest {
			t.Fatalf("seed %d, policy %s: no rest after\n%s", seed, in.Pod.Spec.RestartPolicy, lines[max(0, len(lines)-8):])
		}
		for i := range in.Pod.Spec.Containers {
			c := &in.Pod.Spec.Containers[i]
			if cs := in.Observed.FindContainer(c.Name); cs != nil && cs.State == pod.StateRunning && in.Observed.ReadySandbox() == nil {
				t.Fatalf("seed %d: %s runs at rest without a sandbox", seed, c.Name)
			}
		}
	}
}

// violations returns what of the plan must never be.
func violations(in planInput, a *podActions) []string {
	p, s := in.Pod, in.Observed
	var out []string
	fail := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if p.DeletionTimestamp != nil && !a.empty() {
		fail("something is done to a pod that is being deleted")
	}
	if a.KillPod && !a.CreateSandbox {
		if len(a.Start)+len(a.Wait)+len(a.Kill) > 0 {
			fail("containers are handled one by one in a pod that is stopped")
		}
		if !s.Active() {
			fail("a pod of which nothing runs is stopped for good")
		}
	}
	if _, failed := in.Failed[""]; failed && (a.CreateSandbox || a.PurgeInit) {
		fail("a sandbox is made although one has just failed")
	}
	if a.SandboxFailed != nil && (a.CreateSandbox || len(a.Start)+len(a.Wait)+len(a.Kill) > 0) {
		fail("containers are started without the sandbox that is held back")
	}
	if len(a.RestartAll) > 0 && len(a.Start)+len(a.Wait)+len(a.Kill) > 0 {
		fail("containers are handled one by one while all are restarted")
	}
	killed := map[string]bool{}
	for _, k := range a.Kill {
		if cs := find(s, k.ID); cs != s.FindContainer(k.Name) || cs.State != pod.StateRunning && cs.State != pod.StateUnknown {
			fail("%s is killed, which does not run", k.Name)
		}
		killed[k.Name] = true
	}
	order := startOrder(p)
	last, plain := -1, 0
	for _, st := range a.Start {
		cs := s.FindContainer(st.Name)
		if cs != nil && (cs.State == pod.StateRunning || cs.State == pod.StateUnknown) && !killed[st.Name] && !a.KillPod {
			fail("%s is started while it runs", st.Name)
		}
		if order[st.Name] <= last {
			fail("%s is started out of order", st.Name)
		}
		last = order[st.Name]
		if isPlainInit(p, st.Name) {
			plain++
		}
		if plain > 0 && !isInit(p, st.Name) {
			fail("%s is started beside an init container", st.Name)
		}
		if _, held := in.Holds[st.Name]; held {
			fail("%s is started although it is held back", st.Name)
		}
		if _, failed := in.Failed[st.Name]; failed {
			fail("%s is started although it has just failed", st.Name)
		}
		if c := findSpec(p, st.Name); cs != nil && cs.State == pod.StateExited && !lifecycle.ShouldStart(p, c, cs) && !isPlainInit(p, st.Name) {
			fail("%s is restarted against its policy", st.Name)
		}
	}
	if plain > 1 {
		fail("%d init containers are started at once", plain)
	}
	if regularStarts(p, a) && !initIsDone(in, a) {
		fail("regular containers are started before the init containers are done")
	}
	return out
}

// startOrder numbers the containers in the order in which they are started.
func startOrder(p *v1.Pod) map[string]int {
	out := map[string]int{}
	for i := range p.Spec.EphemeralContainers {
		out[p.Spec.EphemeralContainers[i].Name] = len(out)
	}
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			out[list[i].Name] = len(out)
		}
	}
	return out
}

func regularStarts(p *v1.Pod, a *podActions) bool {
	isRegular := func(name string) bool {
		return slices.ContainsFunc(p.Spec.Containers, func(c v1.Container) bool { return c.Name == name })
	}
	return slices.ContainsFunc(a.Start, func(s startAction) bool { return isRegular(s.Name) }) ||
		slices.ContainsFunc(a.Wait, func(w waitAction) bool { return isRegular(w.Name) })
}

// initIsDone is a second opinion on when regular containers may start: some were, or the last init
// container is over.
func initIsDone(in planInput, a *podActions) bool {
	inits := in.Pod.Spec.InitContainers
	if len(inits) == 0 {
		return true
	}
	if a.CreateSandbox {
		return false
	}
	for i := range in.Pod.Spec.Containers {
		cs := in.Observed.FindContainer(in.Pod.Spec.Containers[i].Name)
		if cs != nil && cs.State != pod.StateUnknown && (cs.State != pod.StateExited || cs.SandboxID == in.Observed.Sandboxes[0].ID) {
			return true
		}
	}
	last := &inits[len(inits)-1]
	cs := in.Observed.FindContainer(last.Name)
	if lifecycle.IsSidecar(last) {
		return cs != nil && cs.State == pod.StateRunning && (last.StartupProbe == nil || in.Probes.Startup[cs.ID] == pod.ProbeSuccess)
	}
	return cs != nil && cs.State == pod.StateExited && cs.ExitCode == 0 && cs.Reason != lifecycle.OOMKilled
}

// succeedProbes lets the unknown startup probes of what runs succeed, and reports whether there
// were any.
func succeedProbes(in *planInput) (changed bool) {
	for i := range in.Observed.Containers {
		cs := &in.Observed.Containers[i]
		if c := findSpec(in.Pod, cs.Name); cs.State == pod.StateRunning && c.StartupProbe != nil && in.Probes.Startup[cs.ID] == pod.ProbeUnknown {
			in.Probes.Startup[cs.ID] = pod.ProbeSuccess
			changed = true
		}
	}
	return changed
}

// carryOut does to the observation what the plan says; init containers succeed at once, others run.
func carryOut(in *planInput, a *podActions, pass int) {
	s := in.Observed
	end := func(cs *pod.ContainerStatus) {
		if cs.State == pod.StateRunning || cs.State == pod.StateUnknown {
			cs.State, cs.ExitCode, cs.FinishedAt = pod.StateExited, 137, t0
		}
	}
	if a.KillPod {
		for i := range s.Containers {
			end(&s.Containers[i])
		}
		for i := range s.Sandboxes {
			s.Sandboxes[i].Ready = false
		}
	}
	if a.CreateSandbox {
		sb := pod.SandboxStatus{ID: pod.SandboxID(fmt.Sprintf("new%d", pass)), Attempt: a.Attempt, Ready: true, HostNetwork: in.Pod.Spec.HostNetwork, IPs: []string{"10.0.0.2"}}
		s.Sandboxes = append([]pod.SandboxStatus{sb}, s.Sandboxes...)
		s.Containers = slices.DeleteFunc(s.Containers, func(cs pod.ContainerStatus) bool { return isInit(in.Pod, cs.Name) })
	}
	for _, k := range a.RestartAll {
		s.Containers = slices.DeleteFunc(s.Containers, func(cs pod.ContainerStatus) bool { return cs.ID == k.ID })
	}
	for _, k := range a.Kill {
		end(find(s, k.ID))
	}
	for _, st := range a.Start {
		cs := pod.ContainerStatus{
			ID: pod.ContainerID(fmt.Sprintf("%s-%d", st.Name, pass)), SandboxID: s.Sandboxes[0].ID, Name: st.Name, State: pod.StateRunning,
			Hash: lifecycle.ContainerHash(findSpec(in.Pod, st.Name)),
		}
		if isPlainInit(in.Pod, st.Name) {
			cs.State, cs.FinishedAt = pod.StateExited, t0
		}
		s.Containers = append([]pod.ContainerStatus{cs}, s.Containers...)
	}
}

func cloneStatus(s *pod.Status) *pod.Status {
	c := *s
	c.Sandboxes, c.Containers = slices.Clone(s.Sandboxes), slices.Clone(s.Containers)
	return &c
}

// randomInput makes a pod of up to seven containers and something that a runtime could show of it.
func randomInput(rng *rand.Rand) planInput {
	pick := func(n int) bool { return rng.IntN(n) == 0 }
	p := &v1.Pod{}
	p.Name, p.Namespace, p.UID = "web", "default", "u1"
	p.Spec.RestartPolicy = []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}[rng.IntN(3)]
	p.Spec.HostNetwork = pick(8)
	if pick(20) {
		p.DeletionTimestamp = &metav1.Time{Time: t0}
	}
	for i := range rng.IntN(4) {
		c := randomContainer(rng, fmt.Sprintf("i%d", i))
		if pick(2) {
			c.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for i := range 1 + rng.IntN(3) {
		p.Spec.Containers = append(p.Spec.Containers, randomContainer(rng, fmt.Sprintf("c%d", i)))
	}
	if pick(4) {
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e0", Image: testImage}}}
	}
	in := planInput{
		Pod: p, Observed: &pod.Status{UID: p.UID}, Holds: map[string]lifecycle.Hold{}, Failed: map[string]creationFailure{},
		Probes: pod.ProbeVerdicts{Liveness: map[pod.ContainerID]pod.ProbeVerdict{}, Startup: map[pod.ContainerID]pod.ProbeVerdict{}},
	}
	for _, name := range append(slices.Sorted(maps.Keys(startOrder(p))), "") {
		if pick(8) {
			in.Failed[name] = creationFailure{Until: t0.Add(10 * time.Second)}
		}
	}
	n := rng.IntN(4)
	for i := range n {
		sb := pod.SandboxStatus{ID: pod.SandboxID(fmt.Sprintf("s%d", i)), Attempt: uint32(n - i), HostNetwork: pick(8)}
		sb.Ready = (i == 0 && !pick(4)) || pick(20)
		if !sb.HostNetwork && !pick(20) {
			sb.IPs = []string{"10.0.0.1"}
		}
		in.Observed.Sandboxes = append(in.Observed.Sandboxes, sb)
	}
	if n > 0 {
		for _, name := range slices.Sorted(maps.Keys(startOrder(p))) {
			randomIncarnations(rng, &in, name)
		}
		slices.SortFunc(in.Observed.Containers, func(a, b pod.ContainerStatus) int { return b.CreatedAt.Compare(a.CreatedAt) })
	}
	return in
}

func randomContainer(rng *rand.Rand, name string) v1.Container {
	c := v1.Container{Name: name, Image: testImage}
	if rng.IntN(3) == 0 {
		c.StartupProbe, c.LivenessProbe = &v1.Probe{}, &v1.Probe{}
	}
	if rng.IntN(4) == 0 {
		c.RestartPolicy = new([]v1.ContainerRestartPolicy{"Never", "OnFailure", "Always"}[rng.IntN(3)])
		if rng.IntN(2) == 0 {
			c.RestartPolicyRules = []v1.ContainerRestartRule{{
				Action:    []v1.ContainerRestartRuleAction{v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers}[rng.IntN(2)],
				ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{2}},
			}}
		}
	}
	return c
}

func randomIncarnations(rng *rand.Rand, in *planInput, name string) {
	for i := range rng.IntN(3) {
		cs := pod.ContainerStatus{
			ID: pod.ContainerID(fmt.Sprintf("%s.%d", name, i)), Name: name, SandboxID: in.Observed.Sandboxes[rng.IntN(len(in.Observed.Sandboxes))].ID,
			CreatedAt: t0.Add(-time.Duration(rng.IntN(1e9))), Hash: lifecycle.ContainerHash(findSpec(in.Pod, name)),
		}
		switch rng.IntN(10) {
		case 0:
			cs.State = pod.StateUnknown
		case 1:
			cs.State = pod.StateCreated
		case 2, 3, 4, 5:
			cs.State = pod.StateRunning
		default:
			cs.State, cs.ExitCode, cs.FinishedAt = pod.StateExited, int32(rng.IntN(3)), t0
		}
		if rng.IntN(10) == 0 {
			cs.Hash = "0"
		}
		in.Probes.Liveness[cs.ID] = pod.ProbeVerdict(rng.IntN(3))
		in.Probes.Startup[cs.ID] = pod.ProbeVerdict(rng.IntN(3))
		in.Observed.Containers = append(in.Observed.Containers, cs)
	}
	if rng.IntN(6) == 0 {
		in.Holds[name] = lifecycle.Hold{Until: t0.Add(time.Minute), Delay: time.Minute}
	}
}
