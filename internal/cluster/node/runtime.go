package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"berth/internal/health"
)

const (
	// runtimeCheckPeriod is how often the runtime is asked for its status while nothing reports
	// that it changed.
	runtimeCheckPeriod = 5 * time.Second
	// streamingCheckPeriod is the same while its event stream is open: the stream breaks as soon as
	// the runtime exits, and the check runs at once.
	streamingCheckPeriod = time.Minute
	// runtimeDownAfter is how long a runtime that does not answer counts as ready: it may be
	// starting again.
	runtimeDownAfter = 30 * time.Second
)

// runtimeRetry spaces the checks while the runtime or its network is not ready.
var runtimeRetry = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Cap: runtimeCheckPeriod, Steps: math.MaxInt}

// Runtime is what the runtime check asks the container runtime.
type Runtime interface {
	// Version returns the runtime's name and version.
	Version(context.Context) (*runtimeapi.VersionResponse, error)
	// Status returns the runtime's conditions, handlers and features.
	Status(context.Context) (*runtimeapi.StatusResponse, error)
}

// RuntimeState is what the runtime last told of itself. Its slices and pointers are shared and must
// not be changed.
type RuntimeState struct {
	// Version is the name and version, as "containerd://2.3.7"; "" before the first answer.
	Version string
	// Handlers by name; nil before the first answer.
	Handlers []v1.NodeRuntimeHandler
	// Features that do not depend on a handler; nil if the runtime tells none.
	Features *v1.NodeFeatures
}

// RuntimeHealth asks the runtime how it is. It is safe for concurrent use.
type RuntimeHealth struct {
	cfg RuntimeHealthConfig
	log *slog.Logger

	ready, network health.Latch // the runtime's own last word

	mu     sync.RWMutex
	state  RuntimeState // guarded by mu
	lastOK time.Time    // guarded by mu; when the runtime last said that it is ready; before that, when this began
	// unready is when the first check began since which the runtime has not said that it is ready;
	// zero if it has. Guarded by mu.
	unready time.Time
	known   bool // guarded by mu; the runtime has said that it is ready
	silent  bool // guarded by mu; it did not answer since: it may come back as another version
}

// RuntimeHealthConfig is what a RuntimeHealth reads and notifies.
type RuntimeHealthConfig struct {
	Runtime Runtime
	// Changed is called after each change of the state. It must not block.
	Changed func()
	// Network has an element when the network of pods has changed; nil if nothing reports that.
	Network <-chan struct{}
	// Streaming reports whether the runtime's event stream is open, Broke has an element when it
	// has ended.
	Streaming func() bool
	Broke     <-chan struct{}
	Log       *slog.Logger
}

// NewRuntimeHealth returns a check of the runtime that has not run yet.
func NewRuntimeHealth(cfg RuntimeHealthConfig) *RuntimeHealth {
	h := &RuntimeHealth{cfg: cfg, log: cfg.Log, lastOK: time.Now()}
	h.network.Set(errors.New("container runtime network not ready: network state unknown"))
	return h
}

// State returns what is known of the runtime now.
func (h *RuntimeHealth) State() RuntimeState {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.state
}

