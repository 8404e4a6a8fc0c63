package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

func running(name string) v1.ContainerStatus {
	started := true
	return v1.ContainerStatus{Name: name, Ready: true, Started: &started, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}
}

func waiting(name, reason string) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}}
}

func terminated(name string, t v1.ContainerStateTerminated) v1.ContainerStatus {
	return v1.ContainerStatus{Name: name, State: v1.ContainerState{Terminated: &t}}
}

func restarted(c v1.ContainerStatus, n int32, last time.Duration) v1.ContainerStatus {
	c.RestartCount = n
	c.LastTerminationState.Terminated = &v1.ContainerStateTerminated{FinishedAt: ago(last)}
	return c
}

func TestComputePodRow(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	ready := []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	two := v1.PodSpec{Containers: []v1.Container{{Name: "a"}, {Name: "b"}}}
	withInit := v1.PodSpec{
		InitContainers: []v1.Container{{Name: "i"}, {Name: "side", RestartPolicy: &always}},
		Containers:     []v1.Container{{Name: "a"}},
	}
	type columns struct{ Ready, Status, Restarts string }
	for name, c := range map[string]struct {
		spec    v1.PodSpec
		status  v1.PodStatus
		deleted bool
		want    columns
	}{
		"not looked at yet":   {two, v1.PodStatus{}, false, columns{"0/2", "Pending", "0"}},
		"pending":             {two, v1.PodStatus{Phase: v1.PodPending}, false, columns{"0/2", "Pending", "0"}},
		"reason of the pod":   {two, v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted"}, false, columns{"0/2", "Evicted", "0"}},
		"scheduling gated":    {two, v1.PodStatus{Phase: v1.PodPending, Conditions: []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: "SchedulingGated"}}}, false, columns{"0/2", "SchedulingGated", "0"}},
		"creating":            {two, v1.PodStatus{Phase: v1.PodPending, ContainerStatuses: []v1.ContainerStatus{waiting("a", "ContainerCreating"), waiting("b", "ContainerCreating")}}, false, columns{"0/2", "ContainerCreating", "0"}},
		"running":             {two, v1.PodStatus{Phase: v1.PodRunning, Conditions: ready, ContainerStatuses: []v1.ContainerStatus{running("a"), running("b")}}, false, columns{"2/2", "Running", "0"}},
		"first trouble wins":  {two, v1.PodStatus{Phase: v1.PodPending, ContainerStatuses: []v1.ContainerStatus{waiting("a", "ErrImagePull"), waiting("b", "ContainerCreating")}}, false, columns{"0/2", "ErrImagePull", "0"}},
		"crash loop":          {two, v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{running("a"), restarted(waiting("b", "CrashLoopBackOff"), 3, 5*time.Second)}}, false, columns{"1/2", "CrashLoopBackOff", "3 (5s ago)"}},
		"restarts are summed": {two, v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{restarted(running("a"), 1, time.Hour), restarted(running("b"), 2, 3*time.Minute)}}, false, columns{"2/2", "Running", "3 (3m ago)"}},
		"restart of unknown time": {
			two,
			v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{Name: "a", RestartCount: 4, Ready: true, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}},
			false,
			columns{"1/2", "Running", "4"},
		},
		"running, not ready": {two, v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{Name: "a", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}, running("b")}}, false, columns{"1/2", "Running", "0"}},
		"completed":          {two, v1.PodStatus{Phase: v1.PodSucceeded, ContainerStatuses: []v1.ContainerStatus{terminated("a", v1.ContainerStateTerminated{Reason: "Completed"}), terminated("b", v1.ContainerStateTerminated{Reason: "Completed"})}}, false, columns{"0/2", "Completed", "0"}},
		"one of two completed, pod ready": {
			two,
			v1.PodStatus{Phase: v1.PodRunning, Conditions: ready, ContainerStatuses: []v1.ContainerStatus{terminated("a", v1.ContainerStateTerminated{Reason: "Completed"}), running("b")}},
			false,
			columns{"1/2", "Running", "0"},
		},
		"one of two completed": {
			two,
			v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{terminated("a", v1.ContainerStateTerminated{Reason: "Completed"}), running("b")}},
			false,
			columns{"1/2", "NotReady", "0"},
		},
		"killed":           {two, v1.PodStatus{Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{terminated("a", v1.ContainerStateTerminated{Signal: 9, ExitCode: 137})}}, false, columns{"0/2", "Signal:9", "0"}},
		"failed":           {two, v1.PodStatus{Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{terminated("a", v1.ContainerStateTerminated{ExitCode: 3})}}, false, columns{"0/2", "ExitCode:3", "0"}},
		"out of memory":    {two, v1.PodStatus{Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{terminated("a", v1.ContainerStateTerminated{Reason: "OOMKilled"})}}, false, columns{"0/2", "OOMKilled", "0"}},
		"terminating":      {two, v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{running("a"), running("b")}}, true, columns{"2/2", "Terminating", "0"}},
		"deleted at last":  {two, v1.PodStatus{Phase: v1.PodSucceeded, ContainerStatuses: []v1.ContainerStatus{terminated("a", v1.ContainerStateTerminated{Reason: "Completed"})}}, true, columns{"0/2", "Completed", "0"}},
		"node lost":        {two, v1.PodStatus{Phase: v1.PodRunning, Reason: "NodeLost"}, true, columns{"0/2", "Unknown", "0"}},
		"init not begun":   {withInit, v1.PodStatus{Phase: v1.PodPending, InitContainerStatuses: []v1.ContainerStatus{waiting("i", "PodInitializing"), waiting("side", "PodInitializing")}}, false, columns{"0/2", "Init:0/2", "0"}},
		"init runs":        {withInit, v1.PodStatus{Phase: v1.PodPending, InitContainerStatuses: []v1.ContainerStatus{{Name: "i", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}, waiting("side", "PodInitializing")}}, false, columns{"0/2", "Init:0/2", "0"}},
		"init fails":       {withInit, v1.PodStatus{Phase: v1.PodPending, InitContainerStatuses: []v1.ContainerStatus{terminated("i", v1.ContainerStateTerminated{Reason: "Error", ExitCode: 1})}}, false, columns{"0/2", "Init:Error", "0"}},
		"init killed":      {withInit, v1.PodStatus{Phase: v1.PodPending, InitContainerStatuses: []v1.ContainerStatus{terminated("i", v1.ContainerStateTerminated{Signal: 9, ExitCode: 137})}}, false, columns{"0/2", "Init:Signal:9", "0"}},
		"init exits badly": {withInit, v1.PodStatus{Phase: v1.PodPending, InitContainerStatuses: []v1.ContainerStatus{terminated("i", v1.ContainerStateTerminated{ExitCode: 2})}}, false, columns{"0/2", "Init:ExitCode:2", "0"}},
		"init crash loop":  {withInit, v1.PodStatus{Phase: v1.PodPending, InitContainerStatuses: []v1.ContainerStatus{restarted(waiting("i", "CrashLoopBackOff"), 2, time.Minute)}}, false, columns{"0/2", "Init:CrashLoopBackOff", "2 (60s ago)"}},
		"sidecar starts":   {withInit, v1.PodStatus{Phase: v1.PodPending, InitContainerStatuses: []v1.ContainerStatus{terminated("i", v1.ContainerStateTerminated{Reason: "Completed"}), {Name: "side", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}}, false, columns{"0/2", "Init:1/2", "0"}},
		"initialized": {withInit, v1.PodStatus{
			Phase: v1.PodRunning, Conditions: ready,
			InitContainerStatuses: []v1.ContainerStatus{restarted(terminated("i", v1.ContainerStateTerminated{Reason: "Completed"}), 5, time.Hour), restarted(running("side"), 1, 2*time.Second)},
			ContainerStatuses:     []v1.ContainerStatus{running("a")},
		}, false, columns{"2/2", "Running", "1 (2s ago)"}},
		"sidecar starts again": {withInit, v1.PodStatus{
			Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodInitialized, Status: v1.ConditionTrue}},
			InitContainerStatuses: []v1.ContainerStatus{terminated("i", v1.ContainerStateTerminated{Reason: "Completed"}), restarted(waiting("side", "CrashLoopBackOff"), 1, 2*time.Second)},
			ContainerStatuses:     []v1.ContainerStatus{running("a")},
		}, false, columns{"1/2", "Init:CrashLoopBackOff", "1 (2s ago)"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &v1.Pod{Spec: c.spec, Status: c.status}
			if c.deleted {
				d := ago(time.Second)
				p.DeletionTimestamp = &d
			}
			got := computePodRow(p, now)
			if diff := cmp.Diff(c.want, columns{got.Ready, got.Status, got.Restarts}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestComputePodRowOfLittle(t *testing.T) {
	start := ago(90 * time.Second)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}, Status: v1.PodStatus{StartTime: &start}}
	want := podRow{Namespace: "shop", Name: "web", Ready: "0/0", Status: "Pending", Restarts: "0", Age: "90s"}
	if diff := cmp.Diff(want, computePodRow(p, now)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want = podRow{Ready: "0/0", Status: "Pending", Restarts: "0", Age: "<unknown>"}
	if diff := cmp.Diff(want, computePodRow(&v1.Pod{}, now)); diff != "" {
		t.Errorf("bare pod (-want +got):\n%s", diff)
	}
}
