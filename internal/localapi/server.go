package localapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"berth/internal/explain"
	"berth/internal/localapi/apiserver"
	"berth/internal/localapi/auth"
	"berth/internal/localapi/gc"
	"berth/internal/localapi/loopback"
	"berth/internal/localapi/manifests"
	"berth/internal/localapi/pvbinder"
	"berth/internal/localapi/scheduler"
	"berth/internal/localapi/store"
	"berth/internal/localapi/trusted"
	"berth/internal/record/journal"
)

// Dir is the directory of objects, certificates and tokens, and RulesFile the file of authorization
// rules, in the root directory. Kubeconfig is the administrator's kubeconfig in the run directory.
const (
	Dir        = "api"
	RulesFile  = "access.yaml"
	Kubeconfig = "kubeconfig"
)

// Config configures a Server.
type Config struct {
	// RootDir holds what survives a reboot, RunDir the sockets and the administrator's kubeconfig.
	RootDir, RunDir string
	// NodeName is the node that pods are bound to.
	NodeName string
	// Address is the HTTPS listener's address, such as 127.0.0.1:6443. Port 0 is any port, "" no
	// listener.
	Address string
	// RuntimeHandlers are the runtime's handlers for which RuntimeClasses are created.
	RuntimeHandlers []string
	// Registry is the path of the API writer's program; "" uses Unpack.
	Registry string
	// Unpack returns the path of the API writer's program, and creates it if it does not exist;
	// nil: only the agent can write.
	Unpack func() (string, error)
	// Documents are the API writer's discovery and OpenAPI documents, which Close closes; nil: the
	// API writer is started to serve discovery.
	Documents *apiserver.Documents
	// Confine creates a cgroup for an API writer process; nil: it runs in the agent's.
	Confine func() (apiserver.Cgroup, error)
	Answers
	// Recovered is called by Open if it has recovered a damaged object file; nil: it is only
	// logged.
	Recovered func(*store.Recovery)
	// Journal is passed to the scheduler.
	Journal *journal.Journal
	// Shutdown is passed to the scheduler.
	Shutdown scheduler.Shutdown
	// Listen opens the socket and the port; nil is net.Listen.
	Listen func(network, address string) (net.Listener, error)
	// WatchRules opens a watcher of the rules file; nil is inotify.
	WatchRules func() (auth.Watcher, error)
	Log        *slog.Logger
}

// Server is the local API. Open or OpenPrivate creates it, Run serves it, Close closes it.
type Server struct {
	store     *store.Store
	objects   *objectErrors
	mux       mux
	trusted   *trusted.Calls
	garbage   *gc.Collector
	binder    *pvbinder.Binder
	scheduler *scheduler.Scheduler // nil: only the agent writes pods, with their node set
	manifests *manifests.Applier
	frontend  *frontend // nil: only the agent can reach the API
}

// Open opens the object file, creates the initial objects that do not exist, and listens. Requests
// are served from Run on.
func Open(cfg Config) (_ *Server, err error) {
	s := &Server{frontend: &frontend{cfg: cfg}, objects: &objectErrors{log: cfg.Log}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("local API: %w", err), s.Close())
		}
	}()
	if err := os.MkdirAll(filepath.Join(cfg.RootDir, Dir), 0o700); err != nil {
		return nil, err
	}
	if s.store, err = store.Open(storeConfig(cfg.RootDir, cfg.Log)); err != nil {
		return nil, err
	}
	s.objects.reportRecovery(s.store, cfg.Recovered)
	tokens, err := s.frontend.open(s.store)
	if err != nil {
		return nil, err
	}
	admit := http.HandlerFunc(s.frontend.admit)
	s.trusted = trusted.New(trusted.Config{Store: s.store, Sign: tokens.Request})
	s.newComponents(cfg, admit, admit, string(s.frontend.authority.Certificate()))
	s.scheduler = scheduler.New(scheduler.Config{
		Store: s.store, Writer: trustedWriter{s.trusted}, Decider: scheduler.Filters{}, NodeName: cfg.NodeName, Journal: cfg.Journal, Shutdown: cfg.Shutdown, Log: cfg.Log,
	})
	if err := createInitial(s.store, append(initialObjects(), runtimeClasses(cfg.RuntimeHandlers)...)); err != nil {
		return nil, err
	}
	if err := s.frontend.listen(); err != nil {
		return nil, err // the deferred function closes s
	}
	return s, nil
}

// privateFile is the object file, in the run directory, of an API that only the agent can reach.
const privateFile = "objects.db"

// privateHistory is the number of bytes of changes that are cached for the agent's own watches,
// which are never far behind.
const privateHistory = 256 << 10

