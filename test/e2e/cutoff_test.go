//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/embedded"
)

// A container whose start was cut off at any moment, as by the end of the agent that asked for it,
// can be removed.
func TestStartCutOff(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	r := m.runtime(embedded.Config{})
	m.ensure(r)
	runtime := m.client(r.Endpoint()).runtime
	agent, err := cri.New(cri.Config{Endpoint: r.Endpoint()})
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	logs := filepath.Join(m.root, "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "cut", Namespace: "default", Uid: "cut"},
		LogDirectory: logs,
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: m.cgroup()},
	}
	sandbox, err := agent.RunPodSandbox(t.Context(), config, "")
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var longest time.Duration // that a start has taken
	for i := range 60 {
		id, err := agent.CreateContainer(t.Context(), sandbox, &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main", Attempt: uint32(i)},
			Image:    &runtimeapi.ImageSpec{Image: helloImage},
			Args:     []string{"sleep"},
			LogPath:  fmt.Sprintf("%d.log", i),
			Linux:    &runtimeapi.LinuxContainerConfig{},
		}, config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cutOff := context.WithCancel(t.Context())
		if i > 0 {
			ctx, cutOff = context.WithTimeout(ctx, time.Duration(random.Int64N(int64(longest))))
		}
		began := time.Now()
		_, err = runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: string(id)})
		switch {
		case err == nil:
			longest = max(longest, time.Since(began))
		case i == 0:
			t.Fatal(err)
		}
		cutOff()
		until(t, "the container of a start that was cut off to be removed", func() bool {
			err := agent.RemoveContainer(t.Context(), pod.ContainerID(id))
			if err != nil && !errors.Is(err, cri.ErrStarting) {
				t.Fatalf("container %d: %v", i, err)
			}
			return err == nil
		})
	}
	if err := errors.Join(agent.StopPodSandbox(t.Context(), sandbox), agent.RemovePodSandbox(t.Context(), sandbox)); err != nil {
		t.Error(err)
	}
	// When runc is killed it leaves the container's cgroup, which an agent removes with the pod's.
	left, err := filepath.Glob("/sys/fs/cgroup/*" + m.cgroup() + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("remove %s: %v", path, err)
		}
	}
}

// A job whose agent is killed when the runtime has made its log, and its process perhaps not, runs
// once, and for the first time, by the next agent.
func TestStartCutOffAtLog(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := n.start()
	for i := range 10 {
		p := n.act(fmt.Sprintf("job%d", i), v1.RestartPolicyNever, nil, actor("main", "say began"))
		n.put(p)
		poll := time.NewTicker(200 * time.Microsecond)
		for pattern := filepath.Join(n.podLogs(), "*_"+p.Name+"*", "main", "0.log"); ; <-poll.C {
			if made, err := filepath.Glob(pattern); len(made) > 0 || err != nil || n.ctx.Err() != nil {
				break
			}
		}
		poll.Stop()
		a.kill()
		a = n.start()
		job := n.await("the job to be over", func(now pods) bool {
			return now.inPhase(p.Name, v1.PodSucceeded) || now.inPhase(p.Name, v1.PodFailed)
		}).named(p.Name)
		s, began := container(job, "main"), n.said(p.Name, "main began")
		switch {
		case wasCutOff(s) && began < 2: // its process was there already
		case began != 1 || s.RestartCount != 0 || job.Status.Phase != v1.PodSucceeded:
			t.Errorf("%s ran %d times, and is %s: %+v", p.Name, began, job.Status.Phase, s)
		}
	}
}
