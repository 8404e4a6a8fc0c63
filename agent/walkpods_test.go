package agent_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/agenttest"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/runtime/cri/critest"
)

const walkPods = 4 // names of pods

// walkContainers are the names that containers of the walk's pods have.
var walkContainers = []string{"init-1", "init-2", "side", "a", "b"}

func isInit(container string) bool { return container == "init-1" || container == "init-2" }

// walkPod is a pod of the walk.
type walkPod struct {
	version    int
	policy     v1.RestartPolicy
	inits      []string
	sidecar    bool
	containers []string
	grace      int64 // seconds
	// probes are the probes that container a has, and that tell it by its exit code.
	liveness, readiness, startup bool
	// rule gives container b a policy of its own: Never, but for the exit code 42.
	rule bool
	// sizes are those of the containers that have one; restarts says that container b is restarted
	// when its memory is resized.
	sizes    map[string]size
	restarts bool
	// lost says that a sandbox of it died and it gets no other, by its policy Never: what had not
	// started by then never will.
	lost bool
}

// restartOnCode is the exit code with which a container of a rule is restarted.
const restartOnCode = 42

// named returns the pod's manifest.
func (p *walkPod) named(name string) *v1.Pod {
	always, never := v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyNever
	out := &v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: v1.NamespaceDefault, Labels: map[string]string{"version": strconv.Itoa(p.version)}},
		Spec:       v1.PodSpec{RestartPolicy: p.policy, TerminationGracePeriodSeconds: &p.grace},
	}
	if p.sidecar {
		out.Spec.InitContainers = append(out.Spec.InitContainers, v1.Container{Name: "side", Image: agenttest.Image, RestartPolicy: &always})
	}
	for _, c := range p.inits {
		out.Spec.InitContainers = append(out.Spec.InitContainers, v1.Container{Name: c, Image: agenttest.Image})
	}
	for i := range out.Spec.InitContainers {
		c := &out.Spec.InitContainers[i]
		c.Resources = p.sizes[c.Name].resources()
	}
	probe := func(wanted bool, kind string) *v1.Probe {
		if !wanted {
			return nil
		}
		return &v1.Probe{
			ProbeHandler:  v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"probe", name, kind}}},
			PeriodSeconds: 3, FailureThreshold: 2, TimeoutSeconds: 1,
		}
	}
	for _, name := range p.containers {
		c := v1.Container{Name: name, Image: agenttest.Image, Resources: p.sizes[name].resources()}
		if name == "b" && p.restarts {
			c.ResizePolicy = []v1.ContainerResizePolicy{{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}
		}
		if name == "a" {
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = probe(p.liveness, "liveness"), probe(p.readiness, "readiness"), probe(p.startup, "startup")
		}
		if name == "b" && p.rule {
			c.RestartPolicy = &never
			c.RestartPolicyRules = []v1.ContainerRestartRule{{
				Action:    v1.ContainerRestartRuleActionRestart,
				ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{restartOnCode}},
			}}
		}
		out.Spec.Containers = append(out.Spec.Containers, c)
	}
	return out
}

// mayStay reports whether a container that ended with the code may stay ended.
func (p *walkPod) mayStay(container string, code int32) bool {
	policy := p.policy
	if container == "b" && p.rule {
		if code == restartOnCode {
			return false
		}
		policy = v1.RestartPolicyNever
	}
	return policy == v1.RestartPolicyNever || policy == v1.RestartPolicyOnFailure && code == 0
}

func (w *walker) name() string { return "p" + strconv.Itoa(w.random.IntN(walkPods)) }

// fromAPI reports whether the pod of this name comes from the API server; the others come from
// files.
func (w *walker) fromAPI(name string) bool { return w.API != nil && (name == "p2" || name == "p3") }

// shownAs is the name under which the agent shows the pod.
func (w *walker) shownAs(name string) string {
	if w.API != nil && !w.fromAPI(name) {
		return name + "-" + agenttest.NodeName
	}
	return name
}

