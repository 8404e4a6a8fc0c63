package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/crispec"
)

// Delays between the tries to get a name that a cancelled call still holds.
const (
	reservedFirst = 50 * time.Millisecond
	reservedMost  = time.Second
)

// networkNotReady is the reason of the event for a sandbox that was not made as the runtime's
// network was not ready.
const networkNotReady = "NetworkNotReady"

// parallelSandboxes is where containerd's throughput stops to grow on a small machine (measured on
// two cores: 1/2/4/10/30 in parallel take 3.3/2.1/1.7/1.6/1.6 s for 30 pods).
const parallelSandboxes = 4

// sandboxes makes the sandboxes of pods.
type sandboxes struct {
	reporter
	cri            *cri.Client
	objects        Objects
	classless      func(p *v1.Pod) (handler, why string) // of pods without a RuntimeClass
	users          *userNamespaces
	resolver       *resolver
	logs           *podLogs
	backOffs       *backOffs
	resources      crispec.ResourceSettings
	checkHostPorts func(p *v1.Pod) error
	node           *nodeWarner
	// starting bounds sandbox creations under way: containerd is saturated by a few, and more only
	// make each slower.
	starting chan struct{}
}

func newSandboxes(cfg Config, r *Runtime, node *nodeWarner) *sandboxes {
	s := &sandboxes{
		reporter: r.reporter, cri: cfg.CRI, objects: cfg.Objects, classless: cfg.Sandboxes.Handler,
		users: r.users, resolver: r.resolver, logs: r.logs, backOffs: r.backOffs,
		resources: cfg.Resources, checkHostPorts: cfg.Sandboxes.CheckHostPorts, node: node,
		starting: make(chan struct{}, parallelSandboxes),
	}
	if s.classless == nil {
		s.classless = func(*v1.Pod) (handler, why string) { return "", "" }
	}
	if s.checkHostPorts == nil {
		s.checkHostPorts = func(*v1.Pod) error { return nil }
	}
	return s
}

// sandbox is one that the runtime has.
type sandbox struct {
	id      pod.SandboxID
	config  *runtimeapi.PodSandboxConfig
	handler string // of the runtime
	ips     []string
}

