package agenttest

import (
	"context"
	"net"
	"os"
	"path"
	"path/filepath"
	"sync"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"berth/internal/storage/csi/csitest"
)

// driver is the CSI driver of the machine.
type driver struct {
	csitest.Driver
	door *bufconn.Listener

	mu    sync.Mutex
	count int         // guarded by mu; calls that are about volumes
	armed *callStrike // guarded by mu; nil for none
}

// AddDriver puts a CSI driver on the machine, which stages its volumes. Agents that start from now
// on find it.
func (w *World) AddDriver(name string) {
	w.T.Helper()
	d := &driver{door: bufconn.Listen(1 << 16), Driver: csitest.Driver{
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

// calls returns how many calls about volumes the driver got.
func (d *driver) calls() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count
}

func (d *driver) arm(s *callStrike) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed = s
}

// next counts a call, and returns what happens at it, nil for nothing.
func (d *driver) next() *callStrike {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count++
	if d.armed == nil {
		return nil
	}
	if d.armed.left--; d.armed.left > 0 {
		return nil
	}
	strike := d.armed
	d.armed = nil
	return strike
}

// intercept strikes at the calls that are about volumes.
func (d *driver) intercept(ctx context.Context, request any, call *grpc.UnaryServerInfo, carryOut grpc.UnaryHandler) (any, error) {
	switch request.(type) {
	case *csiapi.NodeGetInfoRequest, *registerapi.InfoRequest, *registerapi.RegistrationStatus:
		return carryOut(ctx, request)
	}
	strike := d.next()
	if strike == nil {
		return carryOut(ctx, request)
	}
	if strike.moment == AfterCall {
		if _, err := carryOut(ctx, request); err != nil {
			return nil, err
		}
	}
	strike.then(path.Base(call.FullMethod))
	return nil, status.Error(codes.Canceled, "the caller is gone")
}
