package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/server"
	"berth/internal/health"
	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/runtime/embedded"
	"berth/internal/runtime/images"
	"berth/internal/source/manifest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"berth": mainOrInMemory, kubeletName: main})
}

// TestScripts runs the command line as users do; testdata/*.txtar are the stories. The command
// `agent` starts an API over a node whose pods do not change, in the run directory ./run.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"agent": startAgent,
		},
		Condition: func(name string) (bool, error) {
			if name == "bundle" { // a build that could really run pods
				return embedded.Available(), nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// startAgent serves the API until the script ends. Its process is one that sleeps, and ends when it
// is asked to.
func startAgent(ts *testscript.TestScript, _ bool, _ []string) {
	log := slog.New(slog.DiscardHandler)
	process := exec.Command("sleep", "1000")
	ts.Check(process.Start())
	processEnded := make(chan struct{})
	go func() {
		defer close(processEnded)
		_ = process.Wait() // it is always killed, which is an error to Wait
	}()
	s, err := server.New(server.Config{
		Handlers: nodeOfStories(ts, process),
		Listen:   func() (net.Listener, error) { return server.Listen(ts.MkAbs("run"), log) },
		Log:      log,
	})
	ts.Check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for { // until it listens
		c, err := net.Dial("unix", server.SocketPath(ts.MkAbs("run")))
		if err == nil {
			ts.Check(c.Close())
			break
		}
		select {
		case err := <-ended:
			ts.Fatalf("agent: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	ts.Defer(func() {
		stop()
		ts.Check(<-ended)
		_ = process.Process.Kill() // it has ended already when the script stopped the agent
		<-processEnded
	})
}

func nodeOfStories(ts *testscript.TestScript, process *exec.Cmd) server.Handlers {
	pods := storyPods()
	j := journal.New(slog.New(slog.DiscardHandler))
	j.Record(journal.Entry{Subject: journal.Subject{UID: "u-web", Namespace: "default", Name: "hello-web"}, Component: "config", Decision: "pod added", Why: "hello.yaml"})
	j.Record(journal.Entry{Subject: journal.Subject{UID: "u-web", Namespace: "default", Name: "hello-web"}, Component: "image", Container: "server", Decision: "pulled"})
	j.Record(journal.Entry{Subject: journal.Subject{UID: "u-static", Namespace: "default", Name: "static-box"}, Component: "worker", Decision: "pod removed"})
	j.Record(journal.Entry{Subject: journal.Subject{Name: "broken.yaml"}, Component: "config", Decision: "manifest refused", Error: "line 3: no"})
	path := ts.MkAbs("web.log")
	ts.Check(os.WriteFile(path, []byte("2026-01-02T03:04:05Z stdout F one\n2026-01-02T03:04:06Z stderr F two\n"), 0o600))
	return server.Handlers{
		Pods: server.Pods{
			List: func() []*v1.Pod { return pods },
			Get: func(uid pod.UID) (*v1.Pod, bool) {
				for _, p := range pods {
					if p.UID == uid {
						return p, true
					}
				}
				return nil, false
			},
			Subscribe: func() (*pod.Inbox[pod.UID], func()) { return pod.NewInbox[pod.UID](), func() {} },
		},
		Logs: func(_ pod.UID, id pod.ContainerID) (string, error) {
			if id == "server" || id == "writer" {
				return path, nil
			}
			return "", fmt.Errorf("container %s: %w", id, fs.ErrNotExist)
		},
		Explain: server.Explain{
			Problems: func() []manifest.Problem {
				return []manifest.Problem{{Source: pod.FileSource, Path: filepath.Join("/m", "broken.yaml"), Severity: manifest.SeverityError, Message: "line 3: no", Since: time.Now()}}
			},
			Journal:    j,
			Quarantine: storyQuarantine{},
		},
		Agent: server.Agent{
			Version: func() server.Version {
				return server.Version{Version: "v1.2.3", PID: process.Process.Pid, NodeName: "box", RuntimeName: "containerd", RuntimeVersion: "v2", RuntimeEndpoint: "unix:///c.sock"}
			},
			Stop: func(s server.StopScope) {
				ts.Check(os.WriteFile(ts.MkAbs("stopped"), []byte(s.String()+"\n"), 0o600))
				ts.Check(process.Process.Kill())
			},
		},
		Health:     server.Health{Check: func() error { return nil }, Conditions: storyHealth(ts).States},
		Thresholds: storyThresholds,
		Resources:  storyResources,
		Images:     storyPrune,
		Configuration: server.Configuration{Settings: func() ([]server.Setting, error) {
			return []server.Setting{{Path: "maxPods", Value: 50, From: "--max-pods"}}, nil
		}},
	}
}

// storyThresholds are one that is met, one that is not, and what cannot be told.
func storyThresholds() []server.Threshold {
	since := time.Now().Add(-5*time.Minute - 10*time.Second)
	return []server.Threshold{
		{Signal: "memory.available", Value: "500Mi", GraceSeconds: 90, Least: 500 << 20, Available: 400 << 20, Capacity: 8 << 30, MetSince: &since},
		{Signal: "allocatableMemory.available", Value: "100Mi"},
		{Signal: "nodefs.available", Value: "10%", Least: 10 << 30, Available: 40 << 30, Capacity: 100 << 30},
		{Signal: "nodefs.inodesFree", Value: "5%", Least: 50_000, Available: 900_000, Capacity: 1_000_000},
		{Signal: "pid.available", Value: "1k"},
		{Signal: "imagefs.available", Value: "90%", Least: 1 << 63, Available: math.MaxUint64, Capacity: math.MaxUint64},
		{Signal: "imagefs.inodesFree", Value: "90%", Least: 1 << 63, Available: math.MaxUint64, Capacity: math.MaxUint64},
		{Signal: "containerfs.available", Value: "20%", Ignored: true},
	}
}

// storyPrune has images of each fate, one of which cannot be removed.
func storyPrune(_ context.Context, o images.PruneOptions) ([]images.Verdict, error) {
	id := func(n int) string { return fmt.Sprintf("sha256:%012d", n) }
	all := []images.Verdict{
		{ID: id(1), Names: []string{"docker.io/library/nginx:1.28", "r.example/web:1"}, Size: 10 << 20, Fate: images.Unused, Removed: !o.DryRun},
		{ID: id(2), Size: 1 << 20, Fate: images.Unused, Removed: !o.DryRun},
		{ID: id(3), Names: []string{"docker.io/library/stuck:1"}, Size: 5 << 20, Fate: images.Unused},
		{ID: id(4), Names: []string{"docker.io/library/app:dev"}, Size: 20 << 20, Fate: images.NotPulled},
		{ID: id(5), Names: []string{"docker.io/library/redis:7"}, Size: 40 << 20, Fate: images.LookedAhead},
		{ID: id(6), Names: []string{"registry.k8s.io/pause:3.10"}, Size: 300 << 10, Fate: images.Pinned},
		{ID: id(7), Names: []string{"docker.io/library/nginx:1.29"}, Size: 60 << 20, Fate: images.InUse, Users: []string{"default/hello-web/server"}},
		{ID: id(8), Names: []string{"docker.io/library/busybox:1"}, Size: 2 << 20, Fate: images.InUse, Users: []string{"a/b/c", "a/b/d", "a/b/e", "a/b/f", "a/b/g"}},
	}
	if !o.DryRun {
		all[2].Error = "RemoveImage: it is stuck"
	}
	if o.All {
		all[3].Fate = images.Unused
	}
	return all, nil
}

// storyHealth is the health of an agent whose runtime ended a while ago.
func storyHealth(ts *testscript.TestScript) *health.Table {
	ended := time.Now().Add(-20*time.Hour - 30*time.Minute)
	t, err := health.New(map[health.Code]health.Check{
		health.EmbeddedRuntime: func() error { return health.Since(errors.New("the embedded runtime is not healthy: it ended"), ended) },
		health.PLEG:            func() error { return health.Since(errors.New("PLEG is not healthy: no answer"), ended) },
		health.Manifests:       func() error { return errors.New("/m/broken.yaml: line 3: no") },
		health.Persistence:     func() error { return nil },
	})
	ts.Check(err)
	return t
}

// storyQuarantine has set one pod aside.
type storyQuarantine struct{}

func (storyQuarantine) Why(pod.UID) (string, bool)          { return "", false }
func (storyQuarantine) Release(namespace, name string) bool { return name == "static-box" }

func storyPods() []*v1.Pod {
	ready := []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	runs := func(name string) v1.ContainerStatus {
		c := running(name)
		c.ContainerID = "fake://" + name
		return c
	}
	web := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello-web", UID: "u-web", Labels: map[string]string{"app": "hello"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "server"}}},
		Status:     v1.PodStatus{Phase: v1.PodRunning, PodIP: "10.88.0.5", Conditions: ready, ContainerStatuses: []v1.ContainerStatus{runs("server")}},
	}
	two := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "two", UID: "u-two"},
		Spec:       v1.PodSpec{InitContainers: []v1.Container{{Name: "setup"}}, Containers: []v1.Container{{Name: "writer"}, {Name: "reader"}}},
		Status: v1.PodStatus{
			Phase: v1.PodPending,
			InitContainerStatuses: []v1.ContainerStatus{
				terminated("setup", v1.ContainerStateTerminated{Reason: "Completed", ContainerID: "fake://setup"}),
			},
			ContainerStatuses: []v1.ContainerStatus{runs("writer"), waiting("reader", "ContainerCreating")},
		},
	}
	return []*v1.Pod{web, two}
}
