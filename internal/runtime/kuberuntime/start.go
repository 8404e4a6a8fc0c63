package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
	"berth/internal/runtime/action"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/crispec"
	"berth/internal/runtime/images"
)

type starter struct {
	report       reporter
	cri          *cri.Client
	config       ContainerConfig
	assignments  Assignments
	resources    crispec.ResourceSettings
	hostIPs      func() []string
	environments *environments
	mounts       *mountPreparer
	hosts        *hostsFiles
	users        UserNamespaces
	files        podFiles
	logs         *podLogs
	backOffs     *backOffs
	remover      *remover
	metrics      *metrics
	hooks        *hookRunner
	killer       *killer
	// maskedPaths are the host files to be hidden from containers; read once.
	maskedPaths func() []string
}

func newStarter(cfg Config, r *Runtime, files podFiles) *starter {
	return &starter{
		report: r.report, cri: cfg.CRI, config: cfg.Containers, assignments: cfg.Assignments, resources: cfg.Resources, hostIPs: cfg.HostIPs,
		environments: &environments{objects: cfg.Objects, allocatable: cfg.Containers.Allocatable},
		mounts:       &mountPreparer{cri: cfg.CRI, volumes: cfg.Containers.Volumes},
		hosts:        &hostsFiles{files: files, hostIPs: cfg.HostIPs, domain: cfg.Sandboxes.DNS.Domain},
		users:        r.users, files: files, logs: r.logs, backOffs: r.backOffs, remover: r.remover, hooks: r.hooks,
		killer: r.killer, metrics: r.metrics, maskedPaths: sync.OnceValue(thermalThrottles),
	}
}

// thermalThrottles returns the CPUs' thermal counters, which could leak the activity of other
// containers.
func thermalThrottles() []string {
	found, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle") // fails only for a bad pattern
	return found
}

// start is the input of one container start.
type start struct {
	req       Request
	container *v1.Container
	sandbox   sandbox
	volumes   map[string]crispec.Volume
	images    func() (pulled, error)
	created   bool // the runtime has a new container
}

// startContainer creates and starts one container and runs its postStart hook. It returns nil if
// the container was started.
func (t *starter) startContainer(ctx context.Context, s *start) *lifecycle.StartError {
	p, c := s.req.Pod, s.container
	got, err := s.images()
	if err != nil {
		var ie *images.Error
		if errors.As(err, &ie) {
			e := &lifecycle.StartError{Reason: ie.Reason, Message: ie.Message, BackOffUntil: ie.BackOffUntil}
			if e.BackOffUntil.IsZero() { // not a failed pull
				t.backOffs.failed.container(p, c.Name, err, *e)
			}
			return e
		}
		return &lifecycle.StartError{Reason: lifecycle.ErrImagePull, Message: err.Error()}
	}
	spec, err := t.spec(ctx, s, got)
	if err != nil {
		return t.failed(ctx, s, lifecycle.CreateContainerConfigError, err)
	}
	began := time.Now()
	id, cfg, e := t.create(ctx, s, spec)
	t.metrics.imagesUsed(len(got.volumes), e)
	if e != nil {
		if err := t.files.removeTerminationLog(spec.Files.TerminationLog); err != nil {
			t.report.log.Warn("termination log of a container that was not created not removed", "container", c.Name, "error", err)
		}
		return e
	}
	s.created = true
	t.backOffs.restarted(p, c, s.req.Observed)
	t.report.events.Event(p, c.Name, v1.EventTypeNormal, "Created", "Container created")
	if err := t.cri.StartContainer(ctx, id); err != nil {
		return t.failed(ctx, s, lifecycle.RunContainerError, errors.New(strings.ReplaceAll(cri.Message(err), string(id), c.Name)))
	}
	t.report.events.Event(p, c.Name, v1.EventTypeNormal, "Started", "Container started")
	t.report.record(decision{
		pod: p, container: c.Name, what: "container started", why: whichStart(cfg.Metadata.Attempt),
		began: began,
	})
	t.logs.link(p, c, id, cfg.Metadata.Attempt)
	return t.postStart(ctx, s, id)
}

// whichStart describes for the journal whether a container starts for the first time.
func whichStart(attempt uint32) string {
	if attempt == 0 {
		return "for the first time"
	}
	return fmt.Sprintf("restart %d", attempt)
}

