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

// registration is the Registration service of device plugins (k8s.io/kubelet,
// deviceplugin/v1beta1). It replies after it has connected to the plugin and read its options.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	plugins *plugins
	dir     string
}

// Register registers a plugin that listens on a socket in the device plugin directory. The options
// in the request are ignored; those of GetDevicePluginOptions are used.
func (s registration) Register(ctx context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	err := s.register(ctx, r)
	if err != nil {
		s.plugins.log.Log(ctx, s.plugins.logs.level(slog.LevelWarn), "a device plugin is refused", "resource", clip(r.GetResourceName()), "endpoint", clip(r.GetEndpoint()), "error", brief(err))
		return nil, err
	}
	return &pluginapi.Empty{}, nil
}

func (s registration) register(ctx context.Context, r *pluginapi.RegisterRequest) error {
	s.plugins.count(r.GetResourceName())
	if !slices.Contains(pluginapi.SupportedVersions[:], r.GetVersion()) {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", r.GetVersion(), pluginapi.SupportedVersions)
	}
	if !isExtended(r.GetResourceName()) {
		return fmt.Errorf("the ResourceName %q is invalid", r.GetResourceName())
	}
	if !isFileName(r.GetEndpoint()) {
		return fmt.Errorf("the endpoint %q of the device plugin of %s must be the name of a socket in %s", r.GetEndpoint(), r.GetResourceName(), s.dir)
	}
	return s.plugins.connect(ctx, r.GetResourceName(), filepath.Join(s.dir, r.GetEndpoint()))
}

// count counts a registration attempt.
//
// Differs from the kubelet: invalid resource names and names beyond maxResources are counted under
// "", because a client could create any number of label values.
func (ps *plugins) count(resource string) {
	ps.allocations.mu.Lock()
	if !isExtended(resource) || ps.allocations.hasCapacity(resource) != nil {
		resource = ""
	}
	ps.allocations.mu.Unlock()
	ps.metrics.registered(resource)
}

func isFileName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

func clip(s string) string { return s[:min(len(s), maxErrorText)] }

// ValidatePlugin validates a plugin that the plugin watcher has found. It returns an error if no
// version is supported or the name is not that of an extended resource.
func (m *Manager) ValidatePlugin(name, _ string, versions []string) error {
	m.plugins.count(name)
	if !slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(pluginapi.SupportedVersions[:], v) }) {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", versions, pluginapi.SupportedVersions)
	}
	if !isExtended(name) {
		return fmt.Errorf("the ResourceName %q is invalid", name)
	}
	return nil
}

// RegisterPlugin registers a plugin that the plugin watcher has found. It waits until Run has
// started.
func (m *Manager) RegisterPlugin(ctx context.Context, name, endpoint string, _ []string) error {
	return m.plugins.connect(ctx, name, endpoint)
}

// DeregisterPlugin closes the connection to the plugin if its socket was removed.
func (m *Manager) DeregisterPlugin(name, socket string) {
	m.allocations.mu.Lock()
	var e *endpoint
	if r := m.allocations.resources[name]; r != nil && r.endpoint != nil && r.endpoint.socket == socket {
		e = r.endpoint
	}
	m.allocations.mu.Unlock()
	if e != nil {
		m.plugins.disconnected(e, errSocketGone)
		e.close()
	}
}
