package critest_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime/cri/critest"
)

// running starts a fake with one pod "web" whose container "main" runs, and an event stream from
// then on.
func running(t *testing.T, opts ...critest.Option) (r *critest.Runtime, c client, sandboxID, id string, events <-chan *runtimeapi.ContainerEventResponse) {
	t.Helper()
	r = critest.Start(t, append(opts, critest.WithImages(testImage))...)
	c = connect(t, r)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	events = c.events(ctx)
	sandboxID = c.sandbox("web")
	id = c.create(sandboxID, "main", 0)
	c.start(id)
	kinds(events)
	return r, c, sandboxID, id, events
}

func TestEnds(t *testing.T) {
	tests := []struct {
		name   string
		end    func(*critest.Runtime) error
		code   int32
		reason string
	}{
		{"kill", func(r *critest.Runtime) error { return r.Kill("default/web/main", 7) }, 7, "Error"},
		{"exit", func(r *critest.Runtime) error { return r.Kill("main", 0) }, 0, "Completed"},
		{"out of memory", func(r *critest.Runtime) error { return r.OOM("web/main") }, 137, "OOMKilled"},
		{"sandbox with the process namespace", func(r *critest.Runtime) error { return r.KillSandbox("default/web") }, 137, "Error"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, c, sb, id, events := running(t)
				must(t, tt.end(r))
				if st := c.status(id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != tt.code || st.Reason != tt.reason {
					t.Errorf("status %v, want EXITED, %d, %s", st, tt.code, tt.reason)
				}
				want := []string{id[:4] + " CONTAINER_STOPPED_EVENT"}
				if !r.Sandboxes()[0].Ready {
					want = append(want, sb[:4]+" CONTAINER_STOPPED_EVENT")
				}
				if diff := cmp.Diff(want, kinds(events)); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				if err := tt.end(r); err == nil {
					t.Error("the second time succeeds")
				}
			})
		})
	}
}

func TestBehindTheBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, c, sb, id, events := running(t)
		must(t, r.LoseAddress("web"))
		if got := r.Sandboxes()[0]; got.IP != "" || !got.Ready {
			t.Errorf("sandbox %+v, want ready without address", got)
		}
		must(t, r.RemoveBehindBack("main"))
		_, err := c.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		code(t, err, codes.NotFound)
		next := c.create(sb, "main", 0) // the name is free
		must(t, r.RemoveBehindBack("web-uid"))
		if left := len(r.Sandboxes()) + len(r.Containers()); left != 0 {
			t.Errorf("%d objects left", left)
		}
		if diff := cmp.Diff([]string{next[:4] + " CONTAINER_CREATED_EVENT"}, kinds(events)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestUnknownContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, c, _, id, _ := running(t)
		must(t, r.MakeUnknown("main"))
		if st := c.status(id); st.State != runtimeapi.ContainerState_CONTAINER_UNKNOWN {
			t.Errorf("state %s, want unknown", st.State)
		}
		if _, err := c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 10}); err != nil {
			t.Fatal(err)
		}
		if st := c.status(id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 255 || st.Reason != "Unknown" {
			t.Errorf("status %v, want EXITED, 255, Unknown", st)
		}
	})
}

func TestEventTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, c, sb, id, events := running(t)
		r.Events.Lose(1)
		c.create(sb, "lost", 0)
		told := c.create(sb, "told", 0)
		r.Events.Send(&runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT})
		want := []string{told[:4] + " CONTAINER_CREATED_EVENT", id[:4] + " CONTAINER_STARTED_EVENT"}
		if diff := cmp.Diff(want, kinds(events)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}

		stream, err := c.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
		must(t, err)
		synctest.Wait()
		r.Events.BreakStreams(status.Error(codes.Internal, "scripted"))
		_, err = stream.Recv()
		code(t, err, codes.Internal)
		if _, open := <-events; open {
			t.Error("the other stream is open")
		}
		_, err = c.Version(t.Context(), &runtimeapi.VersionRequest{})
		must(t, err)
	})
}

func TestRuntimeWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := critest.Start(t, critest.WithoutEvents(), critest.WithoutRuntimeConfig(), critest.WithImages(testImage))
		c := connect(t, r)
		stream, err := c.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		code(t, err, codes.Unimplemented)
		_, err = c.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{})
		code(t, err, codes.Unimplemented)
		c.start(c.create(c.sandbox("web"), "main", 0))
	})
}

func TestNetworkNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := critest.Start(t)
		r.SetCondition(runtimeapi.NetworkReady, false, "NetworkPluginNotReady", "cni plugin not initialized")
		c := connect(t, r)
		config := sandboxConfig("web", 0)
		_, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
		code(t, err, codes.Unknown)
		config.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
		}
		_, err = c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
		must(t, err)
	})
}

func TestLog(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := critest.Start(t, critest.WithLogs(root), critest.WithImages(testImage))
		c := connect(t, r)
		config := sandboxConfig("web", 0)
		config.LogDirectory = "/var/log/pods/web"
		resp, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
		must(t, err)
		id := c.create(resp.PodSandboxId, "main", 0)
		if err := r.Log("main", runtimeapi.Stdout, "too early"); err == nil {
			t.Error("a container that does not run writes a line")
		}
		c.start(id)
		must(t, r.Log("main", runtimeapi.Stderr, "oops"))
		content, err := os.ReadFile(filepath.Join(root, c.status(id).LogPath))
		must(t, err)
		if want := time.Now().Format(time.RFC3339Nano) + " stderr F oops\n"; string(content) != want {
			t.Errorf("log %q, want %q", content, want)
		}
	})
}

func TestCloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, c, _, id, _ := running(t)
		r.Programs.Set("main", critest.Program{IgnoresStop: true})
		r.Calls.Hang("Version", 1)
		done := make(chan error, 2)
		go func() {
			_, err := c.Version(t.Context(), &runtimeapi.VersionRequest{})
			done <- err
		}()
		go func() {
			_, err := c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 3600})
			done <- err
		}()
		synctest.Wait()
		r.Close()
		r.Close()
		<-done
		<-done
		if err := r.Serve(); err == nil {
			t.Error("a closed runtime serves")
		}
	})
}
