// Package devicetest is a small device plugin whose devices are device nodes that every machine
// has, and with which a test has its way: it tells each call, its devices fall ill and recover, and
// it fails, hangs or dies in the calls that the test names.
//
// Owns: the folder that it is given: the record of calls, the faults to come, which devices are
// ill; its socket in the folder of device plugins.
// Reads: the socket on which device plugins register, when it is made anew.
// Never: keeps in memory who has which device: a plugin that was killed goes on where it was.
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

// Plugin is one device plugin. Its fields are not changed while it serves.
type Plugin struct {
	// Resource is what it offers: example.com/null.
	Resource string
	// Dir is where it keeps everything: calls, faults/<method>, unhealthy/<device>.
	Dir string
	// Folder is that of device plugins, Endpoint the name of its socket there; "": by the resource.
	Folder, Endpoint string
	// Version is the API version that it registers with; "": the one that it serves.
	Version string
	// Registry is the folder of the plugin watcher, in which it offers itself then.
	Registry string
	Devices  []Device
	// Mount is a folder of the host that containers with a device see, read-only, as /devices/<name
	// of the resource>; "": none.
	Mount string
	// CDI is the kind of CDI devices that it names: example.com/device; "": none.
	CDI string
	// Prefers: it says which devices it would rather give: the last ones. PreStarts: it wants to
	// know of each start.
	Prefers, PreStarts bool

	mu      sync.Mutex
	changed chan struct{} // guarded by mu; closed when the list is to be sent again
}

// Device is one device.
type Device struct {
	ID string
	// Host is the device node on the host, which containers see as /dev/<ID>; "" is /dev/null.
	Host  string
	Nodes []int64
}

// Call is one call that the plugin got, or how a registration went.
type Call struct {
	Method    string
	Devices   []string `json:",omitempty"`
	Available []string `json:",omitempty"`
	Size      int      `json:",omitempty"`
	Error     string   `json:",omitempty"`
}

// Faults that a call may have.
const (
	// Fail fails with a code before anything is done: "fail 13".
	Fail = "fail"
	// Hang does nothing until the caller gives up.
	Hang = "hang"
	// Die ends the process before anything is done, DieAfter when everything is.
	Die      = "die"
	DieAfter = "die-after"
)

// Break gives the next call of the method a fault, with the gRPC code for one that fails.
func Break(dir, method, fault string, code codes.Code) error {
	return put(filepath.Join(dir, "faults"), method, fmt.Sprintf("%s %d", fault, code))
}

// MakeUnhealthy has the device fall ill; MakeHealthy has it recover. A plugin of Main sees it by
// itself, others when Refresh is called.
func MakeUnhealthy(dir, device string) error { return put(filepath.Join(dir, "unhealthy"), device, "") }

// MakeHealthy undoes MakeUnhealthy.
func MakeHealthy(dir, device string) error { return os.Remove(filepath.Join(dir, "unhealthy", device)) }

func put(dir, name, content string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)
}

// Calls returns the calls that plugins in the folder got, the first first, but those of
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

// Offer has the server serve the plugin, and its registration by the plugin watcher.
func (p *Plugin) Offer(s *grpc.Server) {
	p.mu.Lock()
	p.changed = make(chan struct{})
	p.mu.Unlock()
	pluginapi.RegisterDevicePluginServer(s, deviceServer{Plugin: p})
	registerapi.RegisterRegistrationServer(s, registrationServer{Plugin: p})
}

// Refresh sends the list of devices again.
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

// EndpointName is the name of the plugin's socket.
func (p *Plugin) EndpointName() string {
	if p.Endpoint != "" {
		return p.Endpoint
	}
	return strings.ReplaceAll(p.Resource, "/", "-") + ".sock"
}

// record takes note of a call.
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

// take has a call, with the fault that it is to have. after is to be called when it is carried out.
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

// die ends the process as a kill does. It does not come back.
func die() error {
	if err := unix.Kill(os.Getpid(), unix.SIGKILL); err != nil {
		return err
	}
	select {}
}

// list returns the devices as they are now.
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
