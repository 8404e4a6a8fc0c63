package agent_test

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/agenttest"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/runtime/cri/critest"
)

// struckLives are the lives of pods, part by part. After each part everything comes to rest.
var struckLives = map[string][]func(*struckWorld){
	"a server": {
		func(w *struckWorld) { w.create(serverPod()) },
		func(w *struckWorld) {
			if err := w.Runtime.Kill("default/web/main", 3); err != nil {
				w.T.Error(err)
			}
		},
		(*struckWorld).delete,
		(*struckWorld).release,
	},
	"a job": {
		func(w *struckWorld) { w.create(jobPod()) },
		(*struckWorld).delete,
		(*struckWorld).release,
	},
	"a pod that is deleted during its start": {
		func(w *struckWorld) { w.create(waitingPod()) },
		(*struckWorld).delete,
		(*struckWorld).release,
	},
	"a static pod": {
		func(w *struckWorld) { w.Write("web.yaml", []byte(staticManifest)) },
		func(w *struckWorld) { w.Remove("web.yaml") },
	},
	// One is an image, the other one goes with the pod: the cluster makes a claim of the pod's own,
	// a volume for it, and attaches that.
	"a pod with volumes of its own": {
		func(w *struckWorld) { w.create(ownVolumesPod()) },
		(*struckWorld).makeClaim,
		(*struckWorld).bindClaim,
		(*struckWorld).attach,
		(*struckWorld).delete,
		(*struckWorld).release,
	},
	"a pod with devices": {
		func(w *struckWorld) {
			w.pluginFirst = true
			w.create(devicesPod())
		},
		func(w *struckWorld) {
			if err := w.Runtime.Kill("default/web/main", 3); err != nil {
				w.T.Error(err)
			}
		},
		(*struckWorld).delete,
		(*struckWorld).release,
	},
}

// An agent that is killed at any call that it makes for a pod, of the runtime, of the API server,
// of the CSI driver or of the device plugin, before the call or when it is done, leaves nothing
// that the next one does not bring to the end to which it would have come: no container is started
// twice, no status is lost, nothing is left or stays mounted.
func TestAgentKilledAtEachStep(t *testing.T) {
	strikeEverywhere(t, []agenttest.Door{agenttest.ToRuntime, agenttest.ToAPI, agenttest.ToDriver, agenttest.ToDevices}, (*agenttest.World).KillAgentAt, (*agenttest.World).ReplaceKilled)
}

// An API server that goes away for a minute, at any request that is made for a pod, delays what is
// said of it, and nothing else.
func TestAPILostAtEachStep(t *testing.T) {
	strikeEverywhere(t, []agenttest.Door{agenttest.ToAPI}, (*agenttest.World).LoseAPIAt, func(w *agenttest.World) {
		w.Settle(time.Minute)
		w.API.Start()
	})
}

func strikeEverywhere(t *testing.T, doors []agenttest.Door, arm func(*agenttest.World, agenttest.Step), heal func(*agenttest.World)) {
	for name, parts := range struckLives {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var want []string
			tries, struck := 0, 0
			steps := map[agenttest.Door]int{}
			synctest.Test(t, func(t *testing.T) {
				w := newStruckWorld(t)
				want = w.live(parts, heal)
				for _, door := range doors {
					steps[door] = w.Steps(door)
				}
			})
			for _, door := range doors {
				least := 10
				if door == agenttest.ToDriver { // it is asked what it can, to stage, publish, what it can, to unpublish, what it can, to unstage
					least = 7
				}
				if door == agenttest.ToDevices { // it is asked to allocate for two containers, and before three starts
					least = 5
				}
				if steps[door] < least && (door != agenttest.ToDevices || name == "a pod with devices") && (door != agenttest.ToDriver || name == "a pod with volumes of its own") {
					t.Errorf("an agent makes only %d calls of %s", steps[door], door)
				}
				for _, step := range strikes(door, steps[door]) {
					t.Run(fmt.Sprintf("%s call %d of %s", step.Moment, step.Nth, door), func(t *testing.T) {
						tries++
						synctest.Test(t, func(t *testing.T) {
							w := newStruckWorld(t)
							arm(w.World, step)
							for i, got := range w.live(parts, heal) {
								if diff := gocmp.Diff(want[i], got); diff != "" {
									t.Errorf("struck %s: part %d (-as without +as it is):\n%s", w.struck, i+1, diff)
								}
							}
							if w.hooks > 1 {
								t.Errorf("struck %s: the preStop hook ran %d times", w.struck, w.hooks)
							}
							if w.struck != "" {
								struck++
							}
						})
					})
				}
			}
			// How many calls there are varies a little from life to life.
			if struck < tries*3/4 {
				t.Errorf("%d strikes of %d struck", struck, tries)
			}
		})
	}
}

