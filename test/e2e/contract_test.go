//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri/critest"
)

// TestContract runs the contract suite of the fake runtime over a real one. The environment says which:
//
//	BERTH_E2E_CRI        path of its CRI socket, required
//	BERTH_E2E_IMAGE      the hello image, pulled when it is not in the store (default berth.local/hello:1)
//	BERTH_E2E_CRI_STOP   shell command that stops the runtime's process and returns when it is gone
//	BERTH_E2E_CRI_START  shell command that starts it again; without these two its restart is not tested
func TestContract(t *testing.T) {
	socket := os.Getenv("BERTH_E2E_CRI")
	if socket == "" {
		t.Fatal("BERTH_E2E_CRI must name the CRI socket of the runtime to test, such as /run/containerd/containerd.sock")
	}
	image := os.Getenv("BERTH_E2E_IMAGE")
	if image == "" {
		image = "berth.local/hello:1"
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	target := critest.Target{
		Runtime: runtimeapi.NewRuntimeServiceClient(conn),
		Images:  runtimeapi.NewImageServiceClient(conn),
		Image:   image,
		Commands: critest.Commands{
			Forever: []string{"/hello", "sleep"},
			Write:   []string{"/hello", "write", "-rate", "6400"},
			Exit:    func(code int) []string { return []string{"/hello", "exit", strconv.Itoa(code)} },
			Missing: []string{"/missing"},
		},
		PodNetwork: true,
	}
	needImage(t, target)
	target.KillContainer = func(t *testing.T, id string) func() {
		resp, err := target.Runtime.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
		return killer(t, resp.GetInfo(), err)
	}
	target.KillSandbox = func(t *testing.T, id string) func() {
		resp, err := target.Runtime.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
		return killer(t, resp.GetInfo(), err)
	}
	if stop, start := os.Getenv("BERTH_E2E_CRI_STOP"), os.Getenv("BERTH_E2E_CRI_START"); stop != "" && start != "" {
		target.Restart = func(t *testing.T, whileDown func()) {
			shell(t, stop)
			whileDown()
			shell(t, start)
			awaitRuntime(t, target)
		}
	}
	critest.RunContract(t, func(t *testing.T) critest.Target {
		target := target
		target.LogDir = t.TempDir()
		return target
	})
}

// awaitRuntime waits until the runtime answers.
func awaitRuntime(t *testing.T, target critest.Target) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
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

func needImage(t *testing.T, target critest.Target) {
	t.Helper()
	image := &runtimeapi.ImageSpec{Image: target.Image}
	resp, err := target.Images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: image})
	if err != nil {
		t.Fatal(err)
	}
	if resp.Image != nil {
		return
	}
	if _, err := target.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: image}); err != nil {
		t.Fatalf("image %s is not in the runtime's store: %v", target.Image, err)
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

func shell(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}
