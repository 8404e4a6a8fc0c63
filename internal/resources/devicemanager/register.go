package devicemanager

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// registration is the service on which plugins register (k8s.io/kubelet, deviceplugin/v1beta1). The
// reply is sent when the plugin was reached and has told its options.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	*Manager
}

// Register takes a plugin that listens on a socket in the folder. The options in the request count
// for nothing: those that the plugin tells when it is asked do.
func (s registration) Register(ctx context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	err := s.register(ctx, r)
	if err != nil {
		s.Log.Log(ctx, s.voice.level(slog.LevelWarn), "a device plugin is refused", "resource", clip(r.GetResourceName()), "endpoint", clip(r.GetEndpoint()), "error", brief(err))
		return nil, err
	}
	return &pluginapi.Empty{}, nil
}

func (s registration) register(ctx context.Context, r *pluginapi.RegisterRequest) error {
	s.count(r.GetResourceName())
	if !slices.Contains(pluginapi.SupportedVersions[:], r.GetVersion()) {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", r.GetVersion(), pluginapi.SupportedVersions)
	}
	if !isExtended(r.GetResourceName()) {
		return fmt.Errorf("the ResourceName %q is invalid", r.GetResourceName())
	}
	if !isFileName(r.GetEndpoint()) {
		return fmt.Errorf("the endpoint %q of the device plugin of %s must be the name of a socket in %s", r.GetEndpoint(), r.GetResourceName(), s.Dir)
	}
	return s.plugins.connect(ctx, r.GetResourceName(), filepath.Join(s.Dir, r.GetEndpoint()))
}

// count counts a try to register.
//
// Differs from the kubelet: names that are none of a resource, and names above the number of
// resources that a node may have, are counted under "": anybody can make them up.
func (m *Manager) count(resource string) {
	m.mu.Lock()
	if !isExtended(resource) || m.hasRoom(resource) != nil {
		resource = ""
	}
	m.mu.Unlock()
	m.metrics.registered(resource)
}

// isFileName reports whether the name is that of an entry of a folder.
func isFileName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

func clip(s string) string { return s[:min(len(s), maxErrorText)] }

// ValidatePlugin refuses a plugin, found by the plugin watcher, that speaks no known version or
// whose name is that of no extended resource.
func (m *Manager) ValidatePlugin(name, _ string, versions []string) error {
	m.count(name)
	if !slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(pluginapi.SupportedVersions[:], v) }) {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", versions, pluginapi.SupportedVersions)
	}
	if !isExtended(name) {
		return fmt.Errorf("the ResourceName %q is invalid", name)
	}
	return nil
}

// RegisterPlugin takes a plugin that the plugin watcher has found. It waits until Run has begun.
func (m *Manager) RegisterPlugin(ctx context.Context, name, endpoint string, _ []string) error {
	return m.plugins.connect(ctx, name, endpoint)
}

// DeregisterPlugin is told that the socket of a plugin is gone.
func (m *Manager) DeregisterPlugin(name, socket string) {
	m.mu.Lock()
	var e *endpoint
	if r := m.resources[name]; r != nil && r.endpoint != nil && r.endpoint.socket == socket {
		e = r.endpoint
	}
	m.mu.Unlock()
	if e != nil {
		m.ended(e, errSocketGone)
		e.close()
	}
}
