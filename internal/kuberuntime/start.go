package kuberuntime

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/beneath"
	"berth/internal/cri"
	"berth/internal/crispec"
	"berth/internal/images"
	"berth/internal/lifecycle"
	"berth/internal/logs"
	"berth/internal/pod"
)

// start is what one container is started from.
type start struct {
	req           Request
	container     *v1.Container
	sandbox       pod.SandboxID
	sandboxConfig *runtimeapi.PodSandboxConfig
	handler       string // of the runtime
	volumes       map[string]crispec.Volume
	ips           []string
	images        func() (pulled, error)
	created       bool // the runtime has a new container
}

// startContainer creates and starts one container and runs its postStart hook. The returned error says why it does not run; nil means that
// it was started.
func (r *Runtime) startContainer(ctx context.Context, s *start) *lifecycle.StartError {
	p, c := s.req.Pod, s.container
	got, err := s.images()
	if err != nil {
		var ie *images.Error
		if errors.As(err, &ie) {
			return &lifecycle.StartError{Reason: ie.Reason, Message: ie.Message, BackOffUntil: ie.BackOffUntil}
		}
		return &lifecycle.StartError{Reason: lifecycle.ErrImagePull, Message: err.Error()}
	}
	spec, err := r.containerSpec(ctx, s, got)
	if err != nil {
		return r.startFailed(ctx, s, lifecycle.CreateContainerConfigError, err)
	}
	began := time.Now()
	id, cfg, e := r.createContainer(ctx, s, spec)
	if e != nil {
		if err := r.removeTerminationLog(spec.TerminationLog); err != nil {
			r.Log.Warn("termination log of a container that was not created not removed", "container", c.Name, "error", err)
		}
		return e
	}
	s.created = true
	r.noteRestart(p, c, s.req.Observed)
	r.Recorder.Event(p, c.Name, v1.EventTypeNormal, "Created", "Container created")
	if err := r.CRI.StartContainer(ctx, id); err != nil {
		return r.startFailed(ctx, s, lifecycle.RunContainerError, errors.New(strings.ReplaceAll(cri.Message(err), string(id), c.Name)))
	}
	r.Recorder.Event(p, c.Name, v1.EventTypeNormal, "Started", "Container started")
	r.note(p, c.Name, "container started", fmt.Sprintf("incarnation %d", cfg.Metadata.Attempt), began, nil)
	r.linkLog(p, c, id, cfg)
	return r.postStart(ctx, s, id)
}

// createContainer creates the container. While a cancelled call holds its name it tries again; at last it takes the next attempt's name.
func (r *Runtime) createContainer(ctx context.Context, s *start, spec crispec.Container) (pod.ContainerID, *runtimeapi.ContainerConfig, *lifecycle.StartError) {
	for last := spec.Attempt + 1; ; spec.Attempt++ {
		cfg, err := crispec.ContainerConfig(spec)
		if err != nil {
			return "", nil, r.startFailed(ctx, s, lifecycle.CreateContainerConfigError, err)
		}
		r.annotateBackOff(cfg, s.req.Pod, s.container, s.req.Observed)
		id, err := whileReserved(ctx, func() (pod.ContainerID, error) { return r.CRI.CreateContainer(ctx, s.sandbox, cfg, s.sandboxConfig) })
		switch {
		case errors.Is(err, cri.ErrNameReserved) && spec.Attempt < last && ctx.Err() == nil:
			continue
		case err != nil:
			return "", nil, r.startFailed(ctx, s, lifecycle.CreateContainerError, err)
		}
		return id, cfg, nil
	}
}

// startFailed returns why the container does not run, and tells of it unless the pass was ended. Ids mean nothing to users: names stand for
// them.
func (r *Runtime) startFailed(ctx context.Context, s *start, reason string, err error) *lifecycle.StartError {
	message := cri.Message(err)
	for i := range s.req.Observed.Containers {
		cs := &s.req.Observed.Containers[i]
		message = strings.ReplaceAll(message, string(cs.ID), cs.Name)
	}
	if ctx.Err() == nil {
		r.Recorder.Event(s.req.Pod, s.container.Name, v1.EventTypeWarning, "Failed", "Error: "+message)
	}
	return &lifecycle.StartError{Reason: reason, Message: message}
}

// containerSpec gathers what the container is made from.
func (r *Runtime) containerSpec(ctx context.Context, s *start, got pulled) (crispec.Container, error) {
	p, c := s.req.Pod, s.container
	in := crispec.Container{
		Pod: p, Container: c, Image: c.Image, ImageRef: got.image.Ref,
		PodIPs: s.ips, HostIPs: r.HostIPs(), Volumes: s.volumes, ImageVolumes: got.volumes,
		SeccompRoot: filepath.Join(r.RootDir, "seccomp"), SeccompDefault: runtimeapi.SecurityProfile_Unconfined,
		VolumeGroups: s.req.VolumeGroups, MaskedPaths: r.maskedPaths(), Resources: r.Resources, ExecLimits: r.ExecLimits,
	}
	if r.SeccompDefault {
		in.SeccompDefault = runtimeapi.SecurityProfile_RuntimeDefault
	}
	if p.Spec.HostNetwork {
		in.PodIPs = in.HostIPs
	}
	var err error
	if in.Environment, err = r.environment(ctx, p, c); err != nil {
		return in, err
	}
	if in.Environment.Files, err = r.readEnvFiles(c, s.volumes); err != nil {
		return in, err
	}
	if in.Target, err = targetOf(p, c.Name, s.req.Observed); err != nil {
		return in, err
	}
	if in.User, err = r.imageUser(ctx, p, c, got.image); err != nil {
		return in, err
	}
	if in.Users, err = r.users(p); err != nil {
		return in, err
	}
	if err := r.removeUnstarted(ctx, s.req.Observed.FindContainer(c.Name)); err != nil {
		return in, err
	}
	if in.Attempt, err = r.nextAttempt(p, c, s.req.Observed); err != nil {
		return in, err
	}
	if in.HostsFile, err = r.writeHosts(p, s.ips); err != nil {
		return in, err
	}
	if err := r.logFiles().Ensure(filepath.Join(s.sandboxConfig.LogDirectory, c.Name), 0o755, 0o755); err != nil {
		return in, fmt.Errorf("log folder: %w", err)
	}
	if err := r.prepareMounts(ctx, &in, s.handler); err != nil {
		return in, err
	}
	in.TerminationLog, err = r.makeTerminationLog(p, c)
	return in, err
}

