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

	"berth/internal/localapi/apiserver"
	"berth/internal/localapi/auth"
	"berth/internal/localapi/store"
)

// frontend serves clients: authentication, authorization, the API writer and the
// listeners.
type frontend struct {
	cfg       Config
	store     *store.Store
	authority *auth.Authority
	access    *auth.Access
	writer    *apiserver.Child
	listeners []listener
	// portErr is why the port is not served, nil if it is served or not configured.
	portErr error
}

type listener struct {
	name string
	net.Listener
	tls *tls.Config
}

// open opens everything but the listeners, and returns the issuer of service account tokens.
func (f *frontend) open(s *store.Store) (tokens *auth.Tokens, err error) {
	f.store = s
	dir, found := filepath.Join(f.cfg.RootDir, Dir), objects{s}
	if err := auth.SetAsideDamaged(dir, f.cfg.Log); err != nil {
		return nil, err
	}
	if f.authority, err = auth.OpenAuthority(dir); err != nil {
		return nil, err
	}
	if tokens, err = auth.OpenTokens(auth.TokensConfig{Dir: dir, Objects: found}); err != nil {
		return nil, err
	}
	f.access = auth.New(auth.Config{
		Authority: f.authority, Tokens: tokens, Rules: auth.NewRulesFile(filepath.Join(f.cfg.RootDir, RulesFile), f.cfg.Log), Objects: found, Watch: f.cfg.WatchRules, Log: f.cfg.Log,
	})
	f.writer, err = apiserver.New(apiserver.Config{
		Program: f.cfg.Registry, Unpack: f.cfg.Unpack, Node: f.cfg.NodeName, Socket: filepath.Join(f.cfg.RunDir, "apiserver.sock"), Store: s,
		Confine: f.cfg.Confine, Documents: f.cfg.Documents, Log: f.cfg.Log,
	})
	return tokens, err
}

// listen opens the socket and the port, and writes the administrator's kubeconfig for the port.
func (f *frontend) listen() error {
	path := SocketPath(f.cfg.RunDir)
	// An agent that was killed may have left a view, if it had no API.
	if err := errors.Join(removeStale(path), os.RemoveAll(filepath.Join(f.cfg.RunDir, ViewDir))); err != nil {
		return err
	}
	listen := f.cfg.Listen
	if listen == nil {
		listen = net.Listen
	}
	socket, err := listen("unix", path)
	if err != nil {
		return err
	}
	f.listeners = append(f.listeners, listener{name: "socket", Listener: socket})
	if err := os.Chmod(path, 0o600); err != nil || f.cfg.Address == "" {
		return err
	}
	kubeconfig := filepath.Join(f.cfg.RunDir, Kubeconfig)
	port, err := listen("tcp", f.cfg.Address)
	if err != nil { // such as a port in use; the socket is served nevertheless
		f.portErr = fmt.Errorf("%w (stop the process that holds the port, or set --local-api-address)", err)
		return removeStale(kubeconfig)
	}
	f.listeners = append(f.listeners, listener{name: "port", Listener: auth.Bounded(port), tls: f.authority.TLS()})
	return auth.WriteAdmin(kubeconfig, "https://"+port.Addr().String(), f.authority)
}

// address returns the address of the HTTPS listener, "" without one.
func (f *frontend) address() string {
	for _, l := range f.listeners {
		if l.tls != nil {
			return l.Addr().String()
		}
	}
	return ""
}

func (f *frontend) health() error {
	return errors.Join(f.portErr, f.access.Health(), auth.Damaged(filepath.Join(f.cfg.RootDir, Dir)), f.writer.Health())
}

// serve serves authorized requests by next until the context is done.
func (f *frontend) serve(ctx context.Context, next http.Handler) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	revoked := make(chan error, 1)
	go func() { revoked <- f.revoke(ctx) }()
	ended := make(chan error, len(f.listeners))
	var servers []*http.Server
	for _, l := range f.listeners {
		h := newHTTPServer(ctx, f.access.Handler(f.handlerOf(l, next)), l.tls, f.cfg.Log)
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

// close closes the listeners and stops the API writer. serve has returned.
func (f *frontend) close() error {
	var errs []error
	for _, l := range f.listeners {
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if f.writer != nil {
		errs = append(errs, f.writer.Close())
	}
	if f.cfg.Documents != nil {
		errs = append(errs, f.cfg.Documents.Close())
	}
	return errors.Join(errs...)
}

// admit forwards a request, with the user's identity, to the API writer.
func (f *frontend) admit(w http.ResponseWriter, r *http.Request) {
	user := apiserver.Identity{Name: "berth", Groups: []string{"system:masters"}} // the agent
	if u := auth.UserOf(r.Context()); u != nil {
		user = apiserver.Identity{Name: u.Name, UID: u.UID, Groups: u.Groups}
	}
	f.writer.ServeHTTP(w, r.WithContext(apiserver.WithIdentity(r.Context(), user)))
}

// newHTTPServer returns a listener's server. The contexts of its requests are done when ctx is.
func newHTTPServer(ctx context.Context, h http.Handler, t *tls.Config, log *slog.Logger) *http.Server {
	s := &http.Server{
		Handler: h, TLSConfig: t, ConnContext: auth.ConnContext,
		BaseContext: func(net.Listener) context.Context { return ctx },
		// Any client that reaches the port can abort handshakes.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	auth.Bound(s)
	return s
}

// stopTimeout is how long requests in progress may take once the server stops.
const stopTimeout = 5 * time.Second

// shutDown stops a server, and waits up to stopTimeout for requests in progress.
func shutDown(h *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := h.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return h.Close()
	}
	return err
}
