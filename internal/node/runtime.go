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
)

const (
	// runtimeCheckPeriod is how often the runtime is asked; nothing tells when it stops being ready.
	runtimeCheckPeriod = 5 * time.Second
	// runtimeDownAfter is how long a runtime that does not answer counts as ready: it may be starting again.
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

// RuntimeState is what the runtime last told of itself. Its slices and pointers are shared and must not be changed.
type RuntimeState struct {
	// Version is the name and version, as "containerd://2.3.7"; "" before the first answer.
	Version string
	// Handlers by name; nil before the first answer.
	Handlers []v1.NodeRuntimeHandler
	// Features that do not depend on a handler; nil if the runtime tells none.
	Features *v1.NodeFeatures
	// Err says why the runtime is not ready, NetworkErr why its network is not; nil if it is.
	Err, NetworkErr error
}

// RuntimeHealth asks the runtime how it is. It is safe for concurrent use.
type RuntimeHealth struct {
	runtime Runtime
	changed func()
	log     *slog.Logger

	mu     sync.RWMutex
	state  RuntimeState // guarded by mu; Err is the runtime's own word
	lastOK time.Time    // guarded by mu; when the runtime last said that it is ready
	silent bool         // guarded by mu; it did not answer since: it may come back as another version
}

// NewRuntimeHealth returns a check of the runtime. changed is called after each change of the state and must not block.
func NewRuntimeHealth(r Runtime, changed func(), log *slog.Logger) *RuntimeHealth {
	return &RuntimeHealth{
		runtime: r, changed: changed, log: log,
		state: RuntimeState{NetworkErr: errors.New("container runtime network not ready: network state unknown")},
	}
}

// State returns what is known of the runtime now.
func (h *RuntimeHealth) State() RuntimeState {
	h.mu.RLock()
	defer h.mu.RUnlock()
	s := h.state
	switch {
	case h.lastOK.IsZero() && s.Err == nil:
		s.Err = errors.New("container runtime status check may not have completed yet")
	case s.Err == nil && time.Since(h.lastOK) > runtimeDownAfter:
		s.Err = errors.New("container runtime is down")
	}
	return s
}

// Run asks until ctx is done: often while something is not ready, and else each 5 s.
func (h *RuntimeHealth) Run(ctx context.Context) error {
	retry := runtimeRetry.DelayFunc()
	said := ""
	for {
		err := h.check(ctx)
		s := h.State()
		if now := describeRuntime(s); now != said {
			h.log.Info("state of the container runtime", "state", now)
			said = now
			h.changed()
		}
		next := runtimeCheckPeriod
		if err != nil || s.Err != nil || s.NetworkErr != nil {
			next = retry()
		} else {
			retry = runtimeRetry.DelayFunc()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(next):
		}
	}
}

// describeRuntime says everything of a state, for comparison and for the log.
func describeRuntime(s RuntimeState) string {
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
	for _, err := range []error{s.Err, s.NetworkErr} {
		if err != nil {
			fmt.Fprintf(&b, "; %v", err)
		}
	}
	return b.String()
}

// check asks once and keeps the answer. Without one, what was known stays, so that the Node does not flap.
func (h *RuntimeHealth) check(ctx context.Context) error {
	h.mu.RLock()
	version, silent := h.state.Version, h.silent
	h.mu.RUnlock()
	answer, err := h.runtime.Status(ctx)
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
	if h.state.Err == nil {
		h.lastOK = time.Now()
	}
	return nil
}

func (h *RuntimeHealth) version(ctx context.Context) (string, error) {
	v, err := h.runtime.Version(ctx)
	if err != nil {
		return "", err
	}
	return v.RuntimeName + "://" + v.RuntimeVersion, nil
}

// readRuntimeState reads the runtime's answer; the version is not in it.
func readRuntimeState(r *runtimeapi.StatusResponse) RuntimeState {
	var s RuntimeState
	if c := findRuntimeCondition(r, runtimeapi.RuntimeReady); !c.GetStatus() {
		s.Err = fmt.Errorf("container runtime not ready: %s", describeRuntimeCondition(runtimeapi.RuntimeReady, c))
	}
	if c := findRuntimeCondition(r, runtimeapi.NetworkReady); !c.GetStatus() {
		s.NetworkErr = fmt.Errorf("container runtime network not ready: %s", describeRuntimeCondition(runtimeapi.NetworkReady, c))
	}
	s.Handlers = []v1.NodeRuntimeHandler{}
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

func findRuntimeCondition(r *runtimeapi.StatusResponse, kind string) *runtimeapi.RuntimeCondition {
	for _, c := range r.GetStatus().GetConditions() {
		if c.GetType() == kind {
			return c
		}
	}
	return nil
}

// describeRuntimeCondition says a condition that is not met in the kubelet's words.
func describeRuntimeCondition(kind string, c *runtimeapi.RuntimeCondition) string {
	return fmt.Sprintf("%s=%t reason:%s message:%s", kind, c.GetStatus(), c.GetReason(), c.GetMessage())
}
