package critest_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime/cri/critest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLifecycleAndEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := critest.Start(t, critest.WithImages(testImage))
		r.Programs.Set("web/main", critest.ExitsAfter(time.Hour, 3))
		c := connect(t, r)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		events := c.events(ctx)

		sb := c.sandbox("web")
		id := c.create(sb, "main", 0)
		c.start(id)
		want := []string{
			sb[:4] + " CONTAINER_CREATED_EVENT", sb[:4] + " CONTAINER_STARTED_EVENT",
			id[:4] + " CONTAINER_CREATED_EVENT", id[:4] + " CONTAINER_STARTED_EVENT",
		}
		if diff := cmp.Diff(want, kinds(events)); diff != "" {
			t.Errorf("events after the start (-want +got):\n%s", diff)
		}

		began := time.Now()
		time.Sleep(time.Hour)
		if diff := cmp.Diff([]string{id[:4] + " CONTAINER_STOPPED_EVENT"}, kinds(events)); diff != "" {
			t.Errorf("events after an hour (-want +got):\n%s", diff)
		}
		st := c.status(id)
		if st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 3 || st.Reason != "Error" {
			t.Errorf("status %v, want exited with 3", st)
		}
		if got := time.Unix(0, st.FinishedAt); !got.Equal(began.Add(time.Hour)) {
			t.Errorf("finished at %s, want %s", got, began.Add(time.Hour))
		}

		if _, err := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sb}); err != nil {
			t.Fatal(err)
		}
		want = []string{sb[:4] + " CONTAINER_STOPPED_EVENT", id[:4] + " CONTAINER_DELETED_EVENT", sb[:4] + " CONTAINER_DELETED_EVENT"}
		if diff := cmp.Diff(want, kinds(events)); diff != "" {
			t.Errorf("events of the removal (-want +got):\n%s", diff)
		}
		if left := len(r.Sandboxes()) + len(r.Containers()); left != 0 {
			t.Errorf("%d objects left after the removal", left)
		}
	})
}

func TestStopSignal(t *testing.T) {
	tests := []struct {
		name     string
		program  critest.Program
		timeout  int64
		takes    time.Duration
		exitCode int32
	}{
		{"obeys", critest.Program{StopCode: 143}, 30, 0, 143},
		{"takes its time", critest.Program{StopDelay: 5 * time.Second}, 30, 5 * time.Second, 0},
		{"too slow", critest.Program{StopDelay: 45 * time.Second}, 30, 30 * time.Second, 137},
		{"ignores", critest.Program{IgnoresStop: true}, 30, 30 * time.Second, 137},
		{"no grace", critest.Program{}, 0, 0, 137},
		{"own end first", critest.Program{IgnoresStop: true, Exits: true, After: 7 * time.Second, Code: 1}, 30, 7 * time.Second, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := critest.Start(t, critest.WithImages(testImage))
				r.Programs.SetImage(testImage, tt.program)
				c := connect(t, r)
				id := c.create(c.sandbox("web"), "main", 0)
				c.start(id)
				began := time.Now()
				if _, err := c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: tt.timeout}); err != nil {
					t.Fatal(err)
				}
				if got := time.Since(began); got != tt.takes {
					t.Errorf("stop took %s, want %s", got, tt.takes)
				}
				if got := c.status(id).ExitCode; got != tt.exitCode {
					t.Errorf("exit code %d, want %d", got, tt.exitCode)
				}
			})
		})
	}
}

func TestIdleStreamForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := critest.Start(t, critest.WithImages(testImage))
		c := connect(t, r)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		events := c.events(ctx)
		time.Sleep(time.Hour)
		sb := c.sandbox("web")
		if got := kinds(events); len(got) != 2 {
			t.Errorf("after an idle hour: events %v, want CREATED and STARTED of %s", got, sb[:4])
		}
	})
}

