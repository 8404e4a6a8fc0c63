package cri_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/cri/critest"
)

const image = "berth.local/hello:1"

func connect(t *testing.T, opts ...critest.Option) (*critest.Runtime, *cri.Client) {
	t.Helper()
	fake := critest.Start(t, append(opts, critest.WithImages(image))...)
	c, err := cri.New(cri.Config{Endpoint: "fake", Dial: fake.Dialer()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return fake, c
}

func sandboxConfig(uid string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: uid},
		Labels:   map[string]string{cri.PodUIDLabel: uid, cri.PodNameLabel: "web", cri.PodNamespaceLabel: "default"},
		Linux:    &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{}}},
	}
}

func TestEndpointMustBeASocket(t *testing.T) {
	for _, e := range []string{"", "http://x", "containerd.sock"} {
		if _, err := cri.New(cri.Config{Endpoint: e}); err == nil || !strings.Contains(err.Error(), "unix://") {
			t.Errorf("%q: got %v, want an error that says what to use", e, err)
		}
	}
}

// A handler with another recorded name is asked for by that one.
func TestRecordedHandlers(t *testing.T) {
	for recorded, handlers := range map[string]map[string]string{"podshim": nil, "keeper": {"podshim": "keeper"}} {
		fake := critest.Start(t, critest.WithHandlers(&runtimeapi.RuntimeHandler{Name: recorded}))
		c, err := cri.New(cri.Config{Endpoint: "fake", Dial: fake.Dialer(), RecordedHandlers: handlers})
		if err != nil {
			t.Fatal(err)
		}
		id, err := c.RunPodSandbox(t.Context(), sandboxConfig("a"), "podshim")
		if err != nil {
			t.Fatal(err)
		}
		if st, err := c.PodSandboxStatus(t.Context(), id); err != nil || st.RuntimeHandler != recorded {
			t.Errorf("the runtime was asked for %q, %v; want %q", st.GetRuntimeHandler(), err, recorded)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestErrorClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, c := connect(t)
		ctx := t.Context()
		if _, err := c.PodSandboxStatus(ctx, "nobody"); !errors.Is(err, cri.ErrNotFound) {
			t.Errorf("unknown sandbox: %v", err)
		}
		for _, err := range []error{c.StopPodSandbox(ctx, "nobody"), c.RemovePodSandbox(ctx, "nobody"), c.StopContainer(ctx, "nobody", time.Second), c.RemoveContainer(ctx, "nobody")} {
			if err != nil {
				t.Errorf("stopping and removing what is not there: %v", err)
			}
		}
		if _, err := c.RunPodSandbox(ctx, sandboxConfig("a"), ""); err != nil {
			t.Fatal(err)
		}
		if _, err := c.RunPodSandbox(ctx, sandboxConfig("a"), ""); !errors.Is(err, cri.ErrNameReserved) {
			t.Errorf("same name: %v", err)
		}
		fake.Calls.Fail("Status", 1, status.Error(codes.Unimplemented, "no"))
		if _, err := c.Status(ctx); !errors.Is(err, cri.ErrUnimplemented) {
			t.Errorf("unimplemented: %v", err)
		}
		fake.Calls.Hang("Status", 1)
		if _, err := c.Status(ctx); !errors.Is(err, cri.ErrTimeout) {
			t.Errorf("hanging: %v", err)
		}
		fake.Calls.Fail("Status", 1, status.Error(codes.Unknown, "the words"))
		if _, err := c.Status(ctx); err == nil || cri.Message(err) != "the words" || err.Error() != "Status: the words" {
			t.Errorf("unknown: %v", err)
		}
		fake.Down()
		if _, err := c.Status(ctx); !errors.Is(err, cri.ErrUnavailable) {
			t.Errorf("down: %v", err)
		}
	})
}

func TestMutatingCallsAreNotCancelledHalfWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, c := connect(t)
		fake.Calls.SetLatency("RunPodSandbox", time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		id, err := c.RunPodSandbox(ctx, sandboxConfig("a"), "")
		if err != nil || id == "" {
			t.Fatalf("got %q, %v: a cancelled call would keep the name reserved", id, err)
		}
		if _, err := c.RunPodSandbox(ctx, sandboxConfig("b"), ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call whose context has ended was made: %v", err)
		}
		fake.Calls.SetLatency("Status", time.Second)
		ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := c.Status(ctx); err == nil {
			t.Error("a reading call went on after its context")
		}
	})
}

func TestReadPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, c := connect(t)
		ctx := t.Context()
		empty, err := c.Observer.ReadPod(ctx, "a", nil, nil)
		if err != nil || len(empty.Sandboxes)+len(empty.Containers) != 0 {
			t.Fatalf("unknown pod: %+v, %v", empty, err)
		}
		cfg := sandboxConfig("a")
		sb, err := c.RunPodSandbox(ctx, cfg, "")
		if err != nil {
			t.Fatal(err)
		}
		p := &v1.Pod{}
		p.Name, p.Namespace, p.UID = "web", "default", "a"
		spec := &v1.Container{Name: "c", TerminationMessagePath: "/dev/termination-log"}
		annotations, err := cri.ContainerAnnotations(p, spec, "abc", 3)
		if err != nil {
			t.Fatal(err)
		}
		id, err := c.CreateContainer(ctx, sb, &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c", Attempt: 3}, Image: &runtimeapi.ImageSpec{Image: image}, Labels: cri.ContainerLabels(p, spec), Annotations: annotations,
			Mounts: []*runtimeapi.Mount{
				{ContainerPath: "/dev/termination-log", HostPath: "/pods/a/log"},
				{ContainerPath: "/deep/", HostPath: "/d", Readonly: true, RecursiveReadOnly: true},
			},
		}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		created, err := c.Observer.ReadPod(ctx, "a", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		cs := created.FindContainer("c")
		if cs == nil || cs.ID != id || cs.State != pod.StateCreated || cs.Attempt != 3 || cs.Hash != "abc" || cs.TerminationLog != "/pods/a/log" || cs.SandboxID != sb ||
			!slices.Equal(cs.RecursiveReadOnly, []string{"/deep"}) {
			t.Fatalf("got %+v", cs)
		}
		if created.Name != "web" || created.Namespace != "default" || len(created.IPs) != 1 || created.ReadySandbox() == nil {
			t.Fatalf("got %+v", created)
		}
		if err := c.StartContainer(ctx, id); err != nil {
			t.Fatal(err)
		}
		running, err := c.Observer.ReadPod(ctx, "a", created, nil)
		if err != nil || running.FindContainer("c").State != pod.StateRunning || running.FindContainer("c").StartedAt.IsZero() {
			t.Fatalf("got %+v, %v", running, err)
		}
		fake.Calls.Reset()
		if _, err := c.Observer.ReadPod(ctx, "a", running, nil); err != nil {
			t.Fatal(err)
		}
		if n := len(fake.Calls.All()); n != 2 {
			t.Errorf("%d calls to read a pod in which nothing changed, want the two lists", n)
		}
		all, err := c.Observer.ListPods(ctx)
		if err != nil || all["a"] == nil || !all["a"].Matches(running) || all["a"].Matches(created) {
			t.Fatalf("got %+v, %v", all, err)
		}
		fake.Calls.Reset()
		first, err := c.Observer.ReadPod(ctx, "a", nil, all["a"])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(running, first, cmpopts.IgnoreFields(pod.Status{}, "ReadAt")); diff != "" || !first.ReadAt.Equal(all["a"].ListedAt) {
			t.Errorf("read from the lists at %v (-read on its own +read from the lists): %s", first.ReadAt, diff)
		}
		if n := len(fake.Calls.All()); n != 2 {
			t.Errorf("%d calls to read a pod that was listed, want a status of its sandbox and one of its container", n)
		}
		fake.Kill("c", 7)
		exited, err := c.Observer.ReadPod(ctx, "a", running, nil)
		if err != nil || exited.FindContainer("c").ExitCode != 7 || exited.FindContainer("c").FinishedAt.IsZero() {
			t.Fatalf("got %+v, %v", exited, err)
		}
	})
}

