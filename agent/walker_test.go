package agent_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/agenttest"
	"berth/internal/pod"
	"berth/internal/runtime/cri/critest"
)

// walker is one walk: what it does to the world, and what it remembers for the rules.
type walker struct {
	*agenttest.World
	random *rand.Rand
	steps  []string // what was done, for the report

	agentUp, runtimeUp bool
	toggled            time.Time              // when the agent or the runtime last came or went
	apiTrouble         time.Time              // when connections to the API server last began or ended
	apiUp              bool                   // or there is none
	sick               sync.Map               // of pod and kind of probe: it fails
	versions           int                    // pods written
	wanted             map[string]*walkPod    // by pod name
	dismissed          map[string]time.Time   // by UID: since when nobody wants the pod
	restarts           map[string]int32       // by UID and container: the highest restart count shown
	attempts           map[string]uint32      // by UID and container: the newest incarnation
	ended              map[string]v1.PodPhase // by UID: the terminal phase shown
	resizes            map[pod.UID]int        // by UID: that were asked for since none was under way
}

func newWalker(world *agenttest.World, seed uint64) *walker {
	w := &walker{
		World: world, random: rand.New(rand.NewPCG(seed, 0)), agentUp: true, runtimeUp: true, apiUp: true,
		wanted: map[string]*walkPod{}, dismissed: map[string]time.Time{}, restarts: map[string]int32{}, attempts: map[string]uint32{},
		ended: map[string]v1.PodPhase{}, resizes: map[pod.UID]int{},
	}
	w.Runtime.Programs.SetFunc(w.wellBehaved)
	return w
}

