package devicemanager

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/internal/resources/topologymanager"
)

// Options are the CRI options that a container needs to use its devices.
type Options struct {
	Envs        []*runtimeapi.KeyValue // sorted by key
	Devices     []*runtimeapi.Device
	Mounts      []*runtimeapi.Mount // without SELinux labels
	CDIDevices  []*runtimeapi.CDIDevice
	Annotations map[string]string // for the runtime
}

// Options returns the options for a container that is about to be created. It calls
// PreStartContainer of plugins that require it, each for at most 30 s. If a plugin has not
// registered since this agent started, Options returns an error, and Changed gets the pod when the
// plugin registers.
//
// Differs from the kubelet: the kubelet uses the stored response, which may not match the devices
// after a reboot.
func (m *Manager) Options(ctx context.Context, p *v1.Pod, c *v1.Container) (Options, error) {
	if err := m.allocateMissing(p, c); err != nil {
		return Options{}, err
	}
	m.allocations.mu.Lock()
	has := m.allocations.held(p.UID, c.Name)
	m.allocations.mu.Unlock()
	for _, h := range has {
		if !h.registered {
			return Options{}, fmt.Errorf("waiting for the device plugin of %s to register", h.resource)
		}
	}
	answered := false
	var responses []response
	for _, h := range has {
		raw := h.response
		if raw == nil {
			var err error
			if raw, err = m.ask(ctx, p, c.Name, h); err != nil {
				return Options{}, err
			}
			answered = true
		}
		r := response{resource: h.resource, ContainerAllocateResponse: &pluginapi.ContainerAllocateResponse{}}
		if err := proto.Unmarshal(raw, r.ContainerAllocateResponse); err != nil {
			return Options{}, fmt.Errorf("what the device plugin of %s said of container %s cannot be read: %w", h.resource, c.Name, err)
		}
		responses = append(responses, r)
	}
	if answered {
		m.store.saveOrRetry()
	}
	for _, h := range has {
		if err := h.preStart(ctx); err != nil {
			return Options{}, err
		}
	}
	out, conflicts := merge(responses)
	for _, what := range conflicts {
		m.log.Warn("device plugins contradict each other, and the first one counts", "pod", p.Namespace+"/"+p.Name, "container", c.Name, "what", what)
	}
	return out, nil
}

// allocateMissing allocates devices that the container lacks although its pod was admitted, because
// the checkpoint was lost.
func (m *Manager) allocateMissing(p *v1.Pod, c *v1.Container) error {
	for _, r := range requests(p, c) {
		m.allocations.mu.Lock()
		missing := m.allocations.pods.get(p.UID, c.Name, r.resource) == nil && m.allocations.isKnown(r.resource)
		waits := !m.allocations.registered[r.resource]
		m.allocations.mu.Unlock()
		switch {
		case !missing:
		case waits:
			return fmt.Errorf("waiting for the device plugin of %s to register", r.resource)
		default:
			note(m.journal, p, c.Name, fmt.Sprintf("assign %s again: its former devices are unknown", r.resource), nil)
			return m.Allocate(p, c, topologymanager.Hint{})
		}
	}
	return nil
}

func (h held) preStart(ctx context.Context) error {
	if !h.prestart {
		return nil
	}
	err := errDisconnected
	if h.endpoint != nil {
		ctx, cancel := context.WithTimeout(ctx, preStartTimeout)
		defer cancel()
		_, err = h.endpoint.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: h.ids})
	}
	if err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}

type response struct {
	resource string
	*pluginapi.ContainerAllocateResponse
}

// merge merges the responses of several plugins. If two contradict each other, the first one wins,
// and conflicts names the item.
func merge(responses []response) (out Options, conflicts []string) {
	envs, annotations := map[string]string{}, map[string]string{}
	devices, mounts, names := map[string]*runtimeapi.Device{}, map[string]*runtimeapi.Mount{}, map[string]bool{}
	conflict := func(r response, what, name string) {
		conflicts = append(conflicts, fmt.Sprintf("%s: %s %s", r.resource, what, name))
	}
	text := func(r response, what string, into, from map[string]string) {
		for _, key := range slices.Sorted(maps.Keys(from)) {
			if before, ok := into[key]; !ok {
				into[key] = from[key]
			} else if before != from[key] {
				conflict(r, what, key)
			}
		}
	}
	for _, r := range responses {
		text(r, "environment variable", envs, r.GetEnvs())
		text(r, "annotation", annotations, r.GetAnnotations())
		for _, d := range r.GetDevices() {
			next := &runtimeapi.Device{ContainerPath: d.GetContainerPath(), HostPath: d.GetHostPath(), Permissions: d.GetPermissions()}
			if before := devices[next.ContainerPath]; before == nil {
				devices[next.ContainerPath] = next
				out.Devices = append(out.Devices, next)
			} else if !proto.Equal(before, next) {
				conflict(r, "device", next.ContainerPath)
			}
		}
		for _, d := range r.GetMounts() {
			next := &runtimeapi.Mount{ContainerPath: d.GetContainerPath(), HostPath: d.GetHostPath(), Readonly: d.GetReadOnly()}
			if before := mounts[next.ContainerPath]; before == nil {
				mounts[next.ContainerPath] = next
				out.Mounts = append(out.Mounts, next)
			} else if !proto.Equal(before, next) {
				conflict(r, "mount", next.ContainerPath)
			}
		}
		for _, d := range r.GetCdiDevices() {
			if !names[d.GetName()] {
				names[d.GetName()] = true
				out.CDIDevices = append(out.CDIDevices, &runtimeapi.CDIDevice{Name: d.GetName()})
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(envs)) {
		out.Envs = append(out.Envs, &runtimeapi.KeyValue{Key: key, Value: []byte(envs[key])})
	}
	if len(annotations) > 0 {
		out.Annotations = annotations
	}
	return out, conflicts
}