// OpenPrivate opens an API that only the agent can reach. It has no listeners and no API writer,
// and its objects are deleted when the agent exits. It uses RunDir, NodeName and Log of the
// configuration.
func OpenPrivate(cfg Config) (_ *Server, err error) {
	s := &Server{objects: &objectErrors{log: cfg.Log}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("objects of the agent: %w", err), s.Close())
		}
	}()
	path := filepath.Join(cfg.RunDir, privateFile)
	if err := errors.Join(os.MkdirAll(cfg.RunDir, 0o755), removeStale(path)); err != nil {
		return nil, err
	}
	if s.store, err = store.Open(store.Config{Path: path, MaxHistoryBytes: privateHistory, NoSync: true}); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil { // the open file is deleted when the process exits
		return nil, err
	}
	s.trusted = trusted.New(trusted.Config{Store: s.store, Sign: refuseToken})
	s.newComponents(cfg, http.HandlerFunc(notFound), s.trusted, "")
	if err := createInitial(s.store, initialObjects()); err != nil {
		return nil, err // the deferred function closes s
	}
	return s, nil
}

// refuseToken rejects a token request, since no API server would accept the token.
func refuseToken(_ context.Context, namespace, account string, _ *authenticationv1.TokenRequest) error {
	return apierrors.NewForbidden(v1.Resource("serviceaccounts/token"), namespace+"/"+account, errNoTokens)
}

var errNoTokens = errors.New("service account tokens need an API server, and this agent has none: start it without --local-api=false, or remove what asks for the token")

// newComponents creates the mux and the controllers. collector serves the writes of the garbage
// collector that are not trusted.
func (s *Server) newComponents(cfg Config, admit, collector http.Handler, authority string) {
	writer := trustedWriter{s.trusted}
	s.mux = newMux(cfg.Answers, cfg.NodeName, s.store, admit, s.objects)
	s.garbage = gc.New(gc.Config{Store: s.store, Writer: gcWriter{trusted: s.trusted, admit: collector}, Defaults: defaultsOf(authority), Log: cfg.Log})
	s.binder = pvbinder.New(pvbinder.Config{Store: s.store, Writer: writer, NodeName: cfg.NodeName, Log: cfg.Log})
	s.manifests = manifests.New(manifests.Config{Store: s.store, Writer: writer, Log: cfg.Log})
}

// REST returns a client configuration for the agent itself: over loopback, with trusted writes.
func (s *Server) REST() *rest.Config {
	return &rest.Config{Host: "http://local", Transport: loopback.Transport{Handler: http.HandlerFunc(s.serveAgent)}}
}

// Health reports what prevents the API from serving or storing.
func (s *Server) Health() error {
	err := errors.Join(s.store.Health(), s.objects.health(s.store), s.garbage.Health(), s.binder.Health(), s.manifests.Health())
	if s.frontend == nil {
		return err
	}
	return errors.Join(s.frontend.health(), s.scheduler.Health(), err)
}

// SetManifests applies the objects that manifests define now; d holds all of them. The error names
// those that failed, which Run retries.
func (s *Server) SetManifests(ctx context.Context, d manifests.Defined) error {
	return s.manifests.Set(ctx, d)
}

// ShutdownChanged notifies the scheduler that Config.Shutdown has changed.
func (s *Server) ShutdownChanged() {
	if s.scheduler != nil {
		s.scheduler.Wake()
	}
}

// Explain returns why a pod is unbound; nil if there is no such pod.
func (s *Server) Explain(namespace, name string) (*explain.Unbound, error) {
	if s.scheduler == nil {
		return nil, nil
	}
	return s.scheduler.Explain(namespace, name)
}

// Unbound returns the pods without a node that have not terminated.
func (s *Server) Unbound() ([]*v1.Pod, error) {
	if s.scheduler == nil {
		return nil, nil
	}
	return s.scheduler.Unbound()
}

// Run serves requests and runs the controllers until the context is done. It returns an error of
// class ErrDamaged if the object file is damaged meanwhile; Open then recovers it.
func (s *Server) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	runs := []func(context.Context) error{s.awaitDamage, s.garbage.Run, s.binder.Run, s.manifests.Run}
	if s.frontend != nil {
		runs = append(runs, s.scheduler.Run, s.Serve)
	}
	ended := make(chan error, len(runs))
	for _, run := range runs {
		go func() {
			defer stop()
			ended <- run(ctx)
		}()
	}
	var err error
	for range runs {
		err = errors.Join(err, <-ended)
	}
	return err
}

// Serve serves clients until the context is done.
func (s *Server) Serve(ctx context.Context) error { return s.frontend.serve(ctx, s.mux) }

// Address returns the address of the HTTPS listener, "" without one.
func (s *Server) Address() string { return s.frontend.address() }

// Close stops the API writer and closes the object file. Run must have returned.
func (s *Server) Close() error {
	var errs []error
	if s.frontend != nil {
		errs = append(errs, s.frontend.close())
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	return errors.Join(errs...)
}

// serveAgent serves the agent itself.
func (s *Server) serveAgent(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		s.mux.ServeHTTP(w, r)
		return
	}
	s.trusted.ServeHTTP(w, r)
}