func TestStalledSubscriberBlocksMutations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := critest.Start(t, critest.WithImages(testImage))
		c := connect(t, r)
		streamCtx, closeStream := context.WithCancel(t.Context())
		defer closeStream()
		if _, err := c.GetContainerEvents(streamCtx, &runtimeapi.GetEventsRequest{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		sb := c.sandbox("web")

		// Without a reader the connection holds some events, the channel a hundred more.
		created := make(chan string, 10000)
		go func() {
			defer close(created)
			for attempt := range uint32(10000) {
				resp, err := c.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: sb, Config: containerConfig("main", attempt)})
				if err != nil {
					return
				}
				created <- resp.ContainerId
				if streamCtx.Err() != nil {
					return
				}
			}
		}()
		synctest.Wait()
		time.Sleep(time.Hour)
		n := len(created)
		if n < critest.EventBacklog || n > 10*critest.EventBacklog {
			t.Fatalf("%d containers were created beside a stalled subscriber, want somewhat more than %d", n, critest.EventBacklog)
		}
		id := <-created
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("start beside a stalled subscriber: %v, want DeadlineExceeded", err)
		}
		if _, err := c.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err != nil {
			t.Errorf("list beside a stalled subscriber: %v", err)
		}

		closeStream()
		synctest.Wait()
		for range created { // ends when the blocked call was released
		}
		if got := c.status(id).State; got != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the container whose start was given up is %s, want running", got)
		}
	})
}

func TestEventsWithoutSubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := critest.Start(t, critest.WithImages(testImage))
		c := connect(t, r)
		old := c.sandbox("old")
		time.Sleep(critest.EventRetention + time.Second)
		recent := c.sandbox("recent")
		time.Sleep(time.Minute)

		ctx, cancel := context.WithCancel(t.Context())
		want := []string{recent[:4] + " CONTAINER_CREATED_EVENT", recent[:4] + " CONTAINER_STARTED_EVENT"}
		if diff := cmp.Diff(want, kinds(c.events(ctx))); diff != "" {
			t.Errorf("replayed events, sandbox %s being too old (-want +got):\n%s", old[:4], diff)
		}
		cancel()
		synctest.Wait()
		c.create(recent, "lost", 0)
		synctest.Wait()
		kept := c.create(recent, "kept", 0)
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		want = []string{kept[:4] + " CONTAINER_CREATED_EVENT"}
		if diff := cmp.Diff(want, kinds(c.events(ctx))); diff != "" {
			t.Errorf("events after a stream had ended, of which the first is lost (-want +got):\n%s", diff)
		}
	})
}

func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := critest.Start(t, critest.WithImages(testImage))
		c := connect(t, r)
		sb := c.sandbox("web")
		id := c.create(sb, "main", 0)
		c.start(id)
		stream, err := c.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}

		r.Down()
		if _, err := stream.Recv(); err == nil || err == io.EOF {
			t.Errorf("the stream of a runtime that is down ended with %v, want an error", err)
		}
		_, err = c.Version(t.Context(), &runtimeapi.VersionRequest{})
		code(t, err, codes.Unavailable)
		if err := r.Kill("main", 9); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		back := time.Now()
		must(t, r.Serve())
		time.Sleep(time.Minute)

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if got := kinds(c.events(ctx)); len(got) != 0 {
			t.Errorf("events after the restart: %v, want none of an exit while down", got)
		}
		if st := c.status(id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 255 || st.Reason != "Unknown" || st.FinishedAt != back.UnixNano() {
			t.Errorf("after the restart: %v, want EXITED, 255, Unknown, finished at %d", st, back.UnixNano())
		}
	})
}

func TestCancelledCallKeepsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := critest.Start(t, critest.WithImages(testImage))
		r.Calls.SetLatency("RunPodSandbox", 70*time.Millisecond)
		c := connect(t, r)
		run := func(ctx context.Context) error {
			_, err := c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandboxConfig("web", 0)})
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		code(t, run(ctx), codes.DeadlineExceeded)
		code(t, run(t.Context()), codes.FailedPrecondition)
		time.Sleep(2 * critest.NameReservation)
		if err := run(t.Context()); err != nil {
			t.Errorf("after the reservation: %v", err)
		}
		code(t, run(t.Context()), codes.FailedPrecondition)
	})
}