// What a list says of when a sandbox was made is not relied upon: containerd does not know it of
// some pods from before its restart.
func TestReadPodWithoutListedTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, c := connect(t, critest.WithoutListedTimes())
		if _, err := c.RunPodSandbox(t.Context(), sandboxConfig("a"), ""); err != nil {
			t.Fatal(err)
		}
		all, err := c.Observer.ListPods(t.Context())
		if err != nil || all["a"] == nil {
			t.Fatalf("got %+v, %v", all, err)
		}
		want := fake.SandboxesOf("a")[0].CreatedAt
		for _, listed := range []*cri.RuntimePod{nil, all["a"]} {
			got, err := c.Observer.ReadPod(t.Context(), "a", nil, listed)
			if err != nil || len(got.Sandboxes) != 1 || !got.Sandboxes[0].CreatedAt.Equal(want) {
				t.Errorf("listed %+v: got %+v, %v, want a sandbox made at %v", listed, got, err, want)
			}
		}
	})
}

func TestEventsWaitForTheRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, c := connect(t)
		fake.Down()
		ctx, cancel := context.WithCancel(t.Context())
		opened, uids, done := make(chan struct{}, 1), make(chan pod.UID, 10), make(chan error, 1)
		go func() {
			done <- c.Observer.Events(ctx, func() { opened <- struct{}{} }, func(uid pod.UID) { uids <- uid })
		}()
		time.Sleep(time.Minute)
		fake.Serve()
		<-opened
		synctest.Wait()
		if _, err := c.RunPodSandbox(ctx, sandboxConfig("a"), ""); err != nil {
			t.Fatal(err)
		}
		if uid := <-uids; uid != "a" {
			t.Errorf("the event names %q", uid)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		_, c := connect(t, critest.WithoutEvents())
		if err := c.Observer.Events(t.Context(), func() {}, func(pod.UID) {}); !errors.Is(err, cri.ErrUnimplemented) {
			t.Errorf("a runtime without events: %v", err)
		}
	})
}

func TestTerminationGrace(t *testing.T) {
	for want, a := range map[int64]map[string]string{
		5:  {cri.DeletionGracePeriodAnnotation: "5", cri.TerminationGracePeriodAnnotation: "30"},
		30: {cri.TerminationGracePeriodAnnotation: "30"},
	} {
		if got, ok := cri.TerminationGrace(&pod.ContainerStatus{Annotations: a}); !ok || got != want {
			t.Errorf("%v: got %d, %v", a, got, ok)
		}
	}
	if _, ok := cri.TerminationGrace(&pod.ContainerStatus{Annotations: map[string]string{cri.TerminationGracePeriodAnnotation: "x"}}); ok {
		t.Error("garbage is a grace period")
	}
}

// An image service of its own is asked for images, and the runtime for the rest.
func TestImageEndpoint(t *testing.T) {
	runtime, images := critest.Start(t), critest.Start(t, critest.WithImages(image))
	c, err := cri.New(cri.Config{Endpoint: "/runtime", ImageEndpoint: "/images", Dial: func(ctx context.Context, address string) (net.Conn, error) {
		if address == "/images" {
			return images.Dialer()(ctx, address)
		}
		return runtime.Dialer()(ctx, address)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if list, err := c.Images.ListImages(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("images %v, %v; want that of the image service", list, err)
	}
	if _, err := c.RunPodSandbox(t.Context(), sandboxConfig("u1"), ""); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := cri.New(cri.Config{Endpoint: "/runtime", ImageEndpoint: "http://x"}); err == nil || !strings.Contains(err.Error(), "image service") {
		t.Errorf("got %v, want an error that names the image service", err)
	}
}
