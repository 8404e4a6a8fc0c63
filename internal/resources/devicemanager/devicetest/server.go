package devicetest

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Methods whose calls are not recorded: they are part of each registration.
const (
	options = "GetDevicePluginOptions"
	watch   = "ListAndWatch"
)

type deviceServer struct {
	pluginapi.UnimplementedDevicePluginServer
	plugin *Plugin
}

// GetDevicePluginOptions returns the plugin's options.
func (s deviceServer) GetDevicePluginOptions(ctx context.Context, _ *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	after, err := s.plugin.take(ctx, Call{Method: options})
	if err != nil {
		return nil, err
	}
	return &pluginapi.DevicePluginOptions{PreStartRequired: s.plugin.PreStarts, GetPreferredAllocationAvailable: s.plugin.Prefers}, after()
}

// ListAndWatch sends the devices, and again after each change.
func (s deviceServer) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	after, err := s.plugin.take(stream.Context(), Call{Method: watch})
	if err != nil {
		return err
	}
	for {
		changed := s.plugin.nextChange()
		if err := stream.Send(s.plugin.list()); err != nil {
			return err
		}
		if err := after(); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// GetPreferredAllocation prefers the last devices.
func (s deviceServer) GetPreferredAllocation(ctx context.Context, r *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	out := &pluginapi.PreferredAllocationResponse{}
	for _, c := range r.ContainerRequests {
		after, err := s.plugin.take(ctx, Call{Method: "GetPreferredAllocation", Available: c.AvailableDeviceIDs, Devices: c.MustIncludeDeviceIDs, Size: int(c.AllocationSize)})
		if err != nil {
			return nil, err
		}
		ids := slices.Clone(c.MustIncludeDeviceIDs)
		for _, id := range slices.Backward(slices.Sorted(slices.Values(c.AvailableDeviceIDs))) {
			if len(ids) < int(c.AllocationSize) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
		if err := after(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Allocate returns what a container needs to use the devices.
func (s deviceServer) Allocate(ctx context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	out := &pluginapi.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		after, err := s.plugin.take(ctx, Call{Method: "Allocate", Devices: c.DevicesIds})
		if err != nil {
			return nil, err
		}
		next, err := s.response(c.DevicesIds)
		if err != nil {
			return nil, err
		}
		out.ContainerResponses = append(out.ContainerResponses, next)
		if err := after(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// response returns the parameters of a container with the devices: an environment variable and an
// annotation that name them, the device nodes, the mount, the CDI devices.
func (s deviceServer) response(ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	text := strings.Join(ids, ",")
	out := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{EnvName(s.plugin.Resource): text}, Annotations: map[string]string{s.plugin.Resource: text}}
	for _, id := range ids {
		d, err := s.plugin.device(id)
		if err != nil {
			return nil, err
		}
		out.Devices = append(out.Devices, &pluginapi.DeviceSpec{ContainerPath: "/dev/" + id, HostPath: cmp.Or(d.Host, "/dev/null"), Permissions: "rw"})
		if s.plugin.CDI != "" {
			out.CdiDevices = append(out.CdiDevices, &pluginapi.CDIDevice{Name: s.plugin.CDI + "=" + id})
		}
	}
	if s.plugin.Mount != "" {
		out.Mounts = append(out.Mounts, &pluginapi.Mount{ContainerPath: "/devices/" + path.Base(s.plugin.Resource), HostPath: s.plugin.Mount, ReadOnly: true})
	}
	return out, nil
}

// EnvName returns the environment variable that names a container's devices: EXAMPLE_COM_NULL.
func EnvName(resource string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == '.' || r == '-' {
			return '_'
		}
		return r
	}, strings.ToUpper(resource))
}

// PreStartContainer records the start of a container.
func (s deviceServer) PreStartContainer(ctx context.Context, r *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	after, err := s.plugin.take(ctx, Call{Method: "PreStartContainer", Devices: r.DevicesIds})
	if err != nil {
		return nil, err
	}
	return &pluginapi.PreStartContainerResponse{}, after()
}

// registrationServer is the registration service for the plugin watcher.
type registrationServer struct {
	registerapi.UnimplementedRegistrationServer
	plugin *Plugin
}

// GetInfo returns the plugin's type, name and versions.
func (s registrationServer) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.DevicePlugin, Name: s.plugin.Resource, SupportedVersions: []string{pluginapi.Version}}, nil
}

// NotifyRegistrationStatus records the result of the registration.
func (s registrationServer) NotifyRegistrationStatus(_ context.Context, r *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	c := Call{Method: "registered"}
	if !r.PluginRegistered {
		c = Call{Method: "refused", Error: r.Error}
	}
	return &registerapi.RegistrationStatusResponse{}, s.plugin.record(c)
}
