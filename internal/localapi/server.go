package localapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"berth/internal/localapi/access"
	"berth/internal/localapi/binder"
	"berth/internal/localapi/garbage"
	"berth/internal/localapi/inmemory"
	"berth/internal/localapi/manifests"
	"berth/internal/localapi/own"
	"berth/internal/localapi/registry"
	"berth/internal/localapi/store"
)

// What is in the root directory: the folder of objects, certificates and tokens, and the file that
// says who may do what. In the run directory: the kubeconfig of whoever may do all.
const (
	Dir        = "api"
	RulesFile  = "access.yaml"
	Kubeconfig = "kubeconfig"
)

// Config is what the API of a machine is made of.
type Config struct {
	// RootDir has what survives a reboot, RunDir the sockets and the administrator's kubeconfig.
	RootDir, RunDir string
	// NodeName is the node that pods are given.
	NodeName string
	// Address is that of the HTTPS listener, as 127.0.0.1:6443; port 0 is any. "" is none.
	Address string
	// Registry is the path of the program that judges what is written; "": Unpack knows it.
	Registry string
	// Unpack returns the path of this program, and makes it if it is not there; nil: nothing can be
	// written but by the agent.
	Unpack func() (string, error)
	// Documents are what this program says of itself, which Close closes; nil: it is started to say
	// which kinds there are.
	Documents *registry.Documents
	// Confine makes a cgroup for a process of this program; nil: it is in the agent's.
	Confine func() (registry.Cgroup, error)
	Answers
	Log *slog.Logger
}

// Server is the API. It is made by Open, serves in Run, and is ended by Close.
type Server struct {
	cfg       Config
	store     *store.Store
	authority *access.Authority
	access    *access.Access
	registry  *registry.Registry
	parts     parts
	own       *own.Calls
	garbage   *garbage.Collector
	binder    *binder.Binder
	manifests *manifests.Keeper
	listeners []listener
	// portErr is why nobody is served at the port; nil: somebody is, or there is to be none.
	portErr error
}

// listener is one socket or port of clients.
type listener struct {
	name string
	net.Listener
	tls *tls.Config
}

// Open opens the file of objects, makes what a new one lacks, and listens. Nobody is answered
// before Run.
func Open(cfg Config) (_ *Server, err error) {
	s := &Server{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("local API: %w", err), s.Close())
		}
	}()
	dir := filepath.Join(cfg.RootDir, Dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if s.store, err = store.Open(store.Config{Path: objectsFile(cfg.RootDir)}); err != nil {
		return nil, err
	}
	if err := createFirst(s.store); err != nil {
		return nil, err
	}
	if s.authority, err = access.OpenAuthority(dir); err != nil {
		return nil, err
	}
	found := objects{s.store}
	tokens, err := access.OpenTokens(access.TokensConfig{Dir: dir, Objects: found})
	if err != nil {
		return nil, err
	}
	s.access = access.New(access.Config{
		Authority: s.authority, Tokens: tokens, Rules: access.NewRulesFile(filepath.Join(cfg.RootDir, RulesFile), cfg.Log), Objects: found, Log: cfg.Log,
	})
	if s.registry, err = registry.New(registry.Config{
		Program: cfg.Registry, Unpack: cfg.Unpack, Node: cfg.NodeName, Socket: filepath.Join(cfg.RunDir, "registry.sock"), Store: s.store,
		Confine: cfg.Confine, Documents: cfg.Documents, Log: cfg.Log,
	}); err != nil {
		return nil, err
	}
	s.parts = newParts(cfg.Answers, s.store, http.HandlerFunc(s.judge), cfg.Log)
	s.own = own.New(own.Config{Store: s.store, Sign: tokens.Request})
	trusted := ownWriter{s.own}
	s.garbage = garbage.New(garbage.Config{
		Store: s.store, Writer: writer{trusted, http.HandlerFunc(s.judge)}, Defaults: defaultsOf(string(s.authority.Certificate())), Log: cfg.Log,
	})
	s.binder = binder.New(binder.Config{Store: s.store, Writer: trusted, NodeName: cfg.NodeName, Log: cfg.Log})
	s.manifests = manifests.New(manifests.Config{Store: s.store, Writer: trusted, Log: cfg.Log})
	if err := s.listen(); err != nil {
		return nil, err // s is closed
	}
	return s, nil
}

