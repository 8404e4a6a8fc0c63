package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/crispec"
)

// reservedBackoff delays the retries while a cancelled call still reserves the name.
var reservedBackoff = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Steps: math.MaxInt, Cap: time.Second}

// networkNotReady is the event reason for a sandbox that failed because the runtime's network was
// not ready.
const networkNotReady = "NetworkNotReady"

// parallelSandboxes is where containerd's throughput stops growing on a small machine (measured on
// two cores: 1/2/4/10/30 in parallel take 3.3/2.1/1.7/1.6/1.6 s for 30 pods).
const parallelSandboxes = 4

type sandboxes struct {
	report         reporter
	cri            *cri.Client
	objects        Objects
	classless      func(p *v1.Pod) (handler, why string) // of pods without a RuntimeClass
	users          UserNamespaces
	resolver       *resolver
	logs           *podLogs
	backOffs       *backOffs
	resources      crispec.ResourceSettings
	checkHostPorts func(p *v1.Pod) error
	node           *nodeWarner
	// starting bounds concurrent sandbox creations: a few saturate containerd, and more only slow
	// each one down.
	starting chan struct{}
}

func newSandboxes(cfg Config, r *Runtime, node *nodeWarner) *sandboxes {
	return &sandboxes{
		report: r.report, cri: cfg.CRI, objects: cfg.Objects, classless: cfg.Sandboxes.Handler,
		users: r.users, resolver: r.resolver, logs: r.logs, backOffs: r.backOffs,
		resources: cfg.Resources, checkHostPorts: cfg.Sandboxes.CheckHostPorts, node: node,
		starting: make(chan struct{}, parallelSandboxes),
	}
}

type sandbox struct {
	id      pod.SandboxID
	config  *runtimeapi.PodSandboxConfig
	handler string // of the runtime
	ips     []string
}

// config returns the configuration of the pod's sandbox. If a sandbox is to be created, errors and
// warnings are recorded as events.
func (s *sandboxes) config(ctx context.Context, req Request, a *podActions, attempt uint32, handler string) (*runtimeapi.PodSandboxConfig, error) {
	p := req.Pod
	cfg, warnings, err := s.translate(ctx, req, a, attempt, handler)
	if err != nil {
		if a.CreateSandbox && ctx.Err() == nil {
			s.report.events.Event(p, "", v1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
		}
		return nil, fmt.Errorf("pod sandbox: %w", err)
	}
	if !a.CreateSandbox {
		return cfg, nil
	}
	for _, w := range warnings {
		s.report.events.Event(p, "", v1.EventTypeWarning, w.Reason, w.Message)
		if w.OfNode != "" {
			// Once: each pod would repeat it, and exhaust the node's event rate.
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
	if in.Users, err = hostUsers(s.users, p); err != nil {
		return nil, nil, err
	}
	// An existing sandbox has its resolver and its host ports already.
	if a.CreateSandbox {
		// Differs from the kubelet, which lets the pod's network take the port over, so that the
		// pod receives the program's traffic. Here the pod waits, and is retried like any sandbox
		// that cannot be created.
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

// handler returns the runtime handler of the pod's sandbox: for an existing one as the runtime
// reports, since its RuntimeClass may have been deleted. If the RuntimeClass cannot be resolved, an
// event is recorded.
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
			s.report.events.Event(p, "", v1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
		}
	}
	return handler, err
}

// checkUserNamespaces rejects a runtime handler that would run the pod with the host's user IDs.
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

func (s *sandboxes) create(ctx context.Context, p *v1.Pod, cfg *runtimeapi.PodSandboxConfig, handler string) (sandbox, error) {
	made := sandbox{config: cfg, handler: handler}
	if err := s.run(ctx, p, &made); err != nil {
		if ctx.Err() == nil {
			reason, message := s.describeFailure(ctx, p, err)
			s.report.events.Event(p, "", v1.EventTypeWarning, reason, message)
			if reason != networkNotReady { // else it is created when the network is ready
				s.backOffs.failed.sandbox(p, err)
			}
		}
		return made, fmt.Errorf("create pod sandbox: %w", err)
	}
	var err error
	if made.ips, err = sandboxIPs(ctx, s.cri, made.id); err != nil {
		s.report.events.Event(p, "", v1.EventTypeWarning, "FailedPodSandBoxStatus", "Unable to get pod sandbox status: "+cri.Message(err))
		return made, fmt.Errorf("pod sandbox status: %w", err)
	}
	return made, nil
}

// which describes a sandbox for the journal: its attempt, its handler, and the reason if the
// handler differs from that of most pods.
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

// describeFailure returns the event for a failed sandbox creation: for a pod with its own network,
// that the network is not ready if the runtime reports so.
//
// Differs from the kubelet, which does not try while the network was not ready at its last check,
// up to five seconds ago: here the runtime status is read after the failure, so that no pod waits
// for a network that is ready.
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

// run runs the sandbox. While a cancelled call reserves its name it retries; finally it uses the
// next attempt's name.
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
		s.report.record(decision{
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
		s.report.journal.Reach(subject(p), journal.Sandbox, "")
	}
	return err
}

func sandboxIPs(ctx context.Context, client *cri.Client, id pod.SandboxID) ([]string, error) {
	st, err := client.PodSandboxStatus(ctx, id)
	if err != nil {
		return nil, err
	}
	return cri.SandboxIPs(st), nil
}

// whileReserved retries create while its name is reserved: a cancelled call, such as of a stopped
// agent, holds its name for a moment. After a few tries it returns the error.
func whileReserved[ID any](ctx context.Context, create func() (ID, error)) (ID, error) {
	for backoff := reservedBackoff; ; {
		id, err := create()
		if !errors.Is(err, cri.ErrNameReserved) || backoff.Steps == 0 {
			return id, err
		}
		if err := sleep(ctx, backoff.Step()); err != nil {
			return id, err
		}
	}
}
