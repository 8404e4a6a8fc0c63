package devicetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/internal/host/inotify"
)

// Main serves the plugin that the JSON file describes until the process is killed. It registers
// whenever the registration socket is recreated, and follows the health of its devices.
func Main(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var p Plugin
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	return p.Run(context.Background())
}

// Run is Main for a plugin that stops when ctx is done.
func (p *Plugin) Run(ctx context.Context) error {
	ill := filepath.Join(p.Dir, "unhealthy")
	if err := os.MkdirAll(ill, 0o700); err != nil {
		return err
	}
	watch, err := inotify.Open()
	if err != nil {
		return err
	}
	defer watch.Close()
	for _, dir := range []string{p.Folder, ill} {
		if dir != "" {
			if err := watch.Add(dir); err != nil {
				return err
			}
		}
	}
	stop, err := p.Serve()
	if err != nil {
		return err
	}
	defer func() { stop() }()
	kubelet := filepath.Join(p.Folder, "kubelet.sock")
	var seen fs.FileInfo
	for {
		if is, err := os.Lstat(kubelet); p.Folder != "" && p.Registry == "" && err == nil && (seen == nil || !same(is, seen)) {
			stop() // the node agent has removed the socket
			if stop, err = p.Serve(); err != nil {
				return err
			}
			if err := p.Register(ctx, kubelet); err == nil {
				seen = is
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-watch.Events():
			if !ok {
				return errors.New("the watch ended")
			}
			if filepath.Dir(e.Path) == ill {
				p.Refresh()
			}
		}
	}
}

// same reports whether both are the same socket. A new socket may get the inode of the old one.
func same(a, b fs.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }

// Serve starts to serve on the plugin's socket: in the plugin watcher's directory if set, otherwise
// in the device plugin directory. stop stops the server and leaves the socket behind, as a kill
// does.
func (p *Plugin) Serve() (stop func(), err error) {
	dir := p.Folder
	if p.Registry != "" {
		dir = p.Registry
	}
	path := filepath.Join(dir, p.EndpointName())
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	return p.ServeOn(l), nil
}

// ServeOn starts to serve on a listener.
func (p *Plugin) ServeOn(l net.Listener) (stop func()) {
	s := grpc.NewServer()
	p.Offer(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	return func() { s.Stop(); <-done }
}

// patience is the timeout of a registration.
const patience = time.Minute

// Register registers the plugin on the registration socket, and records the result.
func (p *Plugin) Register(ctx context.Context, socket string) error {
	return p.RegisterBy(ctx, func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", socket) })
}

// RegisterBy is Register with another dialer.
func (p *Plugin) RegisterBy(ctx context.Context, dial func(context.Context) (net.Conn, error)) error {
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// The socket exists shortly before the server accepts connections.
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: cmp.Or(p.Version, pluginapi.Version), Endpoint: p.EndpointName(), ResourceName: p.Resource,
	}, grpc.WaitForReady(true))
	c := Call{Method: "registered"}
	if err != nil {
		c = Call{Method: "refused", Error: err.Error()}
	}
	return errors.Join(err, p.record(c))
}
