package critest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	killedCode     = 137 // exit code after SIGKILL
	startErrorCode = 128
	unknownCode    = 255 // exit code of a container that exited while the runtime was down
)

type container struct {
	id      string
	name    string // reserved name
	sandbox *sandbox
	config  *runtimeapi.ContainerConfig
	image   *image
	logPath string

	state      runtimeapi.ContainerState
	createdAt  time.Time
	startedAt  time.Time
	finishedAt time.Time
	exitCode   int32
	reason     string
	message    string

	program   Program
	announced chan struct{} // closed when STARTED has been published
	gone      chan struct{} // closed when the container has exited
	unseen    bool          // it exited while the runtime was down
	exitTold  chan struct{} // closed when STOPPED has been published
	end       *time.Timer   // the program's own exit
	stopping  *time.Timer   // the exit after the stop signal
	writing   *time.Timer   // the next output
	log       *os.File
}

func containerName(m *runtimeapi.ContainerMetadata, pod *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%s_%d", m.GetName(), pod.GetName(), pod.GetNamespace(), pod.GetUid(), m.GetAttempt())
}

// references are the names by which tests refer to a container, the most specific first.
func (c *container) references() []string {
	name, pod := c.config.Metadata.Name, c.sandbox.config.Metadata
	return []string{pod.Namespace + "/" + pod.Name + "/" + name, pod.Name + "/" + name, name}
}

func (c *container) status() *runtimeapi.ContainerStatus {
	return &runtimeapi.ContainerStatus{
		Id:          c.id,
		Metadata:    proto.CloneOf(c.config.Metadata),
		State:       c.state,
		CreatedAt:   c.createdAt.UnixNano(),
		StartedAt:   unixNano(c.startedAt),
		FinishedAt:  unixNano(c.finishedAt),
		ExitCode:    c.exitCode,
		Image:       c.imageStatus(),
		ImageRef:    c.image.ref(),
		ImageId:     c.image.id,
		Reason:      c.reason,
		Message:     c.message,
		Labels:      maps.Clone(c.config.Labels),
		Annotations: maps.Clone(c.config.Annotations),
		Mounts:      cloneAll(c.config.Mounts),
		LogPath:     c.logPath,
		Resources:   &runtimeapi.ContainerResources{Linux: proto.CloneOf(c.config.GetLinux().GetResources())},
		User:        c.user(),
		StopSignal:  c.stopSignal(),
	}
}

// imageStatus returns the image as in a container's status: by its tag, whatever name the container
// was created with.
func (c *container) imageStatus() *runtimeapi.ImageSpec {
	if len(c.image.tags) > 0 {
		return &runtimeapi.ImageSpec{Image: c.image.tags[0]}
	}
	return &runtimeapi.ImageSpec{Image: c.image.id}
}

func (c *container) stopSignal() runtimeapi.Signal {
	if c.config.StopSignal != runtimeapi.Signal_RUNTIME_DEFAULT {
		return c.config.StopSignal
	}
	return runtimeapi.Signal_SIGTERM
}

// user returns the container's user: the configured numeric user, else the image's, else root.
func (c *container) user() *runtimeapi.ContainerUser {
	security := c.config.GetLinux().GetSecurityContext()
	user := &runtimeapi.LinuxContainerUser{Gid: security.GetRunAsGroup().GetValue()}
	switch {
	case security.GetRunAsUser() != nil:
		user.Uid = security.RunAsUser.Value
	case c.image.UID != nil:
		user.Uid = *c.image.UID
	}
	user.SupplementalGroups = append([]int64{user.Gid}, security.GetSupplementalGroups()...)
	return &runtimeapi.ContainerUser{Linux: user}
}

// unixNano returns the CRI form of a time: 0 for the zero time.
func unixNano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func cloneAll[M proto.Message](messages []M) []M {
	clones := make([]M, 0, len(messages))
	for _, m := range messages {
		clones = append(clones, proto.CloneOf(m))
	}
	return clones
}

func errContainerNotFound(id string) error {
	return status.Errorf(codes.NotFound, "an error occurred when try to find container %q: not found", id)
}

func (r *Runtime) containersOf(sb *sandbox) []*container {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inSandbox(sb)
}

// inSandbox returns the containers of a sandbox, oldest first. The caller holds the lock.
func (r *Runtime) inSandbox(sb *sandbox) []*container {
	return slices.SortedFunc(maps.Values(sb.containers), func(a, b *container) int {
		if order := a.createdAt.Compare(b.createdAt); order != 0 {
			return order
		}
		return strings.Compare(a.id, b.id)
	})
}

// statusesOf returns the statuses of a sandbox's containers. The caller holds the lock.
func (r *Runtime) statusesOf(sb *sandbox) []*runtimeapi.ContainerStatus {
	var statuses []*runtimeapi.ContainerStatus
	for _, c := range r.inSandbox(sb) {
		statuses = append(statuses, c.status())
	}
	return statuses
}

func (r *Runtime) container(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers.all[id]
	if c == nil {
		return nil, errContainerNotFound(id)
	}
	return c, nil
}

func (s *runtimeService) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	if req.GetConfig().GetMetadata() == nil {
		return nil, status.Error(codes.Unknown, "container config must include metadata")
	}
	c := &container{
		config:    proto.CloneOf(req.Config),
		announced: make(chan struct{}),
		gone:      make(chan struct{}),
		exitTold:  make(chan struct{}),
	}
	if err := s.reserveContainer(c, req.PodSandboxId); err != nil {
		return nil, err
	}
	if err := s.work(ctx, s.serving, "CreateContainer"); err != nil {
		s.releaseLater(c.name, c.id)
		return nil, err
	}
	if err := s.addContainer(c); err != nil {
		return nil, err
	}
	s.publish(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, c.id, c.sandbox)
	return &runtimeapi.CreateContainerResponse{ContainerId: c.id}, nil
}

