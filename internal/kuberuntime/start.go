package kuberuntime

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

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
	volumes       map[string]crispec.Volume
	ips           []string
	image         func() (images.Result, error)
	created       bool // the runtime has a new container
}

// startContainer creates and starts one container. The returned error says why it does not run; nil means that it was started.
func (r *Runtime) startContainer(ctx context.Context, s *start) *lifecycle.StartError {
	p, c := s.req.Pod, s.container
	image, err := s.image()
	if err != nil {
		var ie *images.Error
		if errors.As(err, &ie) {
			return &lifecycle.StartError{Reason: ie.Reason, Message: ie.Message, BackOffUntil: ie.BackOffUntil}
		}
		return &lifecycle.StartError{Reason: lifecycle.ErrImagePull, Message: err.Error()}
	}
	cfg, err := r.containerConfig(ctx, s, image)
	if err != nil {
		return r.startFailed(p, c, lifecycle.CreateContainerConfigError, err)
	}
	began := time.Now()
	id, err := whileReserved(ctx, func() (pod.ContainerID, error) { return r.CRI.CreateContainer(ctx, s.sandbox, cfg, s.sandboxConfig) })
	if err != nil {
		return r.startFailed(p, c, lifecycle.CreateContainerError, err)
	}
	s.created = true
	if ended, ok := endOf(s.req.Observed.FindContainer(c.Name)); ok {
		r.crash.Next(lifecycle.CrashKey(p, c), ended, time.Now())
	}
	r.Recorder.Event(p, c.Name, v1.EventTypeNormal, "Created", "Container created")
	if err := r.CRI.StartContainer(ctx, id); err != nil {
		return r.startFailed(p, c, lifecycle.RunContainerError, errors.New(strings.ReplaceAll(cri.Message(err), string(id), c.Name)))
	}
	r.Recorder.Event(p, c.Name, v1.EventTypeNormal, "Started", "Container started")
	r.note(p, c.Name, "container started", fmt.Sprintf("incarnation %d", cfg.Metadata.Attempt), began, nil)
	r.linkLog(p, c, id, cfg)
	return nil
}

func (r *Runtime) startFailed(p *v1.Pod, c *v1.Container, reason string, err error) *lifecycle.StartError {
	message := cri.Message(err)
	r.Recorder.Event(p, c.Name, v1.EventTypeWarning, "Failed", "Error: "+message)
	return &lifecycle.StartError{Reason: reason, Message: message}
}

func (r *Runtime) containerConfig(ctx context.Context, s *start, image images.Result) (*runtimeapi.ContainerConfig, error) {
	p, c := s.req.Pod, s.container
	if err := r.checkNonRoot(ctx, p, c, image); err != nil {
		return nil, err
	}
	environment, err := r.environment(ctx, p, c)
	if err != nil {
		return nil, err
	}
	attempt, err := r.nextAttempt(p, c, s.req.Observed)
	if err != nil {
		return nil, err
	}
	in := crispec.Container{
		Pod: p, Container: c, Attempt: attempt, Image: c.Image, ImageRef: image.Ref,
		PodIPs: s.ips, HostIPs: r.HostIPs, Environment: environment, Volumes: s.volumes,
		SeccompRoot: filepath.Join(r.RootDir, "seccomp"), NodeMemory: r.NodeMemory,
	}
	if p.Spec.HostNetwork {
		in.PodIPs = r.HostIPs
	}
	if in.HostsFile, err = r.writeHosts(p, s.ips); err != nil {
		return nil, err
	}
	if in.TerminationLog, err = r.makeTerminationLog(p, c); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(s.sandboxConfig.LogDirectory, c.Name), 0o755); err != nil {
		return nil, fmt.Errorf("log folder: %w", err)
	}
	return crispec.ContainerConfig(in)
}

func (r *Runtime) checkNonRoot(ctx context.Context, p *v1.Pod, c *v1.Container, image images.Result) error {
	if !crispec.RunAsNonRoot(p, c) {
		return nil
	}
	img, err := r.CRI.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: image.Ref})
	if err != nil {
		return err
	}
	user := crispec.ImageUser{Name: img.GetUsername()}
	if img.GetUid() != nil {
		user.UID = &img.GetUid().Value
	}
	return crispec.CheckRunAsNonRoot(p, c, user)
}

// nextAttempt returns the restart count of a new container: one more than the newest known one's, else than its highest log file's.
func (r *Runtime) nextAttempt(p *v1.Pod, c *v1.Container, observed *pod.Status) (uint32, error) {
	if cs := observed.FindContainer(c.Name); cs != nil {
		return cs.Attempt + 1, nil
	}
	dir := filepath.Join(logs.PodDir(r.PodLogsDir, p.Namespace, p.Name, string(p.UID)), c.Name)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("restart count from logs: %w", err)
	}
	next := uint64(0)
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), ".log")
		if n, err := strconv.ParseUint(name, 10, 32); err == nil && strings.HasSuffix(e.Name(), ".log") {
			next = max(next, n+1)
		}
	}
	return uint32(next), nil
}

// writeHosts writes the pod's managed /etc/hosts and returns its path, or "" for a pod without an address.
func (r *Runtime) writeHosts(p *v1.Pod, ips []string) (string, error) {
	var content []byte
	switch {
	case p.Spec.HostNetwork:
		node, err := os.ReadFile("/etc/hosts")
		if err != nil {
			return "", fmt.Errorf("hosts file: %w", err)
		}
		content = crispec.NodeHostsFile(node, p.Spec.HostAliases)
	case len(ips) == 0:
		return "", nil
	default:
		content = crispec.HostsFile(crispec.Hostname(p), ips, p.Spec.HostAliases)
	}
	path := filepath.Join(r.podDir(p.UID), "etc-hosts")
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return "", fmt.Errorf("hosts file: %w", err)
	}
	return path, nil
}

// makeTerminationLog makes the empty file that a container writes its termination message to; each incarnation has its own.
func (r *Runtime) makeTerminationLog(p *v1.Pod, c *v1.Container) (string, error) {
	if c.TerminationMessagePath == "" {
		return "", nil
	}
	dir := filepath.Join(r.podDir(p.UID), "containers", c.Name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("termination log: %w", err)
	}
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	path := filepath.Join(dir, hex.EncodeToString(b[:]))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
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
	if _, err := os.Stat(target); err != nil {
		return
	}
	link := logs.LinkPath(r.ContainerLogsDir, p.Name, p.Namespace, c.Name, string(id))
	if err := os.Symlink(target, link); err != nil && !errors.Is(err, os.ErrExist) {
		r.Log.Warn("link to the container's log not made", "link", link, "error", err)
	}
}

func (r *Runtime) podDir(uid pod.UID) string { return filepath.Join(r.RootDir, "pods", string(uid)) }