// strikes are the steps at which a life with so many calls is struck: at each call, before it and
// after it in turns, of the few of the driver both. With BERTH_STRIKES=all it is both at each.
func strikes(door agenttest.Door, calls int) []agenttest.Step {
	var out []agenttest.Step
	for nth := 1; nth <= calls; nth++ {
		for i, moment := range []agenttest.Moment{agenttest.BeforeCall, agenttest.AfterCall} {
			if i == nth%2 || door == agenttest.ToDriver || door == agenttest.ToDevices || os.Getenv("BERTH_STRIKES") == "all" {
				out = append(out, agenttest.Step{Door: door, Nth: nth, Moment: moment})
			}
		}
	}
	return out
}

// struckWorld is a world in which a life is lived.
type struckWorld struct {
	*agenttest.World
	struck string
	// pluginFirst: the device plugin is there before the next agent learns of pods. One that no
	// agent has admitted would be refused.
	pluginFirst bool

	mu     sync.Mutex
	starts map[string]int // guarded by mu; by container
	hooks  int            // guarded by mu; runs of the preStop hook
}

func newStruckWorld(t *testing.T) *struckWorld {
	w := &struckWorld{World: agenttest.New(t), starts: map[string]int{}}
	w.AddDriver(driverName)
	w.AddDevicePlugin(deviceName, 3)
	w.Join()
	kubetest.Put(w.API, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}})
	w.Runtime.Images.AddToRegistry(critest.RegistryImage{Image: critest.Image{Name: agenttest.Image}, Latency: 10 * time.Millisecond})
	w.Runtime.Programs.SetFunc(w.program)
	w.Settle(10 * time.Second)
	w.Runtime.Calls.Reset()
	w.API.ForgetRequests()
	return w
}

// program counts the starts of containers. Init containers and jobs end soon.
func (w *struckWorld) program(c *runtimeapi.ContainerConfig) (critest.Program, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := c.GetMetadata().GetName()
	w.starts[name]++
	switch name {
	case "init":
		return critest.ExitsAfter(100*time.Millisecond, 0), true
	case "job":
		return critest.ExitsAfter(2*time.Second, 0), true
	}
	return critest.Program{StopDelay: time.Second, StopCode: 7, Exec: w.exec}, true
}

// exec answers probes, and counts hooks.
func (w *struckWorld) exec(command []string) critest.ExecResult {
	w.mu.Lock()
	defer w.mu.Unlock()
	if command[0] == "bye" {
		w.hooks++
	}
	return critest.ExecResult{}
}

// live lives a life, and returns how the world was after each part.
func (w *struckWorld) live(parts []func(*struckWorld), heal func(*agenttest.World)) []string {
	var seen []string
	for _, part := range parts {
		part(w)
		w.Settle(20 * time.Second)
		if where := w.Struck(); where != w.struck {
			w.struck = where
			if w.pluginFirst {
				w.API.Stop()
			}
			heal(w.World)
			w.Settle(time.Second)
			w.API.Start()
			w.Settle(time.Minute)
		}
		seen = append(seen, w.describe())
	}
	return seen
}

func (w *struckWorld) create(p *v1.Pod) { kubetest.Put(w.API, p) }

func (w *struckWorld) delete() {
	if !kubetest.Delete[*v1.Pod](w.API, v1.NamespaceDefault, "web", metav1.DeleteOptions{}) {
		w.T.Error("there is no pod to delete")
	}
}

// release lets a deleted pod go that its finalizer keeps.
func (w *struckWorld) release() {
	p, ok := kubetest.Get[*v1.Pod](w.API, v1.NamespaceDefault, "web")
	if !ok || !isDoneWith(p) {
		w.T.Errorf("struck %s: the agent has not said that it is done with the deleted pod: %+v", w.struck, p)
	}
	kubetest.Remove[*v1.Pod](w.API, v1.NamespaceDefault, "web")
}

// makeClaim does what the cluster does for a pod with a volume of its own: there is a claim, and
// nothing for it.
func (w *struckWorld) makeClaim() {
	p, _ := kubetest.Get[*v1.Pod](w.API, v1.NamespaceDefault, "web")
	kubetest.Put(w.API, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-own", Namespace: v1.NamespaceDefault, UID: "claim", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p, v1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec:   p.Spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Spec,
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	})
}