func (w *walker) writePod() {
	name := w.name()
	chance := func() bool { return w.random.IntN(3) == 0 }
	p := &walkPod{
		policy:     []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}[w.random.IntN(3)],
		inits:      []string{"init-1", "init-2"}[:w.random.IntN(3)],
		sidecar:    chance(),
		containers: []string{"a", "b"}[:1+w.random.IntN(2)],
		grace:      []int64{1, 5, 30}[w.random.IntN(3)],
		liveness:   chance(), readiness: chance(), startup: chance(), rule: chance(),
	}
	w.versions++
	p.version = w.versions // so that no pod is like one before: it would be the same pod
	if w.fromAPI(name) {
		if _, there := kubetest.Get[*v1.Pod](w.API, v1.NamespaceDefault, name); there {
			return // a name is free when its pod is gone
		}
		p.sizes, p.restarts = map[string]size{}, chance()
		for _, c := range walkContainers {
			p.sizes[c] = w.size()
		}
		w.wanted[name] = p
		w.say("create %s: %+v", name, *p)
		pod := p.named(name)
		pod.Spec.NodeName = agenttest.NodeName
		kubetest.Put(w.API, pod)
		w.Settle(0)
		return
	}
	w.dismiss(w.shownAs(name))
	w.wanted[name] = p
	w.say("write %s: %+v", name, *p)
	content, err := json.Marshal(p.named(name))
	if err != nil {
		w.T.Fatal(err)
	}
	w.Write(name+".yaml", content)
}

func (w *walker) removePod() {
	name := w.name()
	if w.wanted[name] == nil {
		return
	}
	delete(w.wanted, name)
	if !w.fromAPI(name) {
		w.dismiss(w.shownAs(name))
		w.say("remove %s", name)
		w.Remove(name + ".yaml")
		return
	}
	if w.apiUp && w.agentUp && time.Since(w.apiTrouble) > 2*time.Minute { // else the agent may not hear of it yet
		w.dismiss(name)
	}
	o := metav1.DeleteOptions{}
	if w.random.IntN(2) == 0 {
		grace := []int64{0, 2}[w.random.IntN(2)]
		o.GracePeriodSeconds = &grace
		w.say("delete %s within %d s", name, grace)
	} else {
		w.say("delete %s", name)
	}
	kubetest.Delete[*v1.Pod](w.API, v1.NamespaceDefault, name, o)
	w.Settle(0)
}

// dismiss notes that whoever has the name in the runtime now is not wanted any more.
func (w *walker) dismiss(name string) {
	for _, sb := range w.Runtime.Sandboxes() {
		uid := sb.Metadata.GetUid()
		if _, already := w.dismissed[uid]; sb.Metadata.GetName() == name && !already {
			w.dismissed[uid] = time.Now()
		}
	}
}

// wellBehaved is what containers do of which nothing else is said: init containers end, the others
// run.
func (w *walker) wellBehaved(c *runtimeapi.ContainerConfig) (critest.Program, bool) {
	return w.answering(goodProgram(c.GetMetadata().GetName())), true
}

func goodProgram(container string) critest.Program {
	if isInit(container) {
		return critest.ExitsAfter(100*time.Millisecond, 0)
	}
	return critest.Forever()
}

// answering is the program with an answer to probes: that of the pod's probe of that kind.
func (w *walker) answering(p critest.Program) critest.Program {
	p.Exec = func(command []string) critest.ExecResult {
		if _, sick := w.sick.Load(fmt.Sprint(command[1:])); sick {
			return critest.ExecResult{ExitCode: 1, Stdout: "sick"}
		}
		return critest.ExecResult{}
	}
	return p
}

// sicken has probes of one kind find a pod sick, or well again.
func (w *walker) sicken() {
	name := w.shownAs(w.name())
	key := fmt.Sprint([]string{name, []string{"liveness", "readiness", "startup"}[w.random.IntN(3)]})
	if _, sick := w.sick.LoadAndDelete(key); sick {
		w.say("well again: %s", key)
		return
	}
	w.say("sick: %s", key)
	w.sick.Store(key, true)
}