// listen opens the socket and the port, and writes the administrator's kubeconfig for the latter.
func (s *Server) listen() error {
	path := SocketPath(s.cfg.RunDir)
	// An agent that was killed had a view, if it had no API.
	if err := errors.Join(removeStale(path), os.RemoveAll(filepath.Join(s.cfg.RunDir, ViewDir))); err != nil {
		return err
	}
	socket, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	s.listeners = append(s.listeners, listener{name: "socket", Listener: socket})
	if err := os.Chmod(path, 0o600); err != nil || s.cfg.Address == "" {
		return err
	}
	kubeconfig := filepath.Join(s.cfg.RunDir, Kubeconfig)
	port, err := net.Listen("tcp", s.cfg.Address)
	if err != nil { // of somebody else; whoever reaches the socket is served
		s.portErr = fmt.Errorf("nobody is served at the port: %w: end who has it, or choose another one", err)
		return removeStale(kubeconfig)
	}
	s.listeners = append(s.listeners, listener{name: "port", Listener: access.Bounded(port), tls: s.authority.TLS()})
	return access.WriteAdmin(kubeconfig, "https://"+port.Addr().String(), s.authority)
}

// Address is that of the HTTPS listener, "" without one.
func (s *Server) Address() string {
	for _, l := range s.listeners {
		if l.tls != nil {
			return l.Addr().String()
		}
	}
	return ""
}

// REST reaches the API as the agent itself does: in memory, and trusted.
func (s *Server) REST() *rest.Config {
	return &rest.Config{Host: "http://local", Transport: inmemory.Transport{Handler: http.HandlerFunc(s.serveAgent)}}
}

// Health is what keeps the API from serving or storing.
func (s *Server) Health() error {
	return errors.Join(s.portErr, s.store.Health(), s.access.Health(), s.registry.Health(), s.garbage.Health(), s.binder.Health(), s.manifests.Health())
}

// SetManifests makes the API have the objects that manifests define now: all of them, each time.
// The error names those that it cannot have, which are tried again while Run runs.
func (s *Server) SetManifests(ctx context.Context, d manifests.Defined) error {
	return s.manifests.Set(ctx, d)
}

// Run serves, collects garbage, binds volumes and keeps the objects of manifests, until the context
// is done.
func (s *Server) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	parts := []func(context.Context) error{s.Serve, s.garbage.Run, s.binder.Run, s.manifests.Run}
	ended := make(chan error, len(parts))
	for _, run := range parts {
		go func() {
			defer stop()
			ended <- run(ctx)
		}()
	}
	var err error
	for range parts {
		err = errors.Join(err, <-ended)
	}
	return err
}

// Serve serves until the context is done.
func (s *Server) Serve(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	revoked := make(chan error, 1)
	go func() { revoked <- s.revoke(ctx) }()
	ended := make(chan error, len(s.listeners))
	var servers []*http.Server
	for _, l := range s.listeners {
		h := newHTTPServer(ctx, s.access.Handler(s.handlerOf(l)), l.tls, s.cfg.Log)
		servers = append(servers, h)
		go func() {
			if l.tls != nil {
				ended <- fmt.Errorf("%s: %w", l.name, h.ServeTLS(l.Listener, "", ""))
				return
			}
			ended <- fmt.Errorf("%s: %w", l.name, h.Serve(l.Listener))
		}()
	}
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	for _, h := range servers {
		err = errors.Join(err, shutDown(h))
	}
	stop()
	return errors.Join(err, <-revoked)
}

// newHTTPServer returns a server of a listener, whose requests know by their context when it ends.
func newHTTPServer(ctx context.Context, h http.Handler, t *tls.Config, log *slog.Logger) *http.Server {
	s := &http.Server{
		Handler: h, TLSConfig: t, ConnContext: access.ConnContext,
		BaseContext: func(net.Listener) context.Context { return ctx },
		// Whoever can reach the port can break off handshakes.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	access.Bound(s)
	return s
}

// stopTimeout is how long clients may take to end that are being answered.
const stopTimeout = 5 * time.Second

// shutDown ends a server. Its requests know by their context.
func shutDown(h *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := h.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return h.Close()
	}
	return err
}

// Close ends the child and closes the file. Run has ended.
func (s *Server) Close() error {
	var errs []error
	for _, l := range s.listeners {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if s.registry != nil {
		errs = append(errs, s.registry.Close())
	}
	if s.cfg.Documents != nil {
		errs = append(errs, s.cfg.Documents.Close())
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	return errors.Join(errs...)
}

// judge has the registry answer, which is told who asks.
func (s *Server) judge(w http.ResponseWriter, r *http.Request) {
	who := registry.Identity{Name: "berth", Groups: []string{"system:masters"}} // the agent
	if u := access.UserOf(r.Context()); u != nil {
		who = registry.Identity{Name: u.Name, UID: u.UID, Groups: u.Groups}
	}
	s.registry.ServeHTTP(w, r.WithContext(registry.WithIdentity(r.Context(), who)))
}

// serveAgent answers the agent itself.
func (s *Server) serveAgent(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		s.parts.ServeHTTP(w, r)
		return
	}
	s.own.ServeHTTP(w, r)
}
