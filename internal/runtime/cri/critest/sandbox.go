package critest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtimeService is the gRPC service of the runtime during one run of its process.
type runtimeService struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtime *Runtime
	serving *serving
}

type sandbox struct {
	id        string
	name      string // reserved name
	config    *runtimeapi.PodSandboxConfig
	handler   string
	state     runtimeapi.PodSandboxState
	ip        string // empty in the host network and after the stop
	createdAt time.Time
	// containers in the sandbox, by ID; guarded by the runtime's lock.
	containers   map[string]*container
	endPublished chan struct{} // closed when STOPPED has been published
}

// sorted returns the containers of a sandbox, oldest first. The caller holds the runtime's lock.
func (sb *sandbox) sorted() []*container {
	return slices.SortedFunc(maps.Values(sb.containers), func(a, b *container) int {
		return cmp.Or(a.createdAt.Compare(b.createdAt), strings.Compare(a.id, b.id))
	})
}

// containerStatuses returns the statuses of a sandbox's containers. The caller holds the runtime's
// lock.
func (sb *sandbox) containerStatuses() []*runtimeapi.ContainerStatus {
	var statuses []*runtimeapi.ContainerStatus
	for _, c := range sb.sorted() {
		statuses = append(statuses, c.status())
	}
	return statuses
}

func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

func (sb *sandbox) hostNetwork() bool {
	return sb.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
}

func (sb *sandbox) status() *runtimeapi.PodSandboxStatus {
	return &runtimeapi.PodSandboxStatus{
		Id:        sb.id,
		Metadata:  proto.CloneOf(sb.config.Metadata),
		State:     sb.state,
		CreatedAt: sb.createdAt.UnixNano(),
		Network:   &runtimeapi.PodSandboxNetworkStatus{Ip: sb.ip},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: proto.CloneOf(sb.config.GetLinux().GetSecurityContext().GetNamespaceOptions()),
		}},
		Labels:         maps.Clone(sb.config.Labels),
		Annotations:    maps.Clone(sb.config.Annotations),
		RuntimeHandler: sb.handler,
	}
}

func errSandboxNotFound() error {
	return status.Error(codes.NotFound, "an error occurred when try to find sandbox: not found")
}

func (s *runtimeService) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	if req.GetConfig().GetMetadata() == nil {
		return nil, status.Error(codes.Unknown, "sandbox config must include metadata")
	}
	config := proto.CloneOf(req.Config)
	sb := &sandbox{name: sandboxName(config.Metadata), config: config, handler: req.RuntimeHandler, containers: map[string]*container{}, endPublished: make(chan struct{})}

	s.runtime.mu.Lock()
	sb.id = s.runtime.names.newID()
	err := s.runtime.names.reserve("sandbox", sb.name, sb.id, "")
	s.runtime.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := s.runtime.Calls.work(ctx, s.serving, "RunPodSandbox"); err != nil {
		s.runtime.names.releaseLater(sb.name, sb.id)
		return nil, err
	}
	if err := s.runtime.startSandbox(sb); err != nil {
		return nil, err
	}
	s.runtime.Events.publish(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, sb.id, sb)
	s.runtime.Events.publish(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, sb.id, sb)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: sb.id}, nil
}

// startSandbox adds a sandbox with a reserved name to the state. After an error, it releases the
// name.
func (r *Runtime) startSandbox(sb *sandbox) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := slices.ContainsFunc(r.config.handlers, func(h *runtimeapi.RuntimeHandler) bool { return h.Name == sb.handler })
	network := r.conditions[runtimeapi.NetworkReady]
	switch {
	case sb.handler != "" && !known:
		r.names.release(sb.name)
		return status.Errorf(codes.Unknown, "unable to get OCI runtime for sandbox %q: no runtime for %q is configured", sb.id, sb.handler)
	case !sb.hostNetwork() && !network.Status:
		r.names.release(sb.name)
		return status.Errorf(codes.Unknown, "failed to setup network for sandbox %q: %s", sb.id, network.Message)
	}
	sb.state = runtimeapi.PodSandboxState_SANDBOX_READY
	sb.createdAt = time.Now()
	if !sb.hostNetwork() {
		r.addresses++
		sb.ip = fmt.Sprintf("10.88.%d.%d", r.addresses/250%250, r.addresses%250+2)
		r.addressed[sb.ip] = sb
	}
	r.sandboxes.add(sb.id, sb)
	return nil
}

