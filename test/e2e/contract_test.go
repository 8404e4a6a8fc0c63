//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"strconv"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri/critest"
)

// contractImage is the image that the contract suite runs; it is pulled when the runtime does not have it.
func contractImage() string {
	if image := os.Getenv("BERTH_E2E_IMAGE"); image != "" {
		return image
	}
	return "berth.local/hello:1"
}

// TestContract runs the contract suite of the fake runtime over the real one behind the CRI socket BERTH_E2E_CRI.
func TestContract(t *testing.T) {
	socket := os.Getenv("BERTH_E2E_CRI")
	if socket == "" {
		t.Fatal("BERTH_E2E_CRI must name the CRI socket of the runtime to test, such as /run/containerd/containerd.sock")
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	runtime, images := runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
	needImage(t, images, contractImage())

	critest.RunContract(t, func(t *testing.T) critest.Target {
		return critest.Target{
			Runtime: runtime,
			Images:  images,
			Image:   contractImage(),
			Commands: critest.Commands{
				Forever: []string{"/hello", "sleep"},
				Write:   []string{"/hello", "write", "-rate", "6400"},
				Exit:    func(code int) []string { return []string{"/hello", "exit", strconv.Itoa(code)} },
				Missing: []string{"/missing"},
			},
			LogDir:     t.TempDir(),
			PodNetwork: true,
			KillSandbox: func(t *testing.T, id string) {
				resp, err := runtime.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
				if err != nil {
					t.Fatal(err)
				}
				kill(t, resp.Info)
			},
		}
	})
}

func needImage(t *testing.T, images runtimeapi.ImageServiceClient, name string) {
	t.Helper()
	spec := &runtimeapi.ImageSpec{Image: name}
	resp, err := images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil {
		t.Fatal(err)
	}
	if resp.Image != nil {
		return
	}
	if _, err := images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: spec}); err != nil {
		t.Fatalf("image %s is not in the runtime's store: %v", name, err)
	}
}

// kill ends the process that a verbose status names.
func kill(t *testing.T, info map[string]string) {
	t.Helper()
	var process struct {
		Pid int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(info["info"]), &process); err != nil {
		t.Fatalf("verbose status %q: %v", info["info"], err)
	}
	if process.Pid <= 1 {
		t.Fatalf("verbose status %q names no process", info["info"])
	}
	if err := syscall.Kill(process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
