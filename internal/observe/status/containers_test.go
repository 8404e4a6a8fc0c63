package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
)

// containerView is what the table of container states compares.
type containerView struct {
	State, Last v1.ContainerState
	Restarts    int32
	ID          string
	Ready       bool
	Started     bool
}

func view(cs v1.ContainerStatus) containerView {
	return containerView{
		State: cs.State, Last: cs.LastTerminationState, Restarts: cs.RestartCount, ID: cs.ContainerID,
		Ready: cs.Ready, Started: cs.Started != nil && *cs.Started,
	}
}

func oldApp(cs v1.ContainerStatus) func(*Input) {
	cs.Name = "app"
	return after(v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{cs}})
}

func lostEnd(n uint32, message string) v1.ContainerState {
	return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{
		Reason: "ContainerStatusUnknown", ExitCode: 137, Message: message, StartedAt: at(int(n)*100 + 1), ContainerID: apiID("app", n),
	}}
}

func TestContainerState(t *testing.T) {
	const lostRunning = "The container could not be located when the pod was deleted.  The container used to be Running"
	const lostEnding = "The container could not be located when the pod was terminated"
	crash := startError("app", lifecycle.CrashLoopBackOff, "back-off 10s")
	crashState := v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}}
	for _, tt := range []struct {
		name     string
		pod      *v1.Pod
		observed []pod.ContainerStatus
		change   []func(*Input)
		want     containerView
	}{
		{name: "never seen", want: containerView{State: waitingFor("ContainerCreating")}},
		{name: "never seen, with init containers", pod: newPod(withInit(containers("init")...)), want: containerView{State: waitingFor("PodInitializing")}},
		{
			name: "image cannot be pulled", change: []func(*Input){startError("app", lifecycle.ErrImagePull, "no such host")},
			want: containerView{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such host"}}},
		},
		{
			name: "image cannot be pulled and the pod is deleted", pod: newPod(deleted), change: []func(*Input){startError("app", lifecycle.ErrImagePull, "no such host")},
			want: containerView{State: waitingFor("ContainerCreating")},
		},
		{
			name: "created", observed: []pod.ContainerStatus{seen("app", 0, pod.StateCreated)},
			want: containerView{State: waitingFor(""), ID: apiID("app", 0)},
		},
		{
			name: "running", observed: []pod.ContainerStatus{seen("app", 0, pod.StateRunning)},
			want: containerView{State: runningSince(0), ID: apiID("app", 0), Ready: true, Started: true},
		},
		{
			name: "exited", observed: []pod.ContainerStatus{seenExited("app", 0, 3)},
			want: containerView{State: endOf("app", 0, 3), ID: apiID("app", 0)},
		},
		{
			name: "running again", observed: []pod.ContainerStatus{seen("app", 1, pod.StateRunning), seenExited("app", 0, 3)},
			want: containerView{State: runningSince(1), Last: endOf("app", 0, 3), Restarts: 1, ID: apiID("app", 1), Ready: true, Started: true},
		},
		{
			name: "only the newest two count", observed: []pod.ContainerStatus{seenExited("app", 2, 5), seenExited("app", 1, 4), seenExited("app", 0, 3)},
			want: containerView{State: endOf("app", 2, 5), Last: endOf("app", 1, 4), Restarts: 2, ID: apiID("app", 2)},
		},
		{
			name: "running again, the end before is only in the old status", observed: []pod.ContainerStatus{seen("app", 1, pod.StateRunning)},
			change: []func(*Input){oldApp(v1.ContainerStatus{State: endOf("app", 0, 3), ContainerID: apiID("app", 0)})},
			want:   containerView{State: runningSince(1), Last: endOf("app", 0, 3), Restarts: 1, ID: apiID("app", 1), Ready: true, Started: true},
		},
		{
			name: "still running, the end before is only in the old status", observed: []pod.ContainerStatus{seen("app", 1, pod.StateRunning)},
			change: []func(*Input){oldApp(v1.ContainerStatus{State: runningSince(1), LastTerminationState: endOf("app", 0, 3), ContainerID: apiID("app", 1)})},
			want:   containerView{State: runningSince(1), Last: endOf("app", 0, 3), Restarts: 1, ID: apiID("app", 1), Ready: true, Started: true},
		},
		{
			name: "old restart count is higher", observed: []pod.ContainerStatus{seen("app", 1, pod.StateRunning)},
			change: []func(*Input){oldApp(v1.ContainerStatus{State: runningSince(1), RestartCount: 7})},
			want:   containerView{State: runningSince(1), Restarts: 7, ID: apiID("app", 1), Ready: true, Started: true},
		},
		{
			name: "crash loop", observed: []pod.ContainerStatus{seenExited("app", 1, 3), seenExited("app", 0, 2)}, change: []func(*Input){crash},
			want: containerView{State: crashState, Last: endOf("app", 1, 3), Restarts: 1, ID: apiID("app", 1)},
		},
		{
			name: "crash loop is over before the restart", observed: []pod.ContainerStatus{seenExited("app", 1, 3)},
			change: []func(*Input){oldApp(v1.ContainerStatus{State: crashState, LastTerminationState: endOf("app", 1, 3), RestartCount: 1, ContainerID: apiID("app", 1)})},
			want:   containerView{State: endOf("app", 1, 3), Restarts: 1, ID: apiID("app", 1)},
		},
		{
			name: "crash loop of a container that was removed",
			change: []func(*Input){
				oldApp(v1.ContainerStatus{State: endOf("app", 1, 3), RestartCount: 1, ContainerID: apiID("app", 1)}), crash,
			},
			want: containerView{State: crashState, Last: endOf("app", 1, 3), Restarts: 1},
		},
		{
			name: "an old start error of a running container", observed: []pod.ContainerStatus{seen("app", 1, pod.StateRunning)}, change: []func(*Input){crash},
			want: containerView{State: runningSince(1), Restarts: 1, ID: apiID("app", 1), Ready: true, Started: true},
		},
		{
			name: "start error of a container that must not be restarted", pod: newPod(withPolicy(v1.RestartPolicyNever)),
			observed: []pod.ContainerStatus{seenExited("app", 0, 3)}, change: []func(*Input){crash},
			want: containerView{State: endOf("app", 0, 3), ID: apiID("app", 0)},
		},
		{
			name: "start error of a pod that has ended", observed: []pod.ContainerStatus{seenExited("app", 0, 3)}, change: []func(*Input){crash, terminal},
			want: containerView{State: endOf("app", 0, 3), ID: apiID("app", 0)},
		},
		{
			name: "start failed in the runtime", observed: []pod.ContainerStatus{seenExited("app", 0, 128)},
			change: []func(*Input){startError("app", lifecycle.RunContainerError, "no such file")},
			want: containerView{
				State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "RunContainerError", Message: "no such file"}},
				Last:  endOf("app", 0, 128), ID: apiID("app", 0),
			},
		},
		{
			name:   "gone, had ended",
			change: []func(*Input){oldApp(v1.ContainerStatus{State: endOf("app", 2, 0), RestartCount: 2, ContainerID: apiID("app", 2)})},
			want:   containerView{State: endOf("app", 2, 0), Restarts: 2, ID: apiID("app", 2)},
		},
		{
			name:   "gone, was running",
			change: []func(*Input){oldApp(v1.ContainerStatus{State: runningSince(2), RestartCount: 2, ContainerID: apiID("app", 2)})},
			want:   containerView{State: waitingFor("ContainerCreating"), Last: lostEnd(2, lostRunning), Restarts: 3},
		},
		{
			name: "gone, was running, pod is being deleted", pod: newPod(deleted),
			change: []func(*Input){oldApp(v1.ContainerStatus{State: runningSince(2), RestartCount: 2, ContainerID: apiID("app", 2)})},
			want:   containerView{State: waitingFor("ContainerCreating"), Last: lostEnd(2, lostRunning), Restarts: 2},
		},
		{
			name: "gone, was running after an earlier end",
			change: []func(*Input){oldApp(v1.ContainerStatus{
				State: runningSince(2), LastTerminationState: endOf("app", 1, 3), RestartCount: 2, ContainerID: apiID("app", 2),
			})},
			want: containerView{State: waitingFor("ContainerCreating"), Last: endOf("app", 1, 3), Restarts: 2},
		},
		{
			name: "gone, was waiting", change: []func(*Input){oldApp(v1.ContainerStatus{State: waitingFor("ContainerCreating"), LastTerminationState: endOf("app", 1, 3), RestartCount: 2})},
			want: containerView{State: waitingFor("ContainerCreating"), Last: endOf("app", 1, 3), Restarts: 2},
		},
		{
			name: "unknown, was running", observed: []pod.ContainerStatus{seen("app", 2, pod.StateUnknown)},
			change: []func(*Input){oldApp(v1.ContainerStatus{State: runningSince(2), RestartCount: 2, ContainerID: apiID("app", 2)})},
			want:   containerView{State: lostEnd(2, lostEnding), Restarts: 3, ID: apiID("app", 2)},
		},
		{
			name: "unknown, never seen before", observed: []pod.ContainerStatus{seen("app", 0, pod.StateUnknown)},
			want: containerView{State: waitingFor("ContainerCreating")},
		},
		{
			name: "unknown, seen to end before", observed: []pod.ContainerStatus{seen("app", 2, pod.StateUnknown)},
			change: []func(*Input){oldApp(v1.ContainerStatus{State: endOf("app", 2, 3), LastTerminationState: endOf("app", 1, 4), RestartCount: 2, ContainerID: apiID("app", 2)})},
			want:   containerView{State: endOf("app", 2, 3), Last: endOf("app", 1, 4), Restarts: 2, ID: apiID("app", 2)},
		},
		{
			name: "unknown, seen to end before, in a crash loop", observed: []pod.ContainerStatus{seen("app", 2, pod.StateUnknown)},
			change: []func(*Input){
				oldApp(v1.ContainerStatus{State: crashState, LastTerminationState: endOf("app", 2, 3), RestartCount: 2, ContainerID: apiID("app", 2)}), crash,
			},
			want: containerView{State: crashState, Last: endOf("app", 2, 3), Restarts: 2, ID: apiID("app", 2)},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.pod
			if p == nil {
				p = newPod()
			}
			got := generate(p, observed(tt.observed...), tt.change...)
			if diff := cmp.Diff(tt.want, view(got.ContainerStatuses[0])); diff != "" {
				t.Errorf("container (-want +got):\n%s", diff)
			}
			again := generate(p, observed(tt.observed...), append(tt.change, after(got))...)
			if diff := cmp.Diff(got, again, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("generated again from itself (-first +second):\n%s", diff)
			}
		})
	}
}

