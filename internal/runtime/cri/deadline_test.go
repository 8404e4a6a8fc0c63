package cri

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// What a call says that is not answered, whichever end of the connection saw first that its time is
// over.
func TestNoAnswer(t *testing.T) {
	reset := status.Error(codes.Canceled, "stream terminated by RST_STREAM with error code: CANCEL")
	late := status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	create := &runtimeapi.CreateContainerRequest{Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "main"}}}
	for _, tc := range []struct {
		name    string
		method  string
		req     any
		callers time.Duration // the caller's deadline, 0: none
		cancel  time.Duration // when the caller gives up, 0: never
		after   time.Duration // when the call ends
		err     error
		class   error
		want    string
	}{
		{
			name: "our clock", method: "CreateContainer", req: create, after: 2 * time.Minute, err: late,
			class: ErrTimeout, want: "CreateContainer: no answer from the container runtime within 2m0s",
		},
		{
			name: "the runtime's clock", method: "CreateContainer", req: create, after: 2 * time.Minute, err: reset,
			class: ErrTimeout, want: "CreateContainer: no answer from the container runtime within 2m0s",
		},
		{
			name: "twice the time", method: "RunPodSandbox", req: &runtimeapi.RunPodSandboxRequest{}, after: 4 * time.Minute, err: reset,
			class: ErrTimeout, want: "RunPodSandbox: no answer from the container runtime within 4m0s",
		},
		{
			name: "time of its own", method: "StopContainer", req: &runtimeapi.StopContainerRequest{Timeout: 30}, after: 150 * time.Second, err: late,
			class: ErrTimeout, want: "StopContainer: no answer from the container runtime within 2m30s",
		},
		{
			name: "the caller's deadline", method: "Status", req: &runtimeapi.StatusRequest{}, callers: 5 * time.Second, after: 5 * time.Second, err: late,
			class: ErrTimeout, want: "Status: no answer from the container runtime within 5s",
		},
		{
			name: "the caller gives up", method: "StopContainer", req: &runtimeapi.StopContainerRequest{}, cancel: time.Second, after: time.Second, err: status.Error(codes.Canceled, "context canceled"),
			class: context.Canceled, want: "StopContainer: context canceled",
		},
		{
			name: "a deadline of the runtime's", method: "ExecSync", req: &runtimeapi.ExecSyncRequest{Timeout: 5}, after: 5 * time.Second,
			err: status.Error(codes.DeadlineExceeded, "timeout 5s exceeded"), class: ErrTimeout, want: "ExecSync: timeout 5s exceeded",
		},
		{
			name: "an answer at the last moment", method: "CreateContainer", req: create, after: 2 * time.Minute, err: status.Error(codes.NotFound, "no such sandbox"),
			class: ErrNotFound, want: "CreateContainer: no such sandbox",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, err := New(Config{Endpoint: "/fake"})
				if err != nil {
					t.Fatal(err)
				}
				ctx := t.Context()
				if tc.callers > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tc.callers)
					defer cancel()
				}
				if tc.cancel > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithCancel(ctx)
					time.AfterFunc(tc.cancel, cancel)
				}
				err = c.Calls.intercept(runtimeServer)(ctx, "/runtime.v1.RuntimeService/"+tc.method, tc.req, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
					time.Sleep(tc.after)
					return tc.err
				})
				if err == nil || err.Error() != tc.want || !errors.Is(err, tc.class) || !errors.Is(err, tc.err) {
					t.Errorf("got %v, want %q of class %v", err, tc.want, tc.class)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The image service is named where it is another one.
func TestNoAnswerOfTheImageService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		<-ctx.Done()
		err := classify(ctx, "ImageStatus", imageServer, began, status.Error(codes.DeadlineExceeded, "context deadline exceeded"))
		if got, want := Message(err), "no answer from the image service within 1m0s"; got != want || !errors.Is(err, ErrTimeout) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// Calls for a pod are known while they are under way: of which container, since when an answer is
// due, and when it is given up.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{Endpoint: "/fake"})
		if err != nil {
			t.Fatal(err)
		}
		call := func(ctx context.Context, method string, req any) {
			err := c.Calls.intercept(runtimeServer)(ctx, "/runtime.v1.RuntimeService/"+method, req, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
				time.Sleep(time.Minute)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		began := time.Now()
		web := WithPod(t.Context(), "web")
		go call(web, "RunPodSandbox", &runtimeapi.RunPodSandboxRequest{})
		go call(web, "CreateContainer", &runtimeapi.CreateContainerRequest{Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "main"}}})
		go call(web, "StopContainer", &runtimeapi.StopContainerRequest{ContainerId: "c1", Timeout: 30})
		go call(web, "ExecSync", &runtimeapi.ExecSyncRequest{ContainerId: "c1"})
		go call(WithPod(t.Context(), "other"), "StartContainer", &runtimeapi.StartContainerRequest{ContainerId: "c2"})
		go call(t.Context(), "Status", &runtimeapi.StatusRequest{})
		synctest.Wait()
		observed := &pod.Status{UID: "web", Containers: []pod.ContainerStatus{{ID: "c1", Name: "side"}}}
		want := []Wait{
			{Call: "CreateContainer", Container: "main", Since: began, Until: began.Add(2 * time.Minute)},
			{Call: "RunPodSandbox", Since: began, Until: began.Add(4 * time.Minute)},
			{Call: "StopContainer", Container: "side", Since: began.Add(30 * time.Second), Until: began.Add(150 * time.Second)},
		}
		if diff := cmp.Diff(want, c.Calls.Waits(observed)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if w := c.Calls.Waits(observed); len(w) != 0 {
			t.Errorf("answered, and still waited for: %v", w)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A rule for a call that does not exist would leave the one that is meant an ordinary call.
func TestRulesAreOfCalls(t *testing.T) {
	for op := range rules {
		_, ofRuntime := reflect.TypeFor[runtimeapi.RuntimeServiceClient]().MethodByName(op)
		_, ofImages := reflect.TypeFor[runtimeapi.ImageServiceClient]().MethodByName(op)
		if !ofRuntime && !ofImages {
			t.Errorf("CRI has no call %s", op)
		}
	}
}

func TestComputeLimit(t *testing.T) {
	for _, c := range []struct {
		op              string
		req             any
		time, requested time.Duration
		forever, finish bool
	}{
		{op: "Status", time: time.Minute},
		{op: "RunPodSandbox", time: 2 * time.Minute, finish: true},
		{op: "CreateContainer", time: time.Minute, finish: true},
		{op: "StopContainer", req: &runtimeapi.StopContainerRequest{Timeout: 7}, time: 67 * time.Second, requested: 7 * time.Second},
		{op: "ExecSync", req: &runtimeapi.ExecSyncRequest{Timeout: 7}, time: 67 * time.Second, requested: 7 * time.Second},
		{op: "ExecSync", req: &runtimeapi.ExecSyncRequest{}, time: time.Minute, forever: true},
		{op: "CheckpointContainer", req: &runtimeapi.CheckpointContainerRequest{Timeout: 30}, time: time.Minute},
		{op: "CheckpointContainer", req: &runtimeapi.CheckpointContainerRequest{Timeout: 90}, time: 90 * time.Second, requested: 30 * time.Second},
		{op: "PullImage", time: time.Minute, forever: true},
	} {
		got := computeLimit(c.op, c.req, time.Minute)
		if got.time != c.time || got.requested != c.requested || got.unlimited != c.forever || got.finishes != c.finish {
			t.Errorf("%s %v: got %+v", c.op, c.req, got)
		}
	}
}
