package critest_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime/cri/critest"
)

const testImage = "berth.local/hello:1"

// client is a connection to a fake with the calls that most tests make.
type client struct {
	runtimeapi.RuntimeServiceClient
	image runtimeapi.ImageServiceClient
	t     *testing.T
}

func connect(t *testing.T, r *critest.Runtime) client {
	t.Helper()
	conn := r.Connect(t)
	return client{runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn), t}
}

func sandboxConfig(name string, attempt uint32) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name + "-uid", Attempt: attempt},
		Labels:   map[string]string{"io.kubernetes.pod.uid": name + "-uid"},
		Linux:    &runtimeapi.LinuxPodSandboxConfig{},
	}
}

func containerConfig(name string, attempt uint32) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt},
		Image:    &runtimeapi.ImageSpec{Image: testImage},
		LogPath:  fmt.Sprintf("%s/%d.log", name, attempt),
	}
}

func (c client) sandbox(name string) string {
	c.t.Helper()
	resp, err := c.RunPodSandbox(c.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: sandboxConfig(name, 0)})
	if err != nil {
		c.t.Fatalf("run sandbox %s: %v", name, err)
	}
	return resp.PodSandboxId
}

func (c client) create(sandboxID, name string, attempt uint32) string {
	c.t.Helper()
	resp, err := c.CreateContainer(c.t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandboxID, Config: containerConfig(name, attempt), SandboxConfig: sandboxConfig("", 0),
	})
	if err != nil {
		c.t.Fatalf("create container %s: %v", name, err)
	}
	return resp.ContainerId
}

func (c client) start(id string) {
	c.t.Helper()
	if _, err := c.StartContainer(c.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		c.t.Fatalf("start container: %v", err)
	}
}

func (c client) status(id string) *runtimeapi.ContainerStatus {
	c.t.Helper()
	resp, err := c.ContainerStatus(c.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		c.t.Fatalf("container status: %v", err)
	}
	return resp.Status
}

// events collects what a stream delivers until its context ends.
func (c client) events(ctx context.Context) <-chan *runtimeapi.ContainerEventResponse {
	c.t.Helper()
	stream, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		c.t.Fatalf("open the event stream: %v", err)
	}
	events := make(chan *runtimeapi.ContainerEventResponse, 1000)
	go func() {
		defer close(events)
		for {
			event, err := stream.Recv()
			if err != nil {
				return
			}
			events <- event
		}
	}()
	synctest.Wait()
	return events
}

// kinds empties the channel and returns the events as text.
func kinds(events <-chan *runtimeapi.ContainerEventResponse) []string {
	synctest.Wait()
	var all []string
	for {
		select {
		case event, ok := <-events:
			if !ok {
				return all
			}
			all = append(all, event.ContainerId[:4]+" "+event.ContainerEventType.String())
		default:
			return all
		}
	}
}

func code(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Fatalf("error %v: code %s, want %s", err, got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
