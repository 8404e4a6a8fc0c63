package cri_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/cri/critest"
)

// running starts a container whose commands take so long.
func running(t *testing.T, fake *critest.Runtime, c *cri.Client, takes time.Duration) pod.ContainerID {
	t.Helper()
	fake.Programs.Set("c", critest.Program{Exec: func([]string) critest.ExecResult { return critest.ExecResult{Stdout: "done", Takes: takes} }})
	sb, err := c.RunPodSandbox(t.Context(), sandboxConfig("a"), "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := c.CreateContainer(t.Context(), sb, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: image},
	}, sandboxConfig("a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestExecSync(t *testing.T) {
	for _, tc := range []struct {
		name    string
		timeout int64
		takes   time.Duration
		limit   time.Duration // of the context
		want    error
		after   time.Duration
	}{
		{"within its time", 5, time.Second, time.Hour, nil, time.Second},
		{"not within its time", 5, time.Minute, time.Hour, cri.ErrTimeout, 5 * time.Second},
		{"without a time it may take longer than other calls", 0, 10 * cri.DefaultTimeout, time.Hour, nil, 10 * cri.DefaultTimeout},
		{"without a time it ends with its context", 0, time.Hour, time.Minute, context.Canceled, time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake, c := connect(t)
				id := running(t, fake, c, tc.takes)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				stop := time.AfterFunc(tc.limit, cancel)
				defer stop.Stop()
				began := time.Now()
				resp, err := c.Streaming.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: string(id), Cmd: []string{"x"}, Timeout: tc.timeout})
				if !errors.Is(err, tc.want) || (err == nil && string(resp.Stdout) != "done") {
					t.Errorf("got %v, %v, want %v", resp, err, tc.want)
				}
				if took := time.Since(began); took != tc.after {
					t.Errorf("took %s, want %s", took, tc.after)
				}
			})
		})
	}
}

func TestContainerState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, c := connect(t)
		id := running(t, fake, c, 0)
		check := func(id pod.ContainerID, want pod.ContainerState) {
			t.Helper()
			if got, err := c.ContainerState(t.Context(), id); got != want || err != nil {
				t.Errorf("got %s, %v, want %s", got, err, want)
			}
		}
		check(id, pod.StateRunning)
		fake.Kill("c", 1)
		check(id, pod.StateExited)
		check("nobody", pod.StateExited)
		fake.Down()
		if _, err := c.ContainerState(t.Context(), id); !errors.Is(err, cri.ErrUnavailable) {
			t.Errorf("runtime is down: %v", err)
		}
	})
}

// A container can be stopped with its hook when its pod is not known any more.
func TestHookOfAContainer(t *testing.T) {
	hook := &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Path: "/bye", Port: intstr.FromString("web")}}
	ports := []v1.ContainerPort{{Name: "web", ContainerPort: 80}}
	a, err := cri.ContainerAnnotations(&v1.Pod{}, &v1.Container{Ports: ports, Lifecycle: &v1.Lifecycle{PreStop: hook}}, "h", 0)
	if err != nil {
		t.Fatal(err)
	}
	cs := &pod.ContainerStatus{Annotations: a}
	if got, err := cri.PreStopHandler(cs); err != nil || cmp.Diff(hook, got) != "" {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := cri.Ports(cs); err != nil || cmp.Diff(ports, got) != "" {
		t.Errorf("got %v, %v", got, err)
	}
	none := &pod.ContainerStatus{}
	if got, err := cri.PreStopHandler(none); got != nil || err != nil {
		t.Errorf("none: got %v, %v", got, err)
	}
	if got, err := cri.Ports(none); got != nil || err != nil {
		t.Errorf("none: got %v, %v", got, err)
	}
	broken := &pod.ContainerStatus{ID: "c", Annotations: map[string]string{cri.PreStopHandlerAnnotation: "{", cri.PortsAnnotation: "{"}}
	if _, err := cri.PreStopHandler(broken); err == nil {
		t.Error("a broken hook is no error")
	}
	if _, err := cri.Ports(broken); err == nil {
		t.Error("broken ports are no error")
	}
}
