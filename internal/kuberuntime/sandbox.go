package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"berth/internal/cri"
	"berth/internal/crispec"
	"berth/internal/journal"
	"berth/internal/logs"
	"berth/internal/pod"
	"berth/internal/userns"
)

// Delays between the tries to get a name that a cancelled call still holds.
const (
	reservedFirst = 50 * time.Millisecond
	reservedMost  = time.Second
)

// UserNamespaces gives each pod a range of the host's user ids.
type UserNamespaces interface {
	// Allocate returns the pod's range; it is the same one each time until it is released. It does not wait.
	Allocate(uid pod.UID) (userns.Range, error)
	// Release gives the pod's range back, if it has one. Idempotent.
	Release(uid pod.UID) error
}

// sandboxConfig returns the configuration of the pod's sandbox. When one is to be made, its user is told of what is wrong with it.
func (r *Runtime) sandboxConfig(ctx context.Context, req Request, a *podActions, attempt uint32, handler string) (*runtimeapi.PodSandboxConfig, error) {
	p := req.Pod
	cfg, warnings, err := r.translateSandbox(ctx, req, a, attempt, handler)
	if err != nil {
		if a.CreateSandbox && ctx.Err() == nil {
			r.Recorder.Event(p, "", v1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
		}
		return nil, fmt.Errorf("pod sandbox: %w", err)
	}
	if !a.CreateSandbox {
		return cfg, nil
	}
	for _, w := range warnings {
		r.Recorder.Event(p, "", v1.EventTypeWarning, w.Reason, w.Message)
		if w.OfNode != "" && r.NodeEvent != nil {
			// Once: each pod would say the same, and use up what the node may tell of itself.
			if _, told := r.nodeWarnings.LoadOrStore(w.OfNode, true); !told {
				r.NodeEvent(v1.EventTypeWarning, w.Reason, w.OfNode)
			}
		}
	}
	return cfg, nil
}

func (r *Runtime) translateSandbox(ctx context.Context, req Request, a *podActions, attempt uint32, handler string) (*runtimeapi.PodSandboxConfig, []crispec.Warning, error) {
	p := req.Pod
	in := crispec.Sandbox{
		Pod: p, Attempt: attempt, CgroupParent: req.CgroupParent, LogDirectory: logs.PodDir(r.PodLogsDir, p.Namespace, p.Name, string(p.UID)),
		DNS: r.DNS, VolumeGroups: req.VolumeGroups, Resources: r.Resources,
	}
	var err error
	if in.Users, err = r.users(p); err != nil {
		return nil, nil, err
	}
	// A sandbox that is there has its resolver and its host ports already.
	if a.CreateSandbox {
		// Differs from the kubelet, which lets the network of the pod take the port over: what clients send to the program goes to
		// the pod then. Here the pod waits: it is tried again like any sandbox that cannot be made.
		if r.CheckHostPorts != nil {
			if err = r.CheckHostPorts(p); err != nil {
				return nil, nil, err
			}
		}
		if in.DNS.Host, err = r.hostResolver(p); err != nil {
			return nil, nil, err
		}
		if crispec.HasUserNamespace(p) {
			if err := r.checkUserNamespaces(ctx, handler); err != nil {
				return nil, nil, err
			}
		}
	}
	return crispec.SandboxConfig(in)
}

// runtimeHandler returns what runs the pod's sandbox: for one that is there what the runtime says, since its class may have gone meanwhile. The
// user is told of a class that cannot be had.
func (r *Runtime) runtimeHandler(ctx context.Context, req Request, a *podActions) (string, error) {
	p := req.Pod
	if !a.CreateSandbox {
		return req.Observed.Sandboxes[0].RuntimeHandler, nil
	}
	if ptr.Deref(p.Spec.RuntimeClassName, "") == "" {
		return "", nil
	}
	err := errors.New("there is no API server to read it from")
	handler := ""
	if r.Objects != nil {
		handler, err = r.Objects.RuntimeHandler(ctx, p)
	}
	if err != nil {
		err = fmt.Errorf("failed to get runtime handler of RuntimeClass %q: %w", *p.Spec.RuntimeClassName, err)
		if ctx.Err() == nil {
			r.Recorder.Event(p, "", v1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
		}
	}
	return handler, err
}

// users returns the host's ids for the pod's user namespace, nil for a pod without one.
func (r *Runtime) users(p *v1.Pod) (*userns.Range, error) {
	if !crispec.HasUserNamespace(p) || r.UserNamespaces == nil {
		return nil, nil
	}
	ids, err := r.UserNamespaces.Allocate(p.UID)
	if err != nil {
		return nil, fmt.Errorf("user namespace: %w", err)
	}
	return &ids, nil
}

// checkUserNamespaces refuses a runtime that would run the pod as the host's users.
func (r *Runtime) checkUserNamespaces(ctx context.Context, handler string) error {
	st, err := r.CRI.Status(ctx)
	if err != nil {
		return fmt.Errorf("user namespace: %w", err)
	}
	for _, h := range st.RuntimeHandlers {
		if h.Name == handler && h.Features.GetUserNamespaces() {
			return nil
		}
	}
	return fmt.Errorf("user namespace: the runtime handler %q does not support user namespaces", handler)
}

// ReleaseUserNamespace gives back the ids of a pod of which nothing runs any more.
func (r *Runtime) ReleaseUserNamespace(uid pod.UID) error {
	if r.UserNamespaces == nil {
		return nil
	}
	return r.UserNamespaces.Release(uid)
}

const (
	// stubResolvConf may name only systemd-resolved's own address, which is the host's loopback; uplinkResolvConf then names the servers
	// that it asks (systemd-resolved.service(8)).
	stubResolvConf   = "/etc/resolv.conf"
	uplinkResolvConf = "/run/systemd/resolve/resolv.conf"
	// maxResolvConf is the most that is read of a resolv.conf.
	maxResolvConf = 1 << 20
)

// hostResolver reads the resolver that the pod inherits.
func (r *Runtime) hostResolver(p *v1.Pod) (crispec.Resolver, error) {
	switch path := ptr.Deref(r.ResolvConf, stubResolvConf); {
	case !crispec.InheritsResolver(p):
		return crispec.Resolver{}, nil
	case path == "":
		return crispec.LoopbackResolver(r.HostIPs()), nil
	case path == stubResolvConf && !p.Spec.HostNetwork:
		return readReachable(path, uplinkResolvConf)
	default:
		return readResolvConf(path)
	}
}

// readReachable reads the stub, or the uplink if the servers of the stub are only on the host's loopback.
//
// Differs from the kubelet: a pod with a network of its own does not get servers that it cannot reach when there are others.
func readReachable(stub, uplink string) (crispec.Resolver, error) {
	host, err := readResolvConf(stub)
	if err != nil || !host.IsLoopback() {
		return host, err
	}
	if beyond, err := readResolvConf(uplink); err == nil && len(beyond.Servers) > 0 {
		return beyond, nil
	}
	return host, nil
}

// CheckResolvConf tells of a resolver of the node that is more than pods can be given, or that cannot be read.
func (r *Runtime) CheckResolvConf() {
	path := ptr.Deref(r.ResolvConf, stubResolvConf)
	if path == "" || r.NodeEvent == nil {
		return
	}
	message := ""
	if host, err := readResolvConf(path); err != nil {
		message = err.Error()
	} else {
		message = host.ExplainExcess(path, r.DNS)
	}
	if message != "" {
		r.NodeEvent(v1.EventTypeWarning, "CheckLimitsForResolvConf", message)
	}
}

func readResolvConf(path string) (crispec.Resolver, error) {
	f, err := os.Open(path)
	if err != nil {
		return crispec.Resolver{}, fmt.Errorf("resolver of the node: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxResolvConf))
	if err != nil {
		return crispec.Resolver{}, fmt.Errorf("resolver of the node: %w", err)
	}
	return crispec.ParseResolvConf(b), nil
}

// createSandbox runs the sandbox. While a cancelled call holds its name it tries again; at last it takes the next attempt's name. It returns
// the configuration that the sandbox has.
func (r *Runtime) createSandbox(ctx context.Context, p *v1.Pod, cfg *runtimeapi.PodSandboxConfig, handler string) (pod.SandboxID, *runtimeapi.PodSandboxConfig, error) {
	select {
	case r.starting <- struct{}{}:
		defer func() { <-r.starting }()
	case <-ctx.Done():
		return "", cfg, ctx.Err()
	}
	id, err := whileReserved(ctx, func() (pod.SandboxID, error) {
		began := time.Now()
		id, err := r.CRI.RunPodSandbox(ctx, cfg, handler)
		r.note(p, "", "sandbox created", fmt.Sprintf("attempt %d", cfg.Metadata.Attempt), began, err)
		return id, err
	})
	if errors.Is(err, cri.ErrNameReserved) {
		cfg = proto.Clone(cfg).(*runtimeapi.PodSandboxConfig)
		cfg.Metadata.Attempt++
		id, err = r.CRI.RunPodSandbox(ctx, cfg, handler)
	}
	if err == nil {
		r.Journal.Mark(subject(p), journal.Sandbox, "")
	}
	return id, cfg, err
}

// whileReserved calls create until the name that it asks for is free: a call that was cancelled, as by the end of an earlier agent, holds
// its name for a moment. After a few tries the error is returned.
func whileReserved[ID any](ctx context.Context, create func() (ID, error)) (ID, error) {
	for wait := reservedFirst; ; wait *= 2 {
		id, err := create()
		if !errors.Is(err, cri.ErrNameReserved) || wait > reservedMost {
			return id, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return id, ctx.Err()
		}
	}
}