func (s *runtimeService) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	s.runtime.mu.Lock()
	sb := s.runtime.sandboxes.all[req.PodSandboxId]
	s.runtime.mu.Unlock()
	if sb != nil {
		s.runtime.stopSandbox(sb)
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// stopSandbox kills the containers of a sandbox and releases its address. Subscribers are notified
// asynchronously. Idempotent.
func (r *Runtime) stopSandbox(sb *sandbox) {
	r.mu.Lock()
	containers := slices.DeleteFunc(sb.sorted(), func(c *container) bool { return !c.alive() })
	r.mu.Unlock()
	for _, c := range containers {
		r.processes.kill(c)
		r.life.wait(c.exited)
	}
	r.mu.Lock()
	r.endSandbox(sb)
	r.takeAddress(sb)
	r.mu.Unlock()
}

// endSandbox makes a sandbox NOTREADY and notifies subscribers asynchronously, after the exits of
// its containers. The caller holds the lock.
func (r *Runtime) endSandbox(sb *sandbox) {
	if sb.state != runtimeapi.PodSandboxState_SANDBOX_READY || r.life.closed {
		return
	}
	sb.state = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	n := r.Events.notice(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, sb.id, sb)
	containers := slices.DeleteFunc(sb.sorted(), func(c *container) bool { return c.startedAt.IsZero() || c.alive() })
	r.life.running.Go(func() {
		for _, c := range containers {
			r.life.wait(c.exitPublished)
		}
		n.publish()
		close(sb.endPublished)
	})
}

func (s *runtimeService) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	s.runtime.mu.Lock()
	sb := s.runtime.sandboxes.all[req.PodSandboxId]
	s.runtime.mu.Unlock()
	if sb == nil {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	s.runtime.stopSandbox(sb)
	s.runtime.life.wait(sb.endPublished)
	s.runtime.mu.Lock()
	containers := sb.sorted()
	s.runtime.mu.Unlock()
	for _, c := range containers {
		s.runtime.removeContainer(c)
	}
	s.runtime.mu.Lock()
	_, present := s.runtime.sandboxes.all[sb.id]
	s.runtime.sandboxes.remove(sb.id)
	s.runtime.names.release(sb.name)
	s.runtime.mu.Unlock()
	if present {
		s.runtime.Events.publish(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, sb.id, sb)
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func (s *runtimeService) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	sb := s.runtime.sandboxes.all[req.PodSandboxId]
	if sb == nil {
		return nil, errSandboxNotFound()
	}
	resp := &runtimeapi.PodSandboxStatusResponse{Status: sb.status()}
	if req.Verbose {
		resp.Info = map[string]string{"info": "{}"}
	}
	return resp, nil
}

func (s *runtimeService) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	resp := &runtimeapi.ListPodSandboxResponse{}
	for _, sb := range s.runtime.sandboxes.selected(req.GetFilter().GetLabelSelector()) {
		if !sb.matches(req.GetFilter()) {
			continue
		}
		made := sb.createdAt
		if s.runtime.config.timesLost {
			made = time.Time{}
		}
		resp.Items = append(resp.Items, &runtimeapi.PodSandbox{
			Id:             sb.id,
			Metadata:       proto.CloneOf(sb.config.Metadata),
			State:          sb.state,
			CreatedAt:      made.UnixNano(),
			Labels:         maps.Clone(sb.config.Labels),
			Annotations:    maps.Clone(sb.config.Annotations),
			RuntimeHandler: sb.handler,
		})
	}
	return resp, nil
}

func (sb *sandbox) labels() map[string]string { return sb.config.Labels }

// matches ignores labels, which the shelf filters.
func (sb *sandbox) matches(filter *runtimeapi.PodSandboxFilter) bool {
	return strings.HasPrefix(sb.id, filter.GetId()) &&
		(filter.GetState() == nil || filter.GetState().State == sb.state)
}

// selects reports whether labels match a selector.
func selects(selector, labels map[string]string) bool {
	for key, want := range selector {
		if got, ok := labels[key]; !ok || got != want {
			return false
		}
	}
	return true
}

func (s *runtimeService) UpdatePodSandboxResources(_ context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	s.runtime.mu.Lock()
	defer s.runtime.mu.Unlock()
	sb := s.runtime.sandboxes.all[req.PodSandboxId]
	if sb == nil {
		return nil, errSandboxNotFound()
	}
	if sb.config.Linux == nil {
		sb.config.Linux = &runtimeapi.LinuxPodSandboxConfig{}
	}
	if req.Overhead != nil {
		sb.config.Linux.Overhead = proto.CloneOf(req.Overhead)
	}
	if req.Resources != nil {
		sb.config.Linux.Resources = proto.CloneOf(req.Resources)
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}
