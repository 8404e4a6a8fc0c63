package agenttest

import (
	"context"
	"net"
	"os"
	"path/filepath"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"berth/internal/storage/csi/csitest"
)

// driver is the CSI driver of the machine.
type driver struct {
	csitest.Driver
	door *bufconn.Listener
	callee
}

// AddDriver adds a CSI driver with staging to the machine. Agents find it at their start.
func (w *World) AddDriver(name string) {
	w.T.Helper()
	d := &driver{door: bufconn.Listen(1 << 16), callee: callee{about: aboutVolumes}, Driver: csitest.Driver{
		Name: name, NodeID: NodeName, Dir: filepath.Join(w.dir, "driver"), Registry: filepath.Join(w.Root(), "plugins_registry"), Stages: true, Mounter: w.mounts,
	}}
	if err := os.Mkdir(d.Dir, 0o700); err != nil {
		w.T.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	d.Register(server)
	go func() { _ = server.Serve(d.door) }()
	w.T.Cleanup(server.Stop)
	w.driver = d
}

// offerDriver creates the driver's socket in the directory that the agent watches.
func (w *World) offerDriver() {
	w.T.Helper()
	if w.driver == nil {
		return
	}
	if err := os.MkdirAll(w.driver.Registry, 0o750); err != nil {
		w.T.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(w.driver.Registry, "reg.sock"), unix.S_IFSOCK|0o600, 0); err != nil && !os.IsExist(err) {
		w.T.Fatal(err)
	}
}

// listenPlugins creates the registration socket of device plugins. It cannot be dialed: tests'
// plugins are found by the plugin watcher.
func listenPlugins(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	if err := unix.Mknod(path, unix.S_IFSOCK|0o600, 0); err != nil && !os.IsExist(err) {
		return nil, err
	}
	return bufconn.Listen(1), nil
}

// listenInMemory creates a socket that cannot be dialed.
func listenInMemory(_, path string) (net.Listener, error) { return listenPlugins(path) }

// Mounted returns the number of mounts on the machine.
func (w *World) Mounted() int {
	points, _ := w.mounts.List() // never fails
	return len(points)
}

// dial connects to the driver, whatever the socket.
func (d *driver) dial(ctx context.Context, _ string) (net.Conn, error) {
	if d == nil {
		return nil, errRefused
	}
	return d.door.DialContext(ctx)
}

// aboutVolumes reports whether a request is about volumes, not about the driver.
func aboutVolumes(request any) bool {
	switch request.(type) {
	case *csiapi.NodeGetInfoRequest, *registerapi.InfoRequest, *registerapi.RegistrationStatus:
		return false
	}
	return true
}
