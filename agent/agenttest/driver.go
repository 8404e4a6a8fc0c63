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

// AddDriver puts a CSI driver on the machine, which stages its volumes. Agents that start from now
// on find it.
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

// offerDriver puts the driver's socket where the agent looks for those of plugins.
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

// listenPlugins makes the socket on which device plugins register. Nobody can dial it: plugins of
// tests are found by the plugin watcher.
func listenPlugins(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	if err := unix.Mknod(path, unix.S_IFSOCK|0o600, 0); err != nil && !os.IsExist(err) {
		return nil, err
	}
	return bufconn.Listen(1), nil
}

// listenInMemory makes a socket that nobody can dial.
func listenInMemory(_, path string) (net.Listener, error) { return listenPlugins(path) }

// Mounted returns how many mounts there are on the machine.
func (w *World) Mounted() int {
	points, _ := w.mounts.List() // which never fails
	return len(points)
}

// dial connects to the driver, whatever the socket.
func (d *driver) dial(ctx context.Context, _ string) (net.Conn, error) {
	if d == nil {
		return nil, errRefused
	}
	return d.door.DialContext(ctx)
}

// aboutVolumes tells the requests that are about volumes from those that are about the driver.
func aboutVolumes(request any) bool {
	switch request.(type) {
	case *csiapi.NodeGetInfoRequest, *registerapi.InfoRequest, *registerapi.RegistrationStatus:
		return false
	}
	return true
}