// Ready says why the runtime is not ready; nil if it is.
func (h *RuntimeHealth) Ready() error {
	if err := h.ready.Err(); err != nil {
		return err
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	switch {
	case !h.known:
		return health.Since(errors.New("container runtime status check may not have completed yet"), h.lastOK)
	case !h.unready.IsZero() && time.Since(h.unready) > runtimeDownAfter:
		return health.Since(errors.New("container runtime is down"), h.lastOK)
	}
	return nil
}

// NetworkReady says why the runtime has no network for pods; nil if it has.
func (h *RuntimeHealth) NetworkReady() error { return h.network.Err() }

// Run checks the runtime until ctx is done: with back-off up to 5 s while something is not ready,
// and each 5 s otherwise, or each minute while changes of the runtime and its network are reported.
func (h *RuntimeHealth) Run(ctx context.Context) error {
	retry := runtimeRetry.DelayFunc()
	said := ""
	for {
		err := h.check(ctx)
		ready, network := h.Ready(), h.NetworkReady()
		if now := describeRuntime(h.State(), ready, network); now != said {
			h.log.Info("state of the container runtime", "state", now)
			said = now
			h.cfg.Changed()
		}
		next := h.period()
		if err != nil || ready != nil || network != nil {
			next = retry()
		} else {
			retry = runtimeRetry.DelayFunc()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.cfg.Network:
			retry = runtimeRetry.DelayFunc()
		case <-h.cfg.Broke:
			retry = runtimeRetry.DelayFunc()
		case <-time.After(next):
		}
	}
}

// period returns how long a check of a runtime that is ready holds, unless something is reported.
func (h *RuntimeHealth) period() time.Duration {
	if h.cfg.Network != nil && h.cfg.Streaming() {
		return streamingCheckPeriod
	}
	return runtimeCheckPeriod
}

// describeRuntime says everything of a state, for comparison and for the log.
func describeRuntime(s RuntimeState, problems ...error) string {
	var b strings.Builder
	b.WriteString(s.Version)
	for _, h := range s.Handlers {
		fmt.Fprintf(&b, " %s", h.Name)
		if h.Features != nil {
			fmt.Fprintf(&b, "(rro=%t userns=%t)", ptr.Deref(h.Features.RecursiveReadOnlyMounts, false), ptr.Deref(h.Features.UserNamespaces, false))
		}
	}
	if s.Features != nil {
		fmt.Fprintf(&b, " supplementalGroupsPolicy=%t", ptr.Deref(s.Features.SupplementalGroupsPolicy, false))
	}
	for _, err := range problems {
		if err != nil {
			fmt.Fprintf(&b, "; %v", err)
		}
	}
	return b.String()
}

// check asks once and keeps the answer. Without one, what was known stays, so that the Node does
// not flap.
func (h *RuntimeHealth) check(ctx context.Context) error {
	h.mu.Lock()
	version, silent := h.state.Version, h.silent
	if h.unready.IsZero() {
		h.unready = time.Now()
	}
	h.mu.Unlock()
	answer, err := h.cfg.Runtime.Status(ctx)
	if err == nil && (version == "" || silent) {
		version, err = h.version(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent = err != nil
	if err != nil {
		return err
	}
	h.state = readRuntimeState(answer)
	h.state.Version = version
	notReady := unmet(answer, runtimeapi.RuntimeReady, "container runtime not ready")
	h.ready.Set(notReady)
	h.network.Set(unmet(answer, runtimeapi.NetworkReady, "container runtime network not ready"))
	if notReady == nil {
		h.lastOK, h.unready, h.known = time.Now(), time.Time{}, true
	}
	return nil
}

func (h *RuntimeHealth) version(ctx context.Context) (string, error) {
	v, err := h.cfg.Runtime.Version(ctx)
	if err != nil {
		return "", err
	}
	return v.RuntimeName + "://" + v.RuntimeVersion, nil
}

// readRuntimeState reads the runtime's answer; the version is not in it.
func readRuntimeState(r *runtimeapi.StatusResponse) RuntimeState {
	s := RuntimeState{Handlers: []v1.NodeRuntimeHandler{}}
	for _, h := range r.GetRuntimeHandlers() {
		out := v1.NodeRuntimeHandler{Name: h.Name}
		if f := h.GetFeatures(); f != nil {
			out.Features = &v1.NodeRuntimeHandlerFeatures{
				RecursiveReadOnlyMounts: ptr.To(f.RecursiveReadOnlyMounts), UserNamespaces: ptr.To(f.UserNamespaces),
			}
		}
		s.Handlers = append(s.Handlers, out)
	}
	slices.SortFunc(s.Handlers, func(a, b v1.NodeRuntimeHandler) int { return strings.Compare(a.Name, b.Name) })
	if f := r.GetFeatures(); f != nil {
		s.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: ptr.To(f.SupplementalGroupsPolicy)}
	}
	return s
}

// unmet returns an error in the kubelet's words if the runtime does not meet a condition.
func unmet(r *runtimeapi.StatusResponse, kind, what string) error {
	var c *runtimeapi.RuntimeCondition // which answers for itself if it is missing
	if i := slices.IndexFunc(r.GetStatus().GetConditions(), func(c *runtimeapi.RuntimeCondition) bool { return c.GetType() == kind }); i >= 0 {
		c = r.Status.Conditions[i]
	}
	if c.GetStatus() {
		return nil
	}
	return fmt.Errorf("%s: %s=%t reason:%s message:%s", what, kind, c.GetStatus(), c.GetReason(), c.GetMessage())
}