func TestInitContainerState(t *testing.T) {
	completed := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: "Completed"}}
	for _, tt := range []struct {
		name     string
		observed []pod.ContainerStatus
		change   []func(*Input)
		want     []containerView // init, sidecar
	}{
		{name: "nothing", want: []containerView{{State: waitingFor("PodInitializing")}, {State: waitingFor("PodInitializing")}}},
		{
			name: "first runs", observed: []pod.ContainerStatus{seen("init", 0, pod.StateRunning)},
			want: []containerView{{State: runningSince(0), ID: apiID("init", 0), Started: true}, {State: waitingFor("PodInitializing")}},
		},
		{
			name: "first done, sidecar runs", observed: []pod.ContainerStatus{seen("sidecar", 0, pod.StateRunning), seenExited("init", 0, 0)},
			want: []containerView{
				{State: endOf("init", 0, 0), ID: apiID("init", 0), Ready: true},
				{State: runningSince(0), ID: apiID("sidecar", 0), Ready: true, Started: true},
			},
		},
		{
			name: "success is not hidden by a start error", observed: []pod.ContainerStatus{seenExited("init", 0, 0)},
			change: []func(*Input){startError("init", lifecycle.ErrImagePull, "x")},
			want:   []containerView{{State: endOf("init", 0, 0), ID: apiID("init", 0), Ready: true}, {State: waitingFor("PodInitializing")}},
		},
		{
			name: "success of one that was removed is not hidden either",
			change: []func(*Input){startError("init", lifecycle.ErrImagePull, "x"), after(v1.PodStatus{InitContainerStatuses: []v1.ContainerStatus{
				{Name: "init", State: endOf("init", 0, 0), ContainerID: apiID("init", 0)},
			}})},
			want: []containerView{{State: endOf("init", 0, 0), ID: apiID("init", 0), Ready: true}, {State: waitingFor("PodInitializing")}},
		},
		{
			name: "failing", observed: []pod.ContainerStatus{seenExited("init", 1, 1)},
			change: []func(*Input){startError("init", lifecycle.CrashLoopBackOff, "")},
			want: []containerView{
				{State: waitingFor("CrashLoopBackOff"), Last: endOf("init", 1, 1), Restarts: 1, ID: apiID("init", 1)},
				{State: waitingFor("PodInitializing")},
			},
		},
		{
			name: "removed after the app began", observed: []pod.ContainerStatus{seen("app", 0, pod.StateRunning), seen("sidecar", 0, pod.StateRunning)},
			want: []containerView{{State: completed, Ready: true}, {State: runningSince(0), ID: apiID("sidecar", 0), Ready: true, Started: true}},
		},
		{
			name: "a missing sidecar is never completed", observed: []pod.ContainerStatus{seen("app", 0, pod.StateRunning)},
			want: []containerView{{State: completed, Ready: true}, {State: waitingFor("PodInitializing")}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPod(withInit(containers("init")[0], sidecar("sidecar")))
			got := generate(p, observed(tt.observed...), tt.change...)
			views := []containerView{view(got.InitContainerStatuses[0]), view(got.InitContainerStatuses[1])}
			if diff := cmp.Diff(tt.want, views); diff != "" {
				t.Errorf("init containers (-want +got):\n%s", diff)
			}
			again := generate(p, observed(tt.observed...), append(tt.change, after(got))...)
			if diff := cmp.Diff(got, again, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("generated again from itself (-first +second):\n%s", diff)
			}
		})
	}
}

