package node

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"berth/internal/record/events/messagestest"
)

// fakeRuntime answers as a test says.
type fakeRuntime struct {
	mu       sync.Mutex
	err      error
	version  string
	ready    bool
	network  bool
	asked    int
	versions int
}

func (r *fakeRuntime) Version(context.Context) (*runtimeapi.VersionResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.versions++
	return &runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: r.version}, r.err
}

func (r *fakeRuntime) Status(context.Context) (*runtimeapi.StatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.err != nil {
		return nil, r.err
	}
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: "RuntimeReady", Status: r.ready, Reason: "Starting", Message: "not yet"},
			{Type: "NetworkReady", Status: r.network, Reason: "NetworkPluginNotReady", Message: "no CNI"},
		}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{
			{Name: "runc", Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}}, {Name: ""},
		},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}, nil
}

func (r *fakeRuntime) set(f func(*fakeRuntime)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestRuntimeHealth(t *testing.T) {
	const noNetwork = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:no CNI"
	synctest.Test(t, func(t *testing.T) {
		r := &fakeRuntime{err: errors.New("no such file"), version: "2.3.7"}
		var changes atomic.Int32
		again := make(chan struct{}, 1)
		broke, streaming := make(chan struct{}, 1), atomic.Bool{}
		h := NewRuntimeHealth(RuntimeHealthConfig{
			Runtime: r, Changed: func() { changes.Add(1) }, Network: again, Streaming: streaming.Load, Broke: broke,
			Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()

		expect := func(step, runtimeErr, networkErr string, version string, total int32) {
			t.Helper()
			synctest.Wait()
			s := h.State()
			messagestest.SawError(h.Ready())
			messagestest.SawError(h.NetworkReady())
			if diff := cmp.Diff([]string{runtimeErr, networkErr, version}, []string{text(h.Ready()), text(h.NetworkReady()), s.Version}); diff != "" {
				t.Errorf("%s: state (-want +got):\n%s", step, diff)
			}
			if got := changes.Load(); got != total {
				t.Errorf("%s: %d changes told, want %d", step, got, total)
			}
		}
		unknown := "container runtime network not ready: network state unknown"
		expect("no answer yet", "container runtime status check may not have completed yet", unknown, "", 1)

		r.set(func(r *fakeRuntime) { r.err = nil })
		after(runtimeCheckPeriod)
		expect("answers", "container runtime not ready: RuntimeReady=false reason:Starting message:not yet", noNetwork, "containerd://2.3.7", 2)

		r.set(func(r *fakeRuntime) { r.ready = true })
		after(runtimeCheckPeriod)
		expect("is ready", "", noNetwork, "containerd://2.3.7", 3)

		r.set(func(r *fakeRuntime) { r.network = true })
		after(runtimeCheckPeriod)
		expect("has a network", "", "", "containerd://2.3.7", 4)
		s := h.State()
		if diff := cmp.Diff([]v1.NodeRuntimeHandler{
			{Name: ""},
			{Name: "runc", Features: &v1.NodeRuntimeHandlerFeatures{UserNamespaces: ptr.To(true), RecursiveReadOnlyMounts: ptr.To(false)}},
		}, s.Handlers); diff != "" {
			t.Errorf("handlers (-want +got):\n%s", diff)
		}
		if s.Features == nil || !*s.Features.SupplementalGroupsPolicy {
			t.Errorf("features = %v", s.Features)
		}

		r.set(func(r *fakeRuntime) { r.asked, r.versions = 0, 0 })
		after(time.Hour)
		expect("at rest", "", "", "containerd://2.3.7", 4)
		r.set(func(r *fakeRuntime) {
			if r.asked > int(time.Hour/runtimeCheckPeriod) || r.versions != 0 {
				t.Errorf("at rest, status was asked %d times and version %d times in an hour", r.asked, r.versions)
			}
		})

		r.set(func(r *fakeRuntime) { r.err = errors.New("gone") })
		after(runtimeDownAfter - runtimeCheckPeriod)
		expect("is silent for a moment", "", "", "containerd://2.3.7", 4)
		after(3 * runtimeCheckPeriod)
		expect("is silent", "container runtime is down", "", "containerd://2.3.7", 5)

		r.set(func(r *fakeRuntime) { r.err, r.version = nil, "2.4.0" })
		after(runtimeCheckPeriod)
		expect("is back as another", "", "", "containerd://2.4.0", 6)

		r.set(func(r *fakeRuntime) { r.network = false })
		again <- struct{}{}
		expect("has lost its network, which somebody told", "", noNetwork, "containerd://2.4.0", 7)

		r.set(func(r *fakeRuntime) { r.network = true })
		again <- struct{}{}
		expect("has a network again", "", "", "containerd://2.4.0", 8)
		streaming.Store(true)
		after(runtimeCheckPeriod)
		r.set(func(r *fakeRuntime) { r.asked = 0 })
		after(time.Hour)
		r.set(func(r *fakeRuntime) {
			if r.asked > int(time.Hour/time.Minute) || r.asked == 0 {
				t.Errorf("with an open event stream, the status was requested %d times in an hour", r.asked)
			}
			r.network = false
		})
		again <- struct{}{}
		expect("reports that its network changed while it sends events", "", noNetwork, "containerd://2.4.0", 9)
		r.set(func(r *fakeRuntime) { r.network = true })
		after(runtimeCheckPeriod)
		expect("has a network while it sends events", "", "", "containerd://2.4.0", 10)

		// The stream breaks half a minute after a check: the next one is at once, and a runtime
		// that does not answer is down 30 s later, whenever the last check was.
		after(time.Minute / 2)
		r.set(func(r *fakeRuntime) { r.err = errors.New("gone") })
		streaming.Store(false)
		broke <- struct{}{}
		after(runtimeDownAfter)
		expect("sends no events for a moment", "", "", "containerd://2.4.0", 10)
		after(runtimeCheckPeriod + time.Second)
		expect("does not answer after its stream broke", "container runtime is down", "", "containerd://2.4.0", 11)

		// It hangs while its stream is open.
		r.set(func(r *fakeRuntime) { r.err = nil })
		after(runtimeCheckPeriod)
		expect("answers again", "", "", "containerd://2.4.0", 12)
		streaming.Store(true)
		after(2 * time.Minute)
		r.set(func(r *fakeRuntime) { r.err = errors.New("timed out") })
		after(time.Minute + runtimeDownAfter + runtimeCheckPeriod)
		expect("hangs, and its stream is open", "container runtime is down", "", "containerd://2.4.0", 13)

		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v, want the context's error", err)
		}
	})
}
