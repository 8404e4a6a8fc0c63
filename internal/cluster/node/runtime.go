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
	// runtimeCheckPeriod is the interval of status checks of the runtime while it reports no
	// changes.
	runtimeCheckPeriod = 5 * time.Second
	// streamingCheckPeriod is the interval while its event stream is open: the stream breaks as
	// soon as the runtime exits, and the check runs at once.
	streamingCheckPeriod = time.Minute
	// runtimeDownAfter is how long a runtime that does not answer counts as ready: it may be
	// restarting.
	runtimeDownAfter = 30 * time.Second
)

// runtimeRetry is the back-off of checks while the runtime or its network is not ready.
var runtimeRetry = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Cap: runtimeCheckPeriod, Steps: math.MaxInt}

// Runtime is the part of the CRI that the runtime check calls.
type Runtime interface {
	// Version returns the runtime's name and version.
	Version(context.Context) (*runtimeapi.VersionResponse, error)
	// Status returns the runtime's conditions, handlers and features.
	Status(context.Context) (*runtimeapi.StatusResponse, error)
}

// RuntimeState is the last reported state of the runtime. Its slices and pointers are shared;
// callers must not change them.
type RuntimeState struct {
	// Version is the name and version, such as "containerd://2.3.7"; "" before the first answer.
	Version string
	// Handlers by name; nil before the first answer.
	Handlers []v1.NodeRuntimeHandler
	// Features that do not depend on a handler; nil if the runtime reports none.
	Features *v1.NodeFeatures
}

// RuntimeHealth checks the status of the runtime. It is safe for concurrent use.
type RuntimeHealth struct {
	cfg RuntimeHealthConfig
	log *slog.Logger

	ready, network health.Latch // from the runtime's last answer

	mu     sync.RWMutex
	state  RuntimeState // guarded by mu
	lastOK time.Time    // guarded by mu; time of the last ready answer, at first the start time
	// unready is the start of the first check since the last ready answer; zero after one. Guarded
	// by mu.
	unready time.Time
	known   bool // guarded by mu; the runtime has been ready before
	silent  bool // guarded by mu; the last check failed: the version may change
}

// RuntimeHealthConfig is what a RuntimeHealth reads and notifies.
type RuntimeHealthConfig struct {
	Runtime Runtime
	// Changed is called after each change of the state. It must not block.
	Changed func()
	// Network has an element when the pod network has changed; nil if changes are not reported.
	Network <-chan struct{}
	// Streaming reports whether the runtime's event stream is open. Broke has an element when it
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

// State returns the last reported state of the runtime.
func (h *RuntimeHealth) State() RuntimeState {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.state
}

// Ready returns the reason why the runtime is not ready; nil if it is.
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

// NetworkReady returns the reason why the pod network is not ready; nil if it is.
func (h *RuntimeHealth) NetworkReady() error { return h.network.Err() }

// Run checks the runtime until ctx is done: with back-off up to 5 s while it is not ready,
// otherwise every 5 s, or every minute while changes of the runtime and its network are reported.
func (h *RuntimeHealth) Run(ctx context.Context) error {
	retry := runtimeRetry.DelayFunc()
	lastLogged := ""
	for {
		err := h.check(ctx)
		ready, network := h.Ready(), h.NetworkReady()
		if now := describeRuntime(h.State(), ready, network); now != lastLogged {
			h.log.Info("state of the container runtime", "state", now)
			lastLogged = now
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

// period returns the interval of checks of a ready runtime.
func (h *RuntimeHealth) period() time.Duration {
	if h.cfg.Network != nil && h.cfg.Streaming() {
		return streamingCheckPeriod
	}
	return runtimeCheckPeriod
}

// describeRuntime formats the whole state, for comparison and for the log.
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

// check reads the status once and stores it. Without an answer the old state stays, so that the
// Node does not flap.
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

// readRuntimeState converts the runtime's answer, which lacks the version.
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

// unmet returns an error with the kubelet's text if the runtime does not meet a condition.
func unmet(r *runtimeapi.StatusResponse, kind, what string) error {
	var c *runtimeapi.RuntimeCondition // nil is a valid receiver
	if i := slices.IndexFunc(r.GetStatus().GetConditions(), func(c *runtimeapi.RuntimeCondition) bool { return c.GetType() == kind }); i >= 0 {
		c = r.Status.Conditions[i]
	}
	if c.GetStatus() {
		return nil
	}
	return fmt.Errorf("%s: %s=%t reason:%s message:%s", what, kind, c.GetStatus(), c.GetReason(), c.GetMessage())
}