// postStart runs the postStart hook of a container that was just started, and kills the container
// if the hook fails. The error is why the container is not running.
func (t *starter) postStart(ctx context.Context, s *start, id pod.ContainerID) *lifecycle.StartError {
	p, c := s.req.Pod, s.container
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	target := action.Target{ID: id, Container: c}
	if len(s.sandbox.ips) > 0 {
		target.PodIP = s.sandbox.ips[0]
	}
	t.report.record(decision{pod: p, container: c.Name, what: "wait for the postStart hook of " + c.Name + " to end"})
	began := time.Now()
	err := t.hooks.runHook(ctx, p, s.sandbox.id, target, c.Lifecycle.PostStart)
	if err == nil {
		t.report.journal.Reach(subject(p), journal.Hook, c.Name)
		t.report.record(decision{pod: p, container: c.Name, what: "postStart hook ended", began: began})
		return nil
	}
	e := &lifecycle.StartError{Reason: lifecycle.PostStartHookError, Message: "PostStart hook failed: " + err.Error()}
	if ctx.Err() != nil { // the pass was cancelled; the next one terminates the pod
		t.report.record(decision{pod: p, container: c.Name, what: "postStart hook broken off", why: "the agent or the pod ends; the hook is not run again", began: began})
		return e
	}
	t.report.record(decision{
		pod: p, container: c.Name, what: "postStart hook failed", why: "the container is killed", began: began, err: err,
	})
	t.report.events.Event(p, c.Name, v1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	started := &pod.ContainerStatus{ID: id, SandboxID: s.sandbox.id, Name: c.Name, State: pod.StateRunning}
	if err := t.killer.killContainer(ctx, p, started, "FailedPostStartHook", computeGrace(p, c.Name, killOther)); err != nil {
		e.Message += "; " + err.Error()
	}
	return e
}

// create creates the container. While a cancelled call reserves its name it retries, and removes
// the unobserved container that such a call created. Finally it uses the next attempt's name.
func (t *starter) create(ctx context.Context, s *start, spec crispec.Container) (pod.ContainerID, *runtimeapi.ContainerConfig, *lifecycle.StartError) {
	for last := spec.Attempt + 1; ; spec.Attempt++ {
		cfg, err := crispec.ContainerConfig(spec)
		if err != nil {
			if why := crispec.ExplainNonRoot(spec, err); why != "" {
				t.report.record(decision{pod: s.req.Pod, container: s.container.Name, what: "refuse to run as root", why: why})
			}
			return "", nil, t.failed(ctx, s, lifecycle.CreateContainerConfigError, err)
		}
		t.backOffs.annotate(cfg, s.req.Pod, s.container, s.req.Observed)
		id, err := whileReserved(ctx, func() (pod.ContainerID, error) {
			id, err := t.cri.CreateContainer(ctx, s.sandbox.id, cfg, s.sandbox.config)
			if holder := cri.ReservedFor(err); holder != "" {
				if _, failed := t.remover.removeUnstarted(ctx, s.req.Observed, holder); failed != nil {
					return "", failed
				}
			}
			return id, err
		})
		switch {
		case errors.Is(err, cri.ErrNameReserved) && spec.Attempt < last && ctx.Err() == nil:
			continue
		case err != nil:
			e := t.failed(ctx, s, lifecycle.CreateContainerError, err)
			t.backOffs.failed.container(s.req.Pod, s.container.Name, err, *e)
			return "", nil, e
		}
		return id, cfg, nil
	}
}

// failed returns the start error, and records an event unless the pass was cancelled. Container IDs
// in the message are replaced by names.
func (t *starter) failed(ctx context.Context, s *start, reason string, err error) *lifecycle.StartError {
	message := cri.Message(err)
	for i := range s.req.Observed.Containers {
		cs := &s.req.Observed.Containers[i]
		message = strings.ReplaceAll(message, string(cs.ID), cs.Name)
	}
	if ctx.Err() == nil {
		t.report.events.Event(s.req.Pod, s.container.Name, v1.EventTypeWarning, "Failed", "Error: "+message)
	}
	return &lifecycle.StartError{Reason: reason, Message: message}
}

// attempt removes an unstarted container of the name, and returns the number of the new
// incarnation.
func (t *starter) attempt(ctx context.Context, s *start) (uint32, error) {
	newest := s.req.Observed.FindContainer(s.container.Name)
	if newest == nil || newest.State != pod.StateCreated {
		return t.logs.nextAttempt(s.req.Pod, s.container, s.req.Observed)
	}
	taskLost, err := t.remover.removeUnstarted(ctx, s.req.Observed, newest.ID)
	if err != nil {
		return 0, err
	}
	next, err := t.logs.nextAttempt(s.req.Pod, s.container, s.req.Observed)
	if taskLost {
		t.report.log.Warn("the runtime cannot remove a container whose start was cut off; another one is made", "container", newest.Name, "id", newest.ID)
		next = max(next, newest.Attempt+1)
	}
	return next, err
}

// spec collects the input of the container's configuration.
func (t *starter) spec(ctx context.Context, s *start, got pulled) (crispec.Container, error) {
	p, c := s.req.Pod, s.container
	in := crispec.Container{
		Pod: p, Container: c, Image: c.Image, ImageRef: got.image.Ref,
		PodIPs: s.sandbox.ips, HostIPs: t.hostIPs(), Volumes: s.volumes, ImageVolumes: got.volumes,
		VolumeGroups: s.req.VolumeGroups,
		Node: crispec.NodeSettings{
			SeccompRoot: filepath.Join(string(t.files.Root), "seccomp"), SeccompDefault: runtimeapi.SecurityProfile_Unconfined,
			MaskedPaths: t.maskedPaths(), Resources: t.resources, ExecLimits: t.config.ExecLimits,
		},
	}
	if t.config.SeccompDefault {
		in.Node.SeccompDefault = runtimeapi.SecurityProfile_RuntimeDefault
	}
	if p.Spec.HostNetwork {
		in.PodIPs = in.HostIPs
	}
	var err error
	if in.Environment, err = t.environments.read(ctx, p, c); err != nil {
		return in, err
	}
	if in.Environment.Files, err = readEnvFiles(c, s.volumes); err != nil {
		return in, err
	}
	if in.Target, err = targetOf(p, c.Name, s.req.Observed); err != nil {
		return in, err
	}
	if in.User, err = t.imageUser(ctx, p, c, got.image); err != nil {
		return in, err
	}
	if in.Users, err = hostUsers(t.users, p); err != nil {
		return in, err
	}
	if in.Attempt, err = t.attempt(ctx, s); err != nil {
		return in, err
	}
	if in.Files.Hosts, err = t.hosts.write(p, s.sandbox.ips); err != nil {
		return in, err
	}
	if err := t.logs.files().Ensure(filepath.Join(s.sandbox.config.LogDirectory, c.Name), 0o755, 0o755); err != nil {
		return in, fmt.Errorf("log folder: %w", err)
	}
	if t.config.WritesLogs(s.sandbox.handler) {
		in.Files.Log = filepath.Join(s.sandbox.config.LogDirectory, crispec.LogPath(c.Name, in.Attempt))
	}
	if err := t.mounts.prepare(ctx, &in, s.sandbox.handler); err != nil {
		return in, err
	}
	if in.Assigned, err = t.assignments.Assigned(ctx, p, c); err != nil {
		return in, err
	}
	in.Files.TerminationLog, err = t.files.makeTerminationLog(p, c)
	return in, err
}

// targetOf returns the target container of the named ephemeral container, "" for none.
func targetOf(p *v1.Pod, name string, observed *pod.Status) (pod.ContainerID, error) {
	for i := range p.Spec.EphemeralContainers {
		e := &p.Spec.EphemeralContainers[i]
		if e.Name != name || e.TargetContainerName == "" {
			continue
		}
		cs := observed.FindContainer(e.TargetContainerName)
		if cs == nil || cs.State != pod.StateRunning {
			return "", fmt.Errorf("unable to find target container %q: it does not run", e.TargetContainerName)
		}
		return cs.ID, nil
	}
	return "", nil
}

// imageUser returns the image's user. It reads the image that the container is created from: the
// name may refer to another image by now.
func (t *starter) imageUser(ctx context.Context, p *v1.Pod, c *v1.Container, image images.Result) (crispec.ImageUser, error) {
	if crispec.RunAsUser(p, c) != nil {
		return crispec.ImageUser{}, nil // RunAsUser takes precedence
	}
	img, err := t.cri.Images.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: image.Ref})
	switch {
	case err != nil:
		return crispec.ImageUser{}, err
	case img == nil:
		return crispec.ImageUser{}, fmt.Errorf("image %q is not present any more", c.Image)
	}
	user := crispec.ImageUser{Name: img.GetUsername()}
	if img.GetUid() != nil {
		user.UID = &img.GetUid().Value
	}
	return user, nil
}
