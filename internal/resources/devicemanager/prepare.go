package devicemanager

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/internal/pod"
)

// Prepare calls the plugins' Allocate for the devices that Allocate has chosen, container by
// container, and stores the responses. It waits for plugins until ctx is done. It returns the first
// error of a plugin, unchanged.
//
// For allocations of an earlier agent, plugin errors are ignored: Options calls an unavailable or
// failed plugin again.
func (m *Manager) Prepare(ctx context.Context, p *v1.Pod) error {
	for c := range pod.Containers(&p.Spec) {
		if err := m.prepare(ctx, p, c.Name); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) prepare(ctx context.Context, p *v1.Pod, container string) error {
	answered := false
	m.allocations.mu.Lock()
	has := m.allocations.held(p.UID, container)
	m.allocations.mu.Unlock()
	for _, h := range has {
		if h.response != nil || h.allocation.restored && !h.registered {
			continue
		}
		_, err := m.ask(ctx, p, container, h)
		switch {
		case err == nil:
			answered = true
		case !h.allocation.restored || ctx.Err() != nil:
			return err
		}
	}
	if answered {
		m.store.saveOrRetry() // if the agent exits before a write, the plugins are called again
	}
	return nil
}

// ask calls the plugin's Allocate and stores the response.
func (m *Manager) ask(ctx context.Context, p *v1.Pod, container string, h held) (response []byte, err error) {
	if h.endpoint == nil {
		return nil, fmt.Errorf("cannot allocate devices of %s: %w", h.resource, errDisconnected)
	}
	began := time.Now()
	r, err := h.endpoint.client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: h.ids}}})
	took := time.Since(began)
	m.metrics.allocated(h.resource, took)
	if err == nil {
		response, err = encode(r)
	}
	note(m.journal, p, container, fmt.Sprintf("ask the device plugin of %s for %s", h.resource, list(h.ids)), err)
	if err != nil {
		return nil, err
	}
	m.allocations.mu.Lock()
	defer m.allocations.mu.Unlock()
	if m.allocations.pods.get(p.UID, container, h.resource) == h.allocation {
		h.allocation.response = response
		m.allocations.generation++
	}
	return response, nil
}

// encode returns the response for the first container as protobuf. It is not nil, even if empty.
func encode(r *pluginapi.AllocateResponse) ([]byte, error) {
	if len(r.GetContainerResponses()) == 0 {
		return nil, fmt.Errorf("the device plugin's response is for no container")
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(r.ContainerResponses[0])
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxResponse:
		return nil, fmt.Errorf("the device plugin's response has %d bytes, more than %d", len(b), maxResponse)
	case b == nil:
		b = []byte{}
	}
	return b, nil
}
