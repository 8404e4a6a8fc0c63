// Package devicetest is a small device plugin for tests, with device nodes that exist on every
// machine. It records each call; tests make its devices unhealthy and healthy, and inject faults
// into calls: errors, hangs and crashes.
//
// Owns: the directory that it is given, with recorded calls, pending faults and unhealthy devices;
// its socket in the device plugin directory.
// Reads: the registration socket of device plugins, when it is recreated.
// Never: stores allocations in memory: a plugin that was killed resumes where it was.
package devicetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Plugin is a device plugin. Its fields must not change while it serves.
type Plugin struct {
	// Resource is the extended resource: example.com/null.
	Resource string
	// Dir is its data directory: calls, faults/<method>, unhealthy/<device>.
	Dir string
	// Folder is the device plugin directory, Endpoint the name of the plugin's socket there; "":
	// derived from Resource.
	Folder, Endpoint string
	// Version is the API version in the registration; "": the served one.
	Version string
	// Registry is the directory of the plugin watcher; if set, the plugin registers there.
	Registry string
	Devices  []Device
	// Mount is a host directory that is mounted read-only in containers with a device, as
	// /devices/<name of the resource>; "": none.
	Mount string
	// CDI is the kind of its CDI devices: example.com/device; "": none.
	CDI string
	// Prefers: GetPreferredAllocation is available, and prefers the last devices. PreStarts:
	// PreStartContainer is required.
	Prefers, PreStarts bool

	mu      sync.Mutex
	changed chan struct{} // guarded by mu; closed when the device list must be sent again
}

// Device is one device.
type Device struct {
	ID string
	// Host is the device node on the host, which is /dev/<ID> in containers; "" means /dev/null.
	Host  string
	Nodes []int64
}

// Call is a call that the plugin received, or the result of a registration.
type Call struct {
	Method    string
	Devices   []string `json:",omitempty"`
	Available []string `json:",omitempty"`
	Size      int      `json:",omitempty"`
	Error     string   `json:",omitempty"`
}

// Faults of a call.
const (
	// Fail returns an error with a code, before the call has an effect: "fail 13".
	Fail = "fail"
	// Hang blocks until the caller cancels.
	Hang = "hang"
	// Die kills the process before the call has an effect, DieAfter afterwards.
	Die      = "die"
	DieAfter = "die-after"
)

// Break injects a fault into the next call of the method; code is the gRPC code of Fail.
func Break(dir, method, fault string, code codes.Code) error {
	return put(filepath.Join(dir, "faults"), method, fmt.Sprintf("%s %d", fault, code))
}

// MakeUnhealthy makes the device unhealthy. A plugin of Main notices it, others after Refresh.
func MakeUnhealthy(dir, device string) error { return put(filepath.Join(dir, "unhealthy"), device, "") }

// MakeHealthy undoes MakeUnhealthy.
func MakeHealthy(dir, device string) error { return os.Remove(filepath.Join(dir, "unhealthy", device)) }

func put(dir, name, content string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)
}

// Calls returns the calls that plugins with the data directory received, oldest first, except
// GetDevicePluginOptions and ListAndWatch.
func Calls(dir string) ([]Call, error) {
	b, err := os.ReadFile(filepath.Join(dir, "calls"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Call
	for line := range strings.Lines(string(b)) {
		var c Call
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			return nil, fmt.Errorf("calls of the device plugin: %q: %w", line, err)
		}
		out = append(out, c)
	}
	return out, nil
}

// Offer registers the plugin's services with the server, including that for the plugin watcher.
func (p *Plugin) Offer(s *grpc.Server) {
	p.mu.Lock()
	p.changed = make(chan struct{})
	p.mu.Unlock()
	pluginapi.RegisterDevicePluginServer(s, deviceServer{plugin: p})
	registerapi.RegisterRegistrationServer(s, registrationServer{plugin: p})
}

// Refresh sends the device list again.
func (p *Plugin) Refresh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Plugin) nextChange() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// EndpointName returns the name of the plugin's socket.
func (p *Plugin) EndpointName() string {
	if p.Endpoint != "" {
		return p.Endpoint
	}
	return strings.ReplaceAll(p.Resource, "/", "-") + ".sock"
}

func (p *Plugin) record(c Call) error {
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(p.Dir, "calls"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// take records a call and injects its fault. The caller must call after when the call has had its
// effect.
func (p *Plugin) take(ctx context.Context, c Call) (after func() error, err error) {
	fault, code := "", codes.OK
	file := filepath.Join(p.Dir, "faults", c.Method)
	if b, err := os.ReadFile(file); err == nil {
		name, number, _ := strings.Cut(string(b), " ")
		n, _ := strconv.Atoi(number)
		fault, code = name, codes.Code(n)
		if err := os.Remove(file); err != nil {
			return nil, err
		}
	}
	if c.Method != options && c.Method != watch {
		if err := p.record(c); err != nil {
			return nil, err
		}
	}
	switch fault {
	case Fail:
		return nil, status.Error(code, "as the test wants it")
	case Hang:
		<-ctx.Done()
		return nil, ctx.Err()
	case Die:
		return nil, die()
	case DieAfter:
		return die, nil
	}
	return func() error { return nil }, nil
}

// die kills the process. It does not return.
func die() error {
	if err := unix.Kill(os.Getpid(), unix.SIGKILL); err != nil {
		return err
	}
	select {}
}

func (p *Plugin) list() *pluginapi.ListAndWatchResponse {
	out := &pluginapi.ListAndWatchResponse{}
	for _, d := range p.Devices {
		next := &pluginapi.Device{ID: d.ID, Health: pluginapi.Healthy}
		if _, err := os.Lstat(filepath.Join(p.Dir, "unhealthy", d.ID)); err == nil {
			next.Health = pluginapi.Unhealthy
		}
		if len(d.Nodes) > 0 {
			next.Topology = &pluginapi.TopologyInfo{}
		}
		for _, n := range d.Nodes {
			next.Topology.Nodes = append(next.Topology.Nodes, &pluginapi.NUMANode{ID: n})
		}
		out.Devices = append(out.Devices, next)
	}
	return out
}

func (p *Plugin) device(id string) (Device, error) {
	i := slices.IndexFunc(p.Devices, func(d Device) bool { return d.ID == id })
	if i < 0 {
		return Device{}, status.Errorf(codes.NotFound, "no device %q", id)
	}
	return p.Devices[i], nil
}