// targetOf returns the container whose processes the named ephemeral container is to see, "" for none.
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

// imageUser returns who the image runs as. It is read from what the container is made of: a name may stand for another image by now.
func (r *Runtime) imageUser(ctx context.Context, p *v1.Pod, c *v1.Container, image images.Result) (crispec.ImageUser, error) {
	if crispec.RunAsUser(p, c) != nil {
		return crispec.ImageUser{}, nil // it does not matter
	}
	img, err := r.CRI.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: image.Ref})
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

// removeUnstarted removes a container that was created and never started, as by a pass that was ended in between. It gives way, with its
// name, to one made from what holds now.
func (r *Runtime) removeUnstarted(ctx context.Context, cs *pod.ContainerStatus) error {
	if cs == nil || cs.State != pod.StateCreated {
		return nil
	}
	// When an agent is killed during the start, containerd takes some seconds to notice.
	limit := time.Now().Add(startingLimit)
	for wait := reservedFirst; ; wait = min(2*wait, reservedMost) {
		err := r.CRI.RemoveContainer(ctx, cs.ID)
		switch {
		case err == nil:
			r.forgetMessage(cs.ID)
			return nil
		case !errors.Is(err, cri.ErrStarting) || time.Now().After(limit):
			return fmt.Errorf("remove container %q, which was never started: %w", cs.Name, err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// startingLimit is how long a start that was cancelled may hold its container.
const startingLimit = 10 * time.Second

// nextAttempt returns the restart count of a new container: one more than any that is known, by the runtime or by a log file, since
// containers may have been lost. The newest one counts for nothing if it was never started: it gives way to the new one.
func (r *Runtime) nextAttempt(p *v1.Pod, c *v1.Container, observed *pod.Status) (uint32, error) {
	next := uint32(0)
	newest := observed.FindContainer(c.Name)
	for i := range observed.Containers {
		switch cs := &observed.Containers[i]; {
		case cs.Name != c.Name:
		case cs == newest && cs.State == pod.StateCreated:
			next = max(next, cs.Attempt)
		default:
			next = max(next, cs.Attempt+1)
		}
	}
	dir := filepath.Join(logs.PodDir(r.PodLogsDir, p.Namespace, p.Name, string(p.UID)), c.Name)
	entries, err := r.logFiles().ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("restart count from logs: %w", err)
	}
	for _, e := range entries {
		if n, ok := incarnationOf(e.Name()); ok {
			next = max(next, n+1)
		}
	}
	return next, nil
}

// makeTerminationLog makes the empty file that a container writes its termination message to; each incarnation has its own.
func (r *Runtime) makeTerminationLog(p *v1.Pod, c *v1.Container) (string, error) {
	if c.TerminationMessagePath == "" {
		return "", nil
	}
	dir := filepath.Join(r.podDir(p.UID), "containers", c.Name)
	if err := r.files().Ensure(dir, 0o750, 0o750); err != nil {
		return "", fmt.Errorf("termination log: %w", err)
	}
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	path := filepath.Join(dir, hex.EncodeToString(b[:]))
	f, err := r.files().OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return "", fmt.Errorf("termination log: %w", err)
	}
	// The process may run as any user: the mode must hold whatever the umask.
	return path, errors.Join(f.Chmod(0o666), f.Close())
}

// linkLog makes the link that log shippers follow, if the log file exists.
func (r *Runtime) linkLog(p *v1.Pod, c *v1.Container, id pod.ContainerID, cfg *runtimeapi.ContainerConfig) {
	if r.ContainerLogsDir == "" {
		return
	}
	target := filepath.Join(logs.PodDir(r.PodLogsDir, p.Namespace, p.Name, string(p.UID)), cfg.LogPath)
	if _, err := r.logFiles().Lstat(target); err != nil {
		return
	}
	link := logs.LinkPath(r.ContainerLogsDir, p.Name, p.Namespace, c.Name, string(id))
	if err := r.linkFiles().EnsureLink(target, link); err != nil {
		r.Log.Warn("link to the container's log not made", "link", link, "error", err)
	}
}

// files are those of pods: a container may have been given its pod's folder, or all of them.
func (r *Runtime) files() beneath.Root { return beneath.Root(r.RootDir) }

// logFiles are the logs of containers, linkFiles the links to them: a container may have been given all logs of the machine.
func (r *Runtime) logFiles() beneath.Root  { return logs.Files(r.PodLogsDir) }
func (r *Runtime) linkFiles() beneath.Root { return logs.Files(r.ContainerLogsDir) }

func (r *Runtime) podDir(uid pod.UID) string { return filepath.Join(r.RootDir, "pods", string(uid)) }