// bindClaim makes a volume for the claim.
func (w *struckWorld) bindClaim() {
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	kubetest.Put(w.API, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: v1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, ClaimRef: &v1.ObjectReference{Namespace: v1.NamespaceDefault, Name: "web-own", UID: "claim"},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "handle"}},
		},
	})
	claim, _ := kubetest.Get[*v1.PersistentVolumeClaim](w.API, v1.NamespaceDefault, "web-own")
	claim.Spec.VolumeName, claim.Status.Phase, claim.Status.Capacity = "pv", v1.ClaimBound, size
	kubetest.Put(w.API, claim)
}

// attach attaches the volume, as long as the Node says that it is in use.
func (w *struckWorld) attach() {
	const volume = v1.UniqueVolumeName("kubernetes.io/csi/" + driverName + "^handle")
	node, _ := kubetest.Get[*v1.Node](w.API, "", agenttest.NodeName)
	if !slices.Contains(node.Status.VolumesInUse, volume) {
		w.T.Errorf("struck %s: in use are %v", w.struck, node.Status.VolumesInUse)
	}
	pv := "pv"
	kubetest.Put(w.API, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("csi-%x", sha256.Sum256([]byte("handle"+driverName+agenttest.NodeName)))},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: agenttest.NodeName, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true},
	})
	node.Status.VolumesAttached = []v1.AttachedVolume{{Name: volume}}
	kubetest.Put(w.API, node)
}

// isDoneWith reports whether the agent has said that it has no more use for the deleted pod.
func isDoneWith(p *v1.Pod) bool {
	return p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
}

// describe tells of the world what does not depend on time.
func (w *struckWorld) describe() string {
	var b strings.Builder
	for _, p := range kubetest.List[*v1.Pod](w.API) {
		fmt.Fprintf(&b, "pod %s %s %s %s at %d, started %v, deleted %v, done with %v\n", p.Name, p.Status.Phase, p.Status.Reason, p.Status.Message,
			p.Status.ObservedGeneration, p.Status.StartTime != nil, p.DeletionTimestamp != nil, isDoneWith(p))
		for _, c := range p.Status.Conditions {
			fmt.Fprintf(&b, "  %s %s %s %s at %d\n", c.Type, c.Status, c.Reason, c.Message, c.ObservedGeneration)
		}
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			fmt.Fprintf(&b, "  container %s: ready %v, started %v, restarts %d, %s, before %s\n", c.Name, c.Ready, c.Started != nil && *c.Started, c.RestartCount,
				describeState(c.State), describeState(c.LastTerminationState))
		}
	}
	for _, p := range w.Agent.Handlers().Pods.List() {
		fmt.Fprintf(&b, "the agent has %s %s\n", p.Name, p.Status.Phase)
	}
	w.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(w.starts)) {
		fmt.Fprintf(&b, "%s was started %d times\n", name, w.starts[name])
	}
	w.mu.Unlock()
	fmt.Fprintf(&b, "%d sandboxes, %d cgroups\n", len(w.Runtime.Sandboxes()), w.Cgroups.Len())
	containers := w.Runtime.Containers()
	slices.SortFunc(containers, func(a, b critest.Container) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), int(a.Attempt)-int(b.Attempt))
	})
	for _, c := range containers {
		fmt.Fprintf(&b, "container %s %d is %s", c.Name, c.Attempt, c.State)
		for _, m := range c.Config.Mounts {
			fmt.Fprintf(&b, ", %s of %s", m.ContainerPath, cmp.Or(m.GetImage().GetImage(), "the host"))
		}
		for _, d := range c.Config.Devices {
			fmt.Fprintf(&b, ", %s", d.ContainerPath)
		}
		fmt.Fprintln(&b)
	}
	fmt.Fprintf(&b, "%d containers have devices by the file\n", w.devicesInFile())
	node, _ := kubetest.Get[*v1.Node](w.API, "", agenttest.NodeName)
	fmt.Fprintf(&b, "%d mounts, in use %v\n", w.Mounted(), node.Status.VolumesInUse)
	for _, dir := range []string{"root/pods", "root/plugins/kubernetes.io/csi/*", "logs"} {
		left, err := filepath.Glob(filepath.Join(filepath.Dir(w.Manifests), dir, "*"))
		fmt.Fprintf(&b, "%d in %s, %v\n", len(left), dir, err)
	}
	return b.String()
}

func describeState(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("ended %d %s %s", s.Terminated.ExitCode, s.Terminated.Reason, s.Terminated.Message)
	case s.Waiting != nil:
		return fmt.Sprintf("waiting %s %s", s.Waiting.Reason, s.Waiting.Message)
	}
	return "unknown"
}