func TestProbes(t *testing.T) {
	withProbes := func(p *v1.Pod) {
		p.Spec.Containers[0].ReadinessProbe, p.Spec.Containers[0].StartupProbe = &v1.Probe{}, &v1.Probe{}
	}
	app := id("app", 0)
	wasStarted := true
	started := oldApp(v1.ContainerStatus{State: runningSince(0), ContainerID: apiID("app", 0), Started: &wasStarted})
	for _, tt := range []struct {
		name           string
		pod            *v1.Pod
		change         []func(*Input)
		started, ready bool
	}{
		{"no probes in the spec", newPod(), []func(*Input){probes(nil, nil)}, true, true},
		{"no verdict", newPod(withProbes), []func(*Input){probes(nil, nil)}, false, false},
		{"started", newPod(withProbes), []func(*Input){probes(nil, []pod.ContainerID{app})}, true, false},
		{"started and ready", newPod(withProbes), []func(*Input){probes([]pod.ContainerID{app}, []pod.ContainerID{app})}, true, true},
		{"ready does not count before started", newPod(withProbes), []func(*Input){probes([]pod.ContainerID{app}, nil)}, false, false},
		{"started before the prober lost its memory", newPod(withProbes), []func(*Input){started, probes([]pod.ContainerID{app}, nil)}, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cs := generate(tt.pod, observed(seen("app", 0, pod.StateRunning)), tt.change...).ContainerStatuses[0]
			if *cs.Started != tt.started || cs.Ready != tt.ready {
				t.Errorf("started %v, ready %v; want %v, %v", *cs.Started, cs.Ready, tt.started, tt.ready)
			}
		})
	}
	t.Run("started is of one incarnation", func(t *testing.T) {
		cs := generate(newPod(withProbes), observed(seen("app", 1, pod.StateRunning)), started, probes(nil, nil)).ContainerStatuses[0]
		if *cs.Started {
			t.Error("a new incarnation is started without a verdict")
		}
	})
}

