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

// Prepare has the plugins make ready what Allocate has chosen, container by container, and keeps
// what they say. It waits for them as long as ctx allows. The error is the first one of a plugin,
// in its words.
//
// What an earlier agent has chosen is never an error: a plugin that is not there yet, or fails, is
// asked again by Options.
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
	m.mu.Lock()
	has := m.held(p.UID, container)
	m.mu.Unlock()
	for _, h := range has {
		if h.response != nil || h.restored && !h.heard {
			continue
		}
		_, err := m.ask(ctx, p, container, h)
		switch {
		case err == nil:
			answered = true
		case !h.restored || ctx.Err() != nil:
			return err
		}
	}
	if answered {
		m.saveAllocations()
	}
	return nil
}

// saveAllocations writes what plugins have answered. If that fails it is tried again: an agent that
// ends before asks them once more.
func (m *Manager) saveAllocations() {
	if m.save() != nil {
		m.wakeUp()
	}
}

// ask makes the plugin's Allocate call, and notes the response.
func (m *Manager) ask(ctx context.Context, p *v1.Pod, container string, h held) (response []byte, err error) {
	if h.endpoint == nil {
		return nil, fmt.Errorf("cannot allocate devices of %s: %w", h.resource, errAway)
	}
	began := time.Now()
	r, err := h.endpoint.client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: h.ids}}})
	took := time.Since(began)
	m.metrics.allocated(h.resource, took)
	if err == nil {
		response, err = encode(r)
	}
	m.note(p, container, fmt.Sprintf("ask the device plugin of %s for %s", h.resource, list(h.ids)), err)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods.get(p.UID, container, h.resource) == h.allocation {
		h.allocation.response = response
		m.generation++
	}
	return response, nil
}

// encode returns the response for the first container, as protobuf; not nil even if it says
// nothing.
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
