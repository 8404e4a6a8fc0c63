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

// Main serves the plugin that the file describes, in JSON, until the process is killed: it
// registers as often as the socket for that is made anew, and follows the health of its devices.
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

// Run is Main for a plugin that ends with ctx.
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

// same reports whether a socket is the one that was seen. Its successor may well get its inode.
func same(a, b fs.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }

// Serve begins to serve on the plugin's socket: in the folder of device plugins or, if there is
// one, in that of the plugin watcher. stop ends that and leaves the socket behind, as a kill does.
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

// ServeOn begins to serve on a listener.
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

// patience is how long a registration may take.
const patience = time.Minute

// Register registers the plugin on the socket for that. What comes of it is recorded too.
func (p *Plugin) Register(ctx context.Context, socket string) error {
	return p.RegisterBy(ctx, func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", socket) })
}

// RegisterBy is Register over a connection of another kind.
func (p *Plugin) RegisterBy(ctx context.Context, dial func(context.Context) (net.Conn, error)) error {
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// A socket is there a moment before somebody listens on it.
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: cmp.Or(p.Version, pluginapi.Version), Endpoint: p.EndpointName(), ResourceName: p.Resource,
	}, grpc.WaitForReady(true))
	c := Call{Method: "registered"}
	if err != nil {
		c = Call{Method: "refused", Error: err.Error()}
	}
	return errors.Join(err, p.record(c))
}