func TestContainerFields(t *testing.T) {
	enabled, disabled, ifPossible := v1.RecursiveReadOnlyEnabled, v1.RecursiveReadOnlyDisabled, v1.RecursiveReadOnlyIfPossible
	resources := v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")},
		Limits:   v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")},
	}
	p := newPod(func(p *v1.Pod) {
		p.Spec.Containers[0].Resources = resources
		p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{
			{Name: "data", MountPath: "/data"},
			{Name: "conf", MountPath: "/conf", ReadOnly: true},
			{Name: "deep", MountPath: "/deep", ReadOnly: true, RecursiveReadOnly: &enabled},
			{Name: "try", MountPath: "/try", ReadOnly: true, RecursiveReadOnly: &ifPossible},
			{Name: "can", MountPath: "can/", ReadOnly: true, RecursiveReadOnly: &ifPossible},
			{Name: "model", MountPath: "model/"},
		}
	})
	cs := seen("app", 0, pod.StateRunning)
	cs.HasUser, cs.UserUID, cs.UserGID, cs.SupplementalGroups = true, 1000, 1001, []int64{1002}
	cs.RecursiveReadOnly, cs.ImageVolumes = []string{"/can"}, map[string]string{"/model": "sha256:model"}
	yes := true
	want := v1.ContainerStatus{
		Name: "app", State: runningSince(0), Ready: true, Started: &yes,
		Image: "app:v1", ImageID: "sha256:app", ContainerID: apiID("app", 0),
		AllocatedResources: resources.Requests, Resources: &resources,
		VolumeMounts: []v1.VolumeMountStatus{
			{Name: "data", MountPath: "/data"},
			{Name: "conf", MountPath: "/conf", ReadOnly: true, RecursiveReadOnly: &disabled},
			{Name: "deep", MountPath: "/deep", ReadOnly: true, RecursiveReadOnly: &enabled},
			{Name: "try", MountPath: "/try", ReadOnly: true, RecursiveReadOnly: &disabled},
			{Name: "can", MountPath: "can/", ReadOnly: true, RecursiveReadOnly: &enabled},
			{
				Name: "model", MountPath: "model/",
				VolumeStatus: &v1.VolumeStatus{Image: &v1.ImageVolumeStatus{ImageRef: "sha256:model"}},
			},
		},
		User: &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: 1000, GID: 1001, SupplementalGroups: []int64{1002}}},
	}
	if diff := cmp.Diff(want, generate(p, observed(cs)).ContainerStatuses[0]); diff != "" {
		t.Errorf("container status (-want +got):\n%s", diff)
	}
}

