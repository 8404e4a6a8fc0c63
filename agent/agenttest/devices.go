package agenttest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/internal/host/inotify"
	"berth/internal/resources/devicemanager/devicetest"
	"berth/internal/resources/machine"
	"berth/internal/resources/machine/machinetest"
	"berth/internal/storage/plugins"
)

// usualShape is the default CPU topology of the machine: two cores with two threads each, 0 and 2,
// 1 and 3.
var usualShape = machinetest.Shape{Cores: 2, Threads: 2}

func (p *parts) layout() (machine.Machine, error) { return p.shape.Machine(), nil }

// devices is a device plugin of the machine, which the plugin watcher finds.
type devices struct {
	*devicetest.Plugin
	callee
	stop func() // nil while it does not run

	running sync.Mutex
	door    *bufconn.Listener // guarded by running; nil while it does not run
}

// AddDevicePlugin adds a device plugin to the machine, with devices d0, d1, ….
func (w *World) AddDevicePlugin(resource string, n int) {
	w.T.Helper()
	p := &devicetest.Plugin{Resource: resource, Dir: filepath.Join(w.dir, "device-plugin"), Registry: filepath.Join(w.Root(), "plugins_registry"), PreStarts: true}
	if err := os.Mkdir(p.Dir, 0o700); err != nil {
		w.T.Fatal(err)
	}
	for i := range n {
		p.Devices = append(p.Devices, devicetest.Device{ID: fmt.Sprintf("d%d", i)})
	}
	w.devices = &devices{Plugin: p, callee: callee{about: aboutDevices}}
	w.StartDevicePlugin()
}

// StartDevicePlugin restarts the device plugin.
func (w *World) StartDevicePlugin() {
	w.T.Helper()
	d := w.devices
	door := bufconn.Listen(1 << 16)
	server := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	d.Offer(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(door)
	}()
	d.stop = func() { server.Stop(); <-done }
	d.running.Lock()
	d.door = door
	d.running.Unlock()
	w.offerDevices()
	w.T.Cleanup(w.StopDevicePlugin)
}

// StopDevicePlugin stops the device plugin.
func (w *World) StopDevicePlugin() {
	d := w.devices
	if d.stop == nil {
		return
	}
	d.running.Lock()
	d.door = nil
	d.running.Unlock()
	d.stop()
	d.stop = nil
	if err := os.Remove(d.socket()); err != nil && !os.IsNotExist(err) {
		w.T.Error(err)
	}
	w.pluginWatches.tell(inotify.Event{Path: d.socket(), Deleted: true})
}

// aboutDevices reports whether a request is about containers, not about the plugin.
func aboutDevices(request any) bool {
	switch request.(type) {
	case *pluginapi.AllocateRequest, *pluginapi.PreStartContainerRequest:
		return true
	}
	return false
}

func (d *devices) socket() string { return filepath.Join(d.Registry, d.EndpointName()) }

// offerDevices creates the plugin's socket in the directory that the agent watches.
func (w *World) offerDevices() {
	w.T.Helper()
	if w.devices == nil || w.devices.stop == nil {
		return
	}
	if err := os.MkdirAll(w.devices.Registry, 0o750); err != nil {
		w.T.Fatal(err)
	}
	if err := unix.Mknod(w.devices.socket(), unix.S_IFSOCK|0o600, 0); err != nil && !os.IsExist(err) {
		w.T.Fatal(err)
	}
	w.pluginWatches.tell(inotify.Event{Path: w.devices.socket()})
}

// dialPlugin connects to the device plugin or to the CSI driver.
func (w *World) dialPlugin(ctx context.Context, socket string) (net.Conn, error) {
	if w.devices == nil || socket != w.devices.socket() {
		return w.driver.dial(ctx, socket)
	}
	w.devices.running.Lock()
	door := w.devices.door
	w.devices.running.Unlock()
	if door == nil {
		return nil, errRefused
	}
	return door.DialContext(ctx)
}

// pluginWatches are the watches of plugin directories.
type pluginWatches struct {
	mu   sync.Mutex
	open []*pluginWatch // guarded by mu
}

// pluginWatch reports the sockets of plugins.
type pluginWatch struct {
	of      *pluginWatches
	folders []string // guarded by of.mu
	events  chan inotify.Event
}

func (w *pluginWatches) watch() (plugins.Watch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &pluginWatch{of: w, events: make(chan inotify.Event, 100)}
	w.open = append(w.open, p)
	return p, nil
}

func (w *pluginWatches) tell(e inotify.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.open {
		if slices.Contains(p.folders, filepath.Dir(e.Path)) {
			p.events <- e
		}
	}
}

func (p *pluginWatch) Add(folder string) error {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.folders = append(p.folders, filepath.Clean(folder))
	return nil
}

func (p *pluginWatch) Events() <-chan inotify.Event { return p.events }

func (p *pluginWatch) Close() error {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.of.open = slices.DeleteFunc(p.of.open, func(other *pluginWatch) bool { return other == p })
	return nil
}

// assigned returns the device parameters with which a container was created: variables of device
// plugins, and devices.
func (s *story) assigned(ref string) string {
	c, ok := s.Runtime.Find(ref)
	if !ok {
		return "no container"
	}
	var out []string
	for _, e := range c.Config.GetEnvs() {
		if s.devices != nil && e.Key == devicetest.EnvName(s.devices.Resource) {
			out = append(out, e.Key+"="+string(e.Value))
		}
	}
	for _, d := range c.Config.GetDevices() {
		out = append(out, d.ContainerPath)
	}
	return strings.Join(out, " ")
}
