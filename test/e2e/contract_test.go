//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime/cri"
	"berth/internal/runtime/cri/critest"
	"berth/internal/runtime/embedded"
)

// TestContract runs the contract suite of the fake runtime over the embedded one, or over the one
// whose CRI socket BERTH_E2E_CRI names; that one is not restarted, and must have the hello image or
// find it under BERTH_E2E_IMAGE. It runs alone: that the runtime blocks shows in a call that has no
// answer for some seconds, as on a busy machine any has.
func TestContract(t *testing.T) {
	t.Parallel()
	if socket := os.Getenv("BERTH_E2E_CRI"); socket != "" {
		target := contractTarget(t, "unix://"+socket)
		target.Tasks = nil // it may be another runtime than containerd
		if image := os.Getenv("BERTH_E2E_IMAGE"); image != "" {
			target.Image = image
			pull(t, target)
		}
		runContract(t, target)
		return
	}
	m := newMachine(t)
	r := m.runtime(embedded.Config{})
	m.ensure(r)
	target := contractTarget(t, r.Endpoint())
	target.CgroupParent = m.cgroup()
	target.Restart = func(t *testing.T, whileDown func()) {
		ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
		defer cancel()
		if err := r.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		whileDown()
		m.ensure(r)
		awaitRuntime(t, target)
	}
	runContract(t, target)
}

func runContract(t *testing.T, target critest.Target) {
	critest.RunContract(t, func(t *testing.T) critest.Target {
		target := target
		target.LogDir = t.TempDir()
		return target
	})
}

// contractTarget is the runtime at an endpoint with the hello image, and with the handler that the
// tests are run for.
func contractTarget(t *testing.T, endpoint string) critest.Target {
	t.Helper()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	runtime := runtimeapi.NewRuntimeServiceClient(conn)
	client, err := cri.New(cri.Config{Endpoint: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	writers, err := client.LogWriters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	handler, annotation := os.Getenv("BERTH_RUNTIME_HANDLER"), ""
	if slices.Contains(writers, handler) {
		annotation = cri.LogPathAnnotation
	}
	return critest.Target{
		Runtime: runtime,
		Images:  runtimeapi.NewImageServiceClient(conn),
		Tasks:   tasksapi.NewTasksClient(conn),
		Image:   helloImage,
		Commands: critest.Commands{
			Forever: []string{"/hello", "sleep"},
			Write:   []string{"/hello", "write", "-rate", "6400"},
			Exit:    func(code int) []string { return []string{"/hello", "exit", strconv.Itoa(code)} },
			Missing: []string{"/missing"},
		},
		PodNetwork:    true,
		Handler:       handler,
		LogAnnotation: annotation,
		Podshims:      annotation != "", // what writes the logs is what runs the containers
		ExitsKept:     true,             // by pod shims, and by shims that wait for containerd
		KillContainer: func(t *testing.T, id string) func() {
			resp, err := runtime.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
			return killer(t, resp.GetInfo(), err)
		},
		KillSandbox: func(t *testing.T, id string) func() {
			resp, err := runtime.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
			return killer(t, resp.GetInfo(), err)
		},
	}
}

// killer returns what kills the process that a verbose status names.
func killer(t *testing.T, info map[string]string, err error) func() {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var process struct {
		Pid int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(info["info"]), &process); err != nil || process.Pid <= 1 {
		t.Fatalf("verbose status %q names no process (%v)", info["info"], err)
	}
	return func() {
		if err := syscall.Kill(process.Pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitRuntime waits until the runtime answers on the connection that its restart broke.
func awaitRuntime(t *testing.T, target critest.Target) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience(30*time.Second))
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := target.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the runtime does not answer after its restart: %v", err)
		}
	}
}

func pull(t *testing.T, target critest.Target) {
	t.Helper()
	image := &runtimeapi.ImageSpec{Image: target.Image}
	if _, err := target.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: image}); err != nil {
		t.Fatalf("image %s: %v", target.Image, err)
	}
}