// An image with several names is reported by the one that the pod asks for.
func TestImageName(t *testing.T) {
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	old := func(id, image string) v1.PodStatus {
		return v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "app", ContainerID: id, Image: image}}}
	}
	tests := map[string]struct {
		spec  string // the pod's name for it
		other bool   // the container was made from another image of the pod
		old   v1.PodStatus
		want  string
	}{
		"tag":                                  {spec: "reg.local/app:2", want: "reg.local/app:2"},
		"short name":                           {spec: "app", want: "docker.io/library/app:latest"},
		"digest":                               {spec: "reg.local/app" + digest, want: "reg.local/app" + digest},
		"tag and digest":                       {spec: "app:2" + digest, want: "docker.io/library/app" + digest},
		"id":                                   {spec: digest[1:], want: "reg.local/app:1"},
		"beginning of an id":                   {spec: "0123456789ab", want: "reg.local/app:1"},
		"not valid":                            {spec: "Reg/app:", want: "reg.local/app:1"},
		"of a container taken over":            {spec: "reg.local/app:2", other: true, want: "reg.local/app:1"},
		"while the pod gets another image":     {spec: "reg.local/app:3", other: true, old: old(apiID("app", 0), "reg.local/app:2"), want: "reg.local/app:2"},
		"of another container before this one": {spec: "reg.local/app:3", other: true, old: old(apiID("app", 7), "reg.local/app:2"), want: "reg.local/app:1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPod(func(p *v1.Pod) { p.Spec.Containers[0].Image = tt.spec })
			cs := seen("app", 0, pod.StateRunning)
			cs.Image, cs.Hash = "reg.local/app:1", lifecycle.ContainerHash(&p.Spec.Containers[0])
			if tt.other {
				cs.Hash = "other"
			}
			if got := generate(p, observed(cs), after(tt.old)).ContainerStatuses[0].Image; got != tt.want {
				t.Errorf("image %q, want %q", got, tt.want)
			}
		})
	}
}

func TestOrder(t *testing.T) {
	p := newPod(withInit(containers("z-init", "a-init")...), func(p *v1.Pod) {
		p.Spec.Containers = containers("web", "app")
		for _, n := range []string{"shell", "debug"} {
			p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: n}})
		}
	})
	s := generate(p, observed(seen("shell", 0, pod.StateRunning)))
	names := func(list []v1.ContainerStatus) (out []string) {
		for _, cs := range list {
			out = append(out, cs.Name)
		}
		return out
	}
	want := [][]string{{"z-init", "a-init"}, {"app", "web"}, {"debug", "shell"}}
	got := [][]string{names(s.InitContainerStatuses), names(s.ContainerStatuses), names(s.EphemeralContainerStatuses)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order of containers (-want +got):\n%s", diff)
	}
	if shell := s.EphemeralContainerStatuses[1]; shell.State.Running == nil || shell.Ready || shell.Started != nil {
		t.Errorf("a running ephemeral container is neither ready nor started, got %+v", shell)
	}
}
