package critest

import (
	"context"
	"fmt"
	"maps"
	"os"
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

	program       Program
	announced     chan struct{} // closed when STARTED has been published
	exited        chan struct{} // closed when the container has exited
	unseen        bool          // it exited while the runtime was down
	exitPublished chan struct{} // closed when STOPPED has been published
	timers        timers
	log           *os.File
}

type timers struct {
	exit   *time.Timer // the program's own exit
	stop   *time.Timer // the exit after the stop signal
	output *time.Timer // the next output
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

func (s *runtimeService) container(id string) (*container, error) {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	c := s.runtime.containers.all[id]
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
		config:        proto.CloneOf(req.Config),
		announced:     make(chan struct{}),
		exited:        make(chan struct{}),
		exitPublished: make(chan struct{}),
	}
	if err := s.reserveContainer(c, req.PodSandboxId); err != nil {
		return nil, err
	}
	if err := s.runtime.Calls.work(ctx, s.serving, "CreateContainer"); err != nil {
		s.runtime.names.releaseLater(c.name, c.id)
		return nil, err
	}
	if err := s.addContainer(c); err != nil {
		return nil, err
	}
	s.runtime.Events.publish(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, c.id, c.sandbox)
	return &runtimeapi.CreateContainerResponse{ContainerId: c.id}, nil
}

func (s *runtimeService) reserveContainer(c *container, sandboxID string) error {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	c.sandbox = s.runtime.sandboxes.all[sandboxID]
	if c.sandbox == nil {
		return status.Errorf(codes.NotFound, "failed to find sandbox id %q: not found", sandboxID)
	}
	c.id = s.runtime.names.newID()
	c.name = containerName(c.config.Metadata, c.sandbox.config.Metadata)
	return s.runtime.names.reserve("container", c.name, c.id, "; check if another CreateContainer request is in progress")
}

// addContainer adds a container with a reserved name to the state, or releases the name and returns
// an error.
func (s *runtimeService) addContainer(c *container) error {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	img := s.runtime.Images.find(c.config.GetImage().GetImage())
	switch {
	case s.runtime.sandboxes.all[c.sandbox.id] == nil:
		s.runtime.names.release(c.name)
		return status.Errorf(codes.NotFound, "failed to find sandbox id %q: not found", c.sandbox.id)
	case c.sandbox.state != runtimeapi.PodSandboxState_SANDBOX_READY:
		s.runtime.names.release(c.name)
		return status.Errorf(codes.Unknown, "sandbox container %q is not running", c.sandbox.id)
	case img == nil:
		s.runtime.names.release(c.name)
		return status.Errorf(codes.NotFound, "failed to check if this is a checkpoint image: failed to resolve image %q: not found", c.config.GetImage().GetImage())
	}
	c.image = img
	c.createdAt = time.Now()
	if c.config.LogPath != "" {
		c.logPath = c.clientLogPath()
	}
	s.runtime.containers.add(c.id, c)
	c.sandbox.containers[c.id] = c
	return nil
}

func (s *runtimeService) StartContainer(_ context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	c, err := s.container(req.ContainerId)
	if err != nil {
		return nil, err
	}
	if err := s.runtime.startContainer(c); err != nil {
		return nil, err
	}
	s.runtime.Events.publish(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, c.id, c.sandbox)
	close(c.announced)
	s.runtime.mu.Lock()
	s.runtime.processes.arm(c)
	s.runtime.mu.Unlock()
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
		return c.failStart(fmt.Sprintf("sandbox container %q is not running", c.sandbox.id))
	}
	c.program = r.Programs.of(c)
	if err := c.openLog(r.config); err != nil {
		return c.failStart(fmt.Sprintf("failed to create container task: failed to open container log: %v", err))
	}
	if c.program.StartError != "" {
		return c.failStart(c.program.StartError)
	}
	if err := c.writeOutput(); err != nil {
		return c.failStart(err.Error())
	}
	c.state = runtimeapi.ContainerState_CONTAINER_RUNNING
	c.startedAt = time.Now()
	return nil
}

// failStart marks the container as failed to start, without an event. The caller holds the lock.
func (c *container) failStart(message string) error {
	c.state = runtimeapi.ContainerState_CONTAINER_EXITED
	c.finishedAt = time.Now()
	c.exitCode = startErrorCode
	c.reason = "StartError"
	c.message = message
	c.closeLog()
	return status.Error(codes.Unknown, message)
}

func (s *runtimeService) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	s.runtime.mu.Lock()
	c := s.runtime.containers.all[req.ContainerId]
	alive := c != nil && c.alive()
	s.runtime.mu.Unlock()
	if !alive {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if req.Timeout > 0 {
		if err := s.runtime.processes.signalStop(c); err != nil {
			return nil, err
		}
		timer := time.NewTimer(time.Duration(req.Timeout) * time.Second)
		defer timer.Stop()
		select {
		case <-c.exited:
			return &runtimeapi.StopContainerResponse{}, nil
		case <-timer.C:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-s.serving.stopped:
			return nil, errShutdown
		}
	}
	s.runtime.processes.kill(c)
	select {
	case <-c.exited:
		return &runtimeapi.StopContainerResponse{}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-s.serving.stopped:
		return nil, errShutdown
	}
}

func (s *runtimeService) RemoveContainer(_ context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	if c, err := s.container(req.ContainerId); err == nil {
		s.runtime.processes.exit(c, killedCode, "")
		s.runtime.removeContainer(c)
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
		r.life.wait(c.exitPublished)
	}
	r.mu.Lock()
	_, present := r.containers.all[c.id]
	r.containers.remove(c.id)
	delete(c.sandbox.containers, c.id)
	r.names.release(c.name)
	r.mu.Unlock()
	if present {
		r.Events.publish(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, c.id, c.sandbox)
	}
}