func TestFaults(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "scripted")
	version := func(c client, ctx context.Context) codes.Code {
		_, err := c.Version(ctx, &runtimeapi.VersionRequest{})
		return status.Code(err)
	}
	tests := []struct {
		name   string
		script func(*critest.Runtime)
		want   []codes.Code
	}{
		{"next two", func(r *critest.Runtime) { r.Calls.Fail("Version", 2, unavailable) }, []codes.Code{codes.Unavailable, codes.Unavailable, codes.OK}},
		{"third", func(r *critest.Runtime) { r.Calls.FailNth("Version", 3, unavailable) }, []codes.Code{codes.OK, codes.OK, codes.Unavailable, codes.OK}},
		{"other method", func(r *critest.Runtime) { r.Calls.Fail("Status", 1, unavailable) }, []codes.Code{codes.OK}},
		{"hang", func(r *critest.Runtime) { r.Calls.Hang("Version", 1) }, []codes.Code{codes.DeadlineExceeded, codes.OK}},
		{"always", func(r *critest.Runtime) { r.Calls.Fail("", -1, unavailable) }, []codes.Code{codes.Unavailable, codes.Unavailable, codes.Unavailable}},
		{"cleared", func(r *critest.Runtime) { r.Calls.Fail("Version", 1, unavailable); r.Calls.ClearFaults() }, []codes.Code{codes.OK}},
		{"stall", func(r *critest.Runtime) { time.AfterFunc(90*time.Second, r.Calls.Stall()) }, []codes.Code{codes.DeadlineExceeded, codes.OK}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := critest.Start(t)
				c := connect(t, r)
				tt.script(r)
				var got []codes.Code
				for range tt.want {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					got = append(got, version(c, ctx))
					cancel()
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("answers (-want +got):\n%s", diff)
				}
				if n := r.Calls.Count("Version"); n != len(tt.want) {
					t.Errorf("%d calls counted, want %d", n, len(tt.want))
				}
			})
		})
	}
}

func TestFailAfterWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := critest.Start(t, critest.WithImages(testImage))
		c := connect(t, r)
		sb := c.sandbox("web")
		r.Calls.FailAfterWork("CreateContainer", 1, status.Error(codes.DeadlineExceeded, "scripted"))
		_, err := c.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: sb, Config: containerConfig("main", 0)})
		code(t, err, codes.DeadlineExceeded)
		if got := r.ContainersOf("web-uid"); len(got) != 1 {
			t.Errorf("containers %v, want the one whose creation was not answered", got)
		}
	})
}

func TestPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := critest.Start(t)
		r.Images.AddToRegistry(critest.RegistryImage{Image: critest.Image{Name: "nginx"}, Latency: 3 * time.Second})
		r.Images.AddToRegistry(critest.RegistryImage{Image: critest.Image{Name: "down.example/x:1"}, Err: critest.ErrRegistryUnavailable})
		c := connect(t, r)
		pull := func(name string) (string, error) {
			resp, err := c.image.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
			return resp.GetImageRef(), err
		}
		began := time.Now()
		id, err := pull("nginx:latest")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("the pull took %s, want 3s", took)
		}
		for _, name := range []string{id, "nginx", "docker.io/library/nginx:latest"} {
			resp, err := c.image.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
			if err != nil || resp.Image.GetId() != id {
				t.Errorf("status of %s: %v, %v, want image %s", name, resp, err, id)
			}
		}
		_, err = pull("nothing.example/y")
		code(t, err, codes.NotFound)
		_, err = pull("down.example/x:1")
		code(t, err, codes.Unknown)
	})
}