func (w *walker) say(format string, args ...any) {
	w.steps = append(w.steps, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// step does one thing.
func (w *walker) step() {
	switch n := w.random.IntN(100); {
	case n < 15:
		w.writePod()
	case n < 22:
		w.removePod()
	case n < 42:
		w.endContainer()
	case n < 57:
		w.program()
	case n < 62:
		w.killSandbox()
	case n < 72:
		w.fault()
	case n < 76:
		w.toggleRuntime()
	case n < 81:
		w.toggleAgent()
	case n < 82:
		w.troubleEvents()
	case n < 87:
		w.sicken()
	case n < 90 && w.API != nil:
		w.troubleAPI()
	case n < 97 && w.API != nil:
		w.resize()
	default:
		d := time.Duration(1+w.random.IntN(120)) * time.Second
		w.say("wait %v", d)
		w.Settle(d)
	}
}

func (w *walker) endContainer() {
	running := slices.DeleteFunc(w.Runtime.Containers(), func(c critest.Container) bool { return c.State != runtimeapi.ContainerState_CONTAINER_RUNNING })
	if len(running) == 0 {
		return
	}
	c, code := running[w.random.IntN(len(running))], []int32{0, 0, 1, 137, restartOnCode}[w.random.IntN(5)]
	w.say("%s/%s exits with %d", c.Pod.GetName(), c.Name, code)
	if err := w.Runtime.Kill(c.ID, code); err != nil {
		w.T.Error(err)
	}
}

func (w *walker) program() {
	ref := w.shownAs(w.name()) + "/" + walkContainers[w.random.IntN(len(walkContainers))]
	p := []critest.Program{
		critest.ExitsAfter(time.Duration(w.random.IntN(20))*time.Second, int32(w.random.IntN(3))),
		critest.ExitsAfter(0, 0),
		critest.FailsToStart("no such file"),
		{IgnoresStop: true},
		{StopDelay: time.Duration(w.random.IntN(10)) * time.Second, StopCode: 3},
	}[w.random.IntN(5)]
	w.say("program of %s: %+v", ref, p)
	w.Runtime.Programs.Set(ref, w.answering(p))
}

func (w *walker) killSandbox() {
	ready := slices.DeleteFunc(w.Runtime.Sandboxes(), func(sb critest.Sandbox) bool { return !sb.Ready })
	if len(ready) == 0 {
		return
	}
	sb := ready[w.random.IntN(len(ready))]
	w.say("the sandbox of %s dies", sb.Metadata.GetName())
	for name, p := range w.wanted {
		if w.shownAs(name) == sb.Metadata.GetName() && p.policy == v1.RestartPolicyNever {
			p.lost = true
		}
	}
	if err := w.Runtime.KillSandbox(sb.ID); err != nil {
		w.T.Error(err)
	}
}

// walkMethods are the calls that faults hit.
var walkMethods = []string{
	"RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "PodSandboxStatus", "ListPodSandbox", "CreateContainer", "StartContainer", "StopContainer",
	"RemoveContainer", "ContainerStatus", "ListContainers", "ImageStatus", "UpdateContainerResources",
}

// fault lets calls fail, before their work or after it.
func (w *walker) fault() {
	f := critest.Fault{
		Method: walkMethods[w.random.IntN(len(walkMethods))], Skip: w.random.IntN(3), Times: 1 + w.random.IntN(3), AfterWork: w.random.IntN(2) == 0,
		Err: status.Error([]codes.Code{codes.Unknown, codes.Unavailable, codes.DeadlineExceeded, codes.Internal}[w.random.IntN(4)], "as the walk has it"),
	}
	w.say("%s fails, %d times after %d, after its work: %v, with %v", f.Method, f.Times, f.Skip, f.AfterWork, f.Err)
	w.Runtime.Calls.Inject(f)
}

func (w *walker) toggleRuntime() {
	w.toggled = time.Now()
	if w.runtimeUp {
		w.say("runtime down")
		w.Runtime.Down()
	} else {
		w.say("runtime up")
		if err := w.Runtime.Serve(); err != nil {
			w.T.Error(err)
		}
	}
	w.runtimeUp = !w.runtimeUp
}

func (w *walker) toggleAgent() {
	w.toggled, w.apiTrouble = time.Now(), time.Now()
	if w.agentUp {
		w.say("agent stop")
		w.StopAgent()
	} else {
		w.say("agent start")
		w.StartAgent()
	}
	w.agentUp = !w.agentUp
}

// troubleAPI takes the API server away, or brings it back, or breaks its connections.
func (w *walker) troubleAPI() {
	w.apiTrouble = time.Now()
	switch {
	case !w.apiUp:
		w.say("API server up")
		w.API.Start()
		w.apiUp = true
	case w.random.IntN(2) == 0:
		w.say("API server down")
		w.API.Stop()
		w.apiUp = false
	default:
		w.say("connections to the API server break")
		w.API.BreakWatches()
	}
}

// troubleEvents lets events get lost, doubled, late or out of order from now on, or come as they
// should.
func (w *walker) troubleEvents() {
	kinds := map[int]string{0: "in order", 1: "lost", 2: "doubled", 3: "late", 4: "in any order"}
	n := w.random.IntN(len(kinds))
	w.say("events come %s", kinds[n])
	w.Runtime.Events.SetScript([]critest.EventScript{
		nil, critest.LosesEvery(2), critest.DoublesAll(3 * time.Second), critest.DelaysAll(30 * time.Second), critest.Shuffles(rand.New(rand.NewPCG(w.random.Uint64(), 0)), 30*time.Second),
	}[n])
}

// recover ends all that is wrong with the world, and waits until that has had its effect.
func (w *walker) recover() {
	w.say("all is well")
	for name := range w.wanted {
		w.shrink(name)
	}
	w.Runtime.Calls.ClearFaults()
	w.Runtime.Events.SetScript(nil)
	w.sick.Clear()
	if !w.apiUp {
		w.troubleAPI()
	}
	for i := range walkPods {
		for _, c := range walkContainers {
			w.Runtime.Programs.Set(w.shownAs(fmt.Sprintf("p%d", i))+"/"+c, w.answering(goodProgram(c)))
		}
	}
	if !w.runtimeUp {
		w.toggleRuntime()
	}
	if !w.agentUp {
		w.toggleAgent()
	}
	w.Settle(30 * time.Minute)
	for _, c := range w.Runtime.Containers() {
		if isInit(c.Name) && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING { // of the program that it had when it was started
			if err := w.Runtime.Kill(c.ID, 0); err != nil {
				w.T.Error(err)
			}
		}
	}
	w.Settle(30 * time.Minute)
}