func (r *Runtime) reserveContainer(c *container, sandboxID string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.sandbox = r.sandboxes.all[sandboxID]
	if c.sandbox == nil {
		return status.Errorf(codes.NotFound, "failed to find sandbox id %q: not found", sandboxID)
	}
	c.id = r.newID()
	c.name = containerName(c.config.Metadata, c.sandbox.config.Metadata)
	return r.reserve("container", c.name, c.id, "; check if another CreateContainer request is in progress")
}

// addContainer adds a container with a reserved name to the state, or releases the name and returns
// an error.
func (r *Runtime) addContainer(c *container) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	img := r.findImage(c.config.GetImage().GetImage())
	switch {
	case r.sandboxes.all[c.sandbox.id] == nil:
		delete(r.names, c.name)
		return status.Errorf(codes.NotFound, "failed to find sandbox id %q: not found", c.sandbox.id)
	case c.sandbox.state != runtimeapi.PodSandboxState_SANDBOX_READY:
		delete(r.names, c.name)
		return status.Errorf(codes.Unknown, "sandbox container %q is not running", c.sandbox.id)
	case img == nil:
		delete(r.names, c.name)
		return status.Errorf(codes.NotFound, "failed to check if this is a checkpoint image: failed to resolve image %q: not found", c.config.GetImage().GetImage())
	}
	c.image = img
	c.createdAt = time.Now()
	if c.config.LogPath != "" {
		c.logPath = r.logPath(c)
	}
	r.containers.add(c.id, c)
	c.sandbox.containers[c.id] = c
	return nil
}

func (s *runtimeService) StartContainer(_ context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	c, err := s.container(req.ContainerId)
	if err != nil {
		return nil, err
	}
	if err := s.startContainer(c); err != nil {
		return nil, err
	}
	s.publish(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, c.id, c.sandbox)
	close(c.announced)
	s.mu.Lock()
	s.arm(c)
	s.mu.Unlock()
	return &runtimeapi.StartContainerResponse{}, nil
}

func (r *Runtime) startContainer(c *container) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.containers.all[c.id] == nil:
		return errContainerNotFound(c.id)
	case c.state != runtimeapi.ContainerState_CONTAINER_CREATED:
		return status.Errorf(codes.Unknown, "failed to set starting state for container %q: container is in %s state", c.id, c.state)
	case c.sandbox.state != runtimeapi.PodSandboxState_SANDBOX_READY:
		return r.failStart(c, fmt.Sprintf("sandbox container %q is not running", c.sandbox.id))
	}
	c.program = r.program(c)
	if err := r.openLog(c); err != nil {
		return r.failStart(c, fmt.Sprintf("failed to create container task: failed to open container log: %v", err))
	}
	if c.program.StartError != "" {
		return r.failStart(c, c.program.StartError)
	}
	if err := c.writeOutput(); err != nil {
		return r.failStart(c, err.Error())
	}
	c.state = runtimeapi.ContainerState_CONTAINER_RUNNING
	c.startedAt = time.Now()
	return nil
}

// failStart marks a container as failed to start, without an event. The caller holds the lock.
func (r *Runtime) failStart(c *container, message string) error {
	c.state = runtimeapi.ContainerState_CONTAINER_EXITED
	c.finishedAt = time.Now()
	c.exitCode = startErrorCode
	c.reason = "StartError"
	c.message = message
	c.closeLog()
	return status.Error(codes.Unknown, message)
}

func (s *runtimeService) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	s.mu.Lock()
	c := s.containers.all[req.ContainerId]
	alive := c != nil && c.alive()
	s.mu.Unlock()
	if !alive {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if req.Timeout > 0 {
		if err := s.signalStop(c); err != nil {
			return nil, err
		}
		timer := time.NewTimer(time.Duration(req.Timeout) * time.Second)
		defer timer.Stop()
		select {
		case <-c.gone:
			return &runtimeapi.StopContainerResponse{}, nil
		case <-timer.C:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-s.serving.stopped:
			return nil, errShutdown
		}
	}
	s.kill(c)
	select {
	case <-c.gone:
		return &runtimeapi.StopContainerResponse{}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-s.serving.stopped:
		return nil, errShutdown
	}
}

// kill sends SIGKILL and does not wait.
func (r *Runtime) kill(c *container) {
	if !r.begin() {
		return
	}
	go func() {
		defer r.running.Done()
		r.exit(c, killedCode, "")
	}()
}

func (s *runtimeService) RemoveContainer(_ context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	if c, err := s.container(req.ContainerId); err == nil {
		s.exit(c, killedCode, "")
		s.removeContainer(c)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// removeContainer removes a container that is not running and notifies subscribers, after the event
// of its exit.
func (r *Runtime) removeContainer(c *container) {
	r.mu.Lock()
	ran := !c.startedAt.IsZero()
	r.mu.Unlock()
	if ran {
		r.wait(c.exitTold)
	}
	r.mu.Lock()
	_, present := r.containers.all[c.id]
	r.containers.remove(c.id)
	delete(c.sandbox.containers, c.id)
	delete(r.names, c.name)
	r.mu.Unlock()
	if present {
		r.publish(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, c.id, c.sandbox)
	}
}
