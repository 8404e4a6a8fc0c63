package kuberuntime

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/runtime/cri/critest"
	"berth/internal/runtime/crispec"
)

// cutOffMessage is what containerd says of a start whose caller has gone before there was a
// process.
const cutOffMessage = "failed to create containerd task: failed to create shim task: context canceled"

// A container that agents were killed over before it ran is the first of its name when it runs.
func TestFirstAfterKills(t *testing.T) {
	killed := status.Error(codes.Canceled, "the agent is gone")
	cutOff := func(b *bench) { b.fake.Programs.Set("a", critest.FailsToStart(cutOffMessage)) }
	for name, kills := range map[string][]func(*bench){
		"during the creation":               {func(b *bench) { b.fake.Calls.Fail("CreateContainer", 1, killed) }},
		"after the creation":                {func(b *bench) { b.fake.Calls.FailAfterWork("CreateContainer", 1, killed) }},
		"before the start":                  {func(b *bench) { b.fake.Calls.Fail("StartContainer", 1, killed) }},
		"when the process was to be made":   {cutOff},
		"there again":                       {cutOff, cutOff},
		"and when that had been removed":    {cutOff, func(b *bench) { b.fake.Calls.FailAfterWork("RemoveContainer", 1, killed) }},
		"and when it had been created anew": {cutOff, func(b *bench) { b.fake.Calls.FailAfterWork("CreateContainer", 1, killed) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				p := podOf(v1.RestartPolicyNever, "a")
				for _, kill := range kills {
					kill(b)
					b.sync(p)
					b.fake.Programs.Set("a", critest.Forever())
					time.Sleep(time.Hour) // for the back-off
				}
				b.run(p)
				b.wantFirst()
			})
		})
	}
}

// wantFirst checks that the pod has one container, which runs and is the first one of its name.
func (b *bench) wantFirst() {
	b.t.Helper()
	s := b.observe()
	if len(s.Containers) != 1 || s.Containers[0].State != pod.StateRunning || s.Containers[0].Attempt != 0 {
		b.t.Fatalf("the containers are %+v, want one that runs for the first time", s.Containers)
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(s.Containers[0].LogPath), "*"))
	if err != nil || len(files) != 1 || files[0] != s.Containers[0].LogPath {
		b.t.Errorf("the logs are %q, %v, want %s", files, err, s.Containers[0].LogPath)
	}
}

// syncOver does a pass over what was observed before.
func (b *bench) syncOver(p *v1.Pod, observed *pod.Status) Result {
	b.t.Helper()
	res, err := b.SyncPod(b.t.Context(), Request{
		Pod: p, Observed: observed, Volumes: func(context.Context) (map[string]crispec.Volume, error) { return nil, nil },
	})
	if err != nil {
		b.t.Fatal(err)
	}
	sawWaiting(res)
	return res
}

// A container whose creation outlived the agent that asked for it, so that the next one's first
// observation does not have it, gives way to one of the same name.
func TestCreatedUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyNever, "a")
		b.fake.Calls.Fail("CreateContainer", 1, status.Error(codes.Unknown, "no room"))
		b.sync(p)
		before := b.observe()
		time.Sleep(time.Hour)
		b.fake.Calls.FailAfterWork("CreateContainer", 1, status.Error(codes.Canceled, "the agent is gone"))
		b.sync(p)
		time.Sleep(time.Hour)
		b.syncOver(p, before)
		b.wantFirst()
	})
}

// A start that outlives the agent that asked for it, and succeeds, is no leftover: the container is
// neither killed nor made again.
func TestStartedUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyNever, "a")
		b.fake.Calls.Fail("StartContainer", 1, status.Error(codes.Canceled, "the agent is gone"))
		b.sync(p)
		id := b.observe().Containers[0].ID
		time.Sleep(time.Hour)
		b.fake.Calls.Inject(critest.Fault{
			Method: "RemoveContainer", Err: status.Error(codes.Unknown, `failed to set removing state for container "a": container is in starting state, can't be removed`),
			Then: func(string) {
				if err := b.client.StartContainer(t.Context(), id); err != nil {
					t.Error(err)
				}
			},
		})
		res := b.sync(p)
		if e := res.StartErrors["a"]; e.Message != `container "a" is running, and was not when it was observed` {
			t.Errorf("the start ended with %+v", e)
		}
		b.run(p)
		b.wantFirst()
		if got := b.observe().Containers[0].ID; got != id {
			t.Errorf("container %s runs, want %s", got, id)
		}
	})
}

// What is done about a start that was cut off leaves the log of the incarnation before, which ran.
func TestLogBeforeCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := podOf(v1.RestartPolicyAlways, "a")
		b.fake.Programs.Set("a", critest.Program{Output: []string{"hello"}, Exits: true})
		b.sync(p)
		time.Sleep(time.Hour)
		log := b.observe().Containers[0].LogPath
		b.fake.Programs.Set("a", critest.FailsToStart(cutOffMessage))
		b.sync(p)
		time.Sleep(time.Hour)
		b.fake.Programs.Set("a", critest.Forever())
		b.run(p)
		if cs := b.observe().FindContainer("a"); cs.State != pod.StateRunning || cs.Attempt != 1 {
			t.Errorf("got %+v, want the first restart to run", cs)
		}
		if text, err := os.ReadFile(log); err != nil || !strings.HasSuffix(string(text), "hello\n") {
			t.Errorf("the log of the one before has %q, %v", text, err)
		}
	})
}