// config returns the configuration of the pod's sandbox. When one is to be made, events say what is
// wrong with it.
func (s *sandboxes) config(ctx context.Context, req Request, a *podActions, attempt uint32, handler string) (*runtimeapi.PodSandboxConfig, error) {
	p := req.Pod
	cfg, warnings, err := s.translate(ctx, req, a, attempt, handler)
	if err != nil {
		if a.CreateSandbox && ctx.Err() == nil {
			s.events.Event(p, "", v1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
		}
		return nil, fmt.Errorf("pod sandbox: %w", err)
	}
	if !a.CreateSandbox {
		return cfg, nil
	}
	for _, w := range warnings {
		s.events.Event(p, "", v1.EventTypeWarning, w.Reason, w.Message)
		if w.OfNode != "" {
			// Once: each pod would say the same, and use up the node's share of events.
			s.node.warnOnce(w.Reason, w.OfNode)
		}
	}
	return cfg, nil
}

func (s *sandboxes) translate(ctx context.Context, req Request, a *podActions, attempt uint32, handler string) (*runtimeapi.PodSandboxConfig, []crispec.Warning, error) {
	p := req.Pod
	in := crispec.Sandbox{
		Pod: p, Attempt: attempt, CgroupParent: req.CgroupParent, LogDirectory: s.logs.of(p), DNS: s.resolver.dns,
		VolumeGroups: req.VolumeGroups, Resources: s.resources,
	}
	var err error
	if in.Users, err = s.users.of(p); err != nil {
		return nil, nil, err
	}
	// A sandbox that is there has its resolver and its host ports already.
	if a.CreateSandbox {
		// Differs from the kubelet, which lets the network of the pod take the port over: what
		// clients send to the program goes to the pod then. Here the pod waits: it is tried again
		// like any sandbox that cannot be made.
		if err = s.checkHostPorts(p); err != nil {
			return nil, nil, err
		}
		if in.DNS.Host, err = s.resolver.of(p); err != nil {
			return nil, nil, err
		}
		if crispec.HasUserNamespace(p) {
			if err := s.checkUserNamespaces(ctx, handler); err != nil {
				return nil, nil, err
			}
		}
	}
	return crispec.SandboxConfig(in)
}

// handler returns what runs the pod's sandbox: for one that is there what the runtime says, since
// its class may have gone meanwhile. An event says that a class cannot be had.
func (s *sandboxes) handler(ctx context.Context, req Request, a *podActions) (string, error) {
	p := req.Pod
	if !a.CreateSandbox {
		return req.Observed.Sandboxes[0].RuntimeHandler, nil
	}
	if ptr.Deref(p.Spec.RuntimeClassName, "") == "" {
		handler, _ := s.classless(p)
		return handler, nil
	}
	handler, err := s.objects.RuntimeHandler(ctx, p)
	if err != nil {
		err = fmt.Errorf("failed to get runtime handler of RuntimeClass %q: %w", *p.Spec.RuntimeClassName, err)
		if ctx.Err() == nil {
			s.events.Event(p, "", v1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
		}
	}
	return handler, err
}

// checkUserNamespaces refuses a runtime that would run the pod as the host's users.
func (s *sandboxes) checkUserNamespaces(ctx context.Context, handler string) error {
	st, err := s.cri.Status(ctx)
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

// create makes the pod's sandbox.
func (s *sandboxes) create(ctx context.Context, p *v1.Pod, cfg *runtimeapi.PodSandboxConfig, handler string) (sandbox, error) {
	made := sandbox{config: cfg, handler: handler}
	if err := s.run(ctx, p, &made); err != nil {
		if ctx.Err() == nil {
			reason, message := s.describeFailure(ctx, p, err)
			s.events.Event(p, "", v1.EventTypeWarning, reason, message)
			if reason != networkNotReady { // else it is made when the network is ready
				s.backOffs.failed.sandbox(p, err)
			}
		}
		return made, fmt.Errorf("create pod sandbox: %w", err)
	}
	var err error
	if made.ips, err = sandboxIPs(ctx, s.cri, made.id); err != nil {
		s.events.Event(p, "", v1.EventTypeWarning, "FailedPodSandBoxStatus", "Unable to get pod sandbox status: "+cri.Message(err))
		return made, fmt.Errorf("pod sandbox status: %w", err)
	}
	return made, nil
}

// which says for the journal which one of its pod a sandbox is, what runs it, and why that if it is
// another one than for most.
func (s *sandboxes) which(p *v1.Pod, attempt uint32, handler string) string {
	out := fmt.Sprintf("attempt %d", attempt)
	if handler != "" {
		out += ", by runtime handler " + handler
	}
	if ptr.Deref(p.Spec.RuntimeClassName, "") == "" {
		if _, why := s.classless(p); why != "" {
			out += ", " + why
		}
	}
	return out
}

// describeFailure returns the event of a sandbox that the runtime did not make: for a pod with a
// network of its own, that there is none if the runtime says so.
//
// Differs from the kubelet, which does not try while the network was not ready when it last asked,
// up to five seconds ago: here the runtime is asked after it has failed, so that no pod waits for a
// network that is there.
func (s *sandboxes) describeFailure(ctx context.Context, p *v1.Pod, failed error) (reason, message string) {
	reason, message = "FailedCreatePodSandBox", "Failed to create pod sandbox: "+cri.Message(failed)
	if p.Spec.HostNetwork {
		return reason, message
	}
	answer, err := s.cri.Status(ctx)
	if err != nil {
		return reason, message
	}
	for _, c := range answer.GetStatus().GetConditions() {
		if c.GetType() == runtimeapi.NetworkReady && !c.GetStatus() {
			why := fmt.Sprintf("container runtime network not ready: NetworkReady=false reason:%s message:%s", c.GetReason(), c.GetMessage())
			return networkNotReady, "network is not ready: " + why
		}
	}
	return reason, message
}

// run has the runtime run the sandbox. While a cancelled call holds its name it tries again; at
// last it takes the next attempt's name.
func (s *sandboxes) run(ctx context.Context, p *v1.Pod, made *sandbox) (err error) {
	select {
	case s.starting <- struct{}{}:
		defer func() { <-s.starting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	made.id, err = whileReserved(ctx, func() (pod.SandboxID, error) {
		began := time.Now()
		id, err := s.cri.RunPodSandbox(ctx, made.config, made.handler)
		s.note(decision{
			pod: p, what: "sandbox created", failed: "sandbox not created", why: s.which(p, made.config.Metadata.Attempt, made.handler), began: began, err: err,
		})
		return id, err
	})
	if errors.Is(err, cri.ErrNameReserved) {
		made.config = proto.Clone(made.config).(*runtimeapi.PodSandboxConfig)
		made.config.Metadata.Attempt++
		made.id, err = s.cri.RunPodSandbox(ctx, made.config, made.handler)
	}
	if err == nil {
		s.journal.Reach(subject(p), journal.Sandbox, "")
	}
	return err
}

// sandboxIPs returns the addresses of a sandbox.
func sandboxIPs(ctx context.Context, client *cri.Client, id pod.SandboxID) ([]string, error) {
	st, err := client.PodSandboxStatus(ctx, id)
	if err != nil {
		return nil, err
	}
	return cri.SandboxIPs(st), nil
}

// whileReserved calls create until the name that it asks for is free: a call that was cancelled, as
// by the end of an earlier agent, holds its name for a moment. After a few tries the error is
// returned.
func whileReserved[ID any](ctx context.Context, create func() (ID, error)) (ID, error) {
	for wait := reservedFirst; ; wait *= 2 {
		id, err := create()
		if !errors.Is(err, cri.ErrNameReserved) || wait > reservedMost {
			return id, err
		}
		if err := sleep(ctx, wait); err != nil {
			return id, err
		}
	}
}
