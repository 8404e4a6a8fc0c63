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
	"berth/internal/localapi/auth"
	"berth/internal/localapi/gc"
	"berth/internal/localapi/loopback"
	"berth/internal/localapi/manifests"
	"berth/internal/localapi/pvbinder"
	"berth/internal/localapi/registry"
	"berth/internal/localapi/scheduler"
	"berth/internal/localapi/store"
	"berth/internal/localapi/trusted"
	"berth/internal/record/journal"
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
	// RuntimeHandlers are the runtime's handlers that pods can name by a RuntimeClass without
	// creating it.
	RuntimeHandlers []string
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
	// Recovered is called by Open if it has recovered a damaged file of objects; nil: nobody is
	// notified but the log.
	Recovered func(*store.Recovery)
	// Journal is that of scheduler.Config.
	Journal *journal.Journal
	// Shutdown is that of scheduler.Config.
	Shutdown scheduler.Shutdown
	// Listen opens the socket and the port; nil is net.Listen.
	Listen func(network, address string) (net.Listener, error)
	// WatchRules opens what reports changes of the file of rules; nil is inotify.
	WatchRules func() (auth.Watcher, error)
	Log        *slog.Logger
}

// Server is the API. It is made by Open or OpenPrivate, serves in Run, and is ended by Close.
type Server struct {
	store     *store.Store
	oddities  *oddities
	parts     parts
	own       *trusted.Calls
	garbage   *gc.Collector
	binder    *pvbinder.Binder
	scheduler *scheduler.Scheduler // nil: only the agent writes pods, and they have their node
	manifests *manifests.Keeper
	front     *front // nil: the agent alone reaches it
}

// Open opens the file of objects, makes what a new one lacks, and listens. Nobody is answered
// before Run.
func Open(cfg Config) (_ *Server, err error) {
	s := &Server{front: &front{cfg: cfg}, oddities: &oddities{log: cfg.Log}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("local API: %w", err), s.Close())
		}
	}()
	if err := os.MkdirAll(filepath.Join(cfg.RootDir, Dir), 0o700); err != nil {
		return nil, err
	}
	if s.store, err = store.Open(durable(cfg.RootDir, cfg.Log)); err != nil {
		return nil, err
	}
	s.oddities.reportRecovery(s.store, cfg.Recovered)
	tokens, err := s.front.open(s.store)
	if err != nil {
		return nil, err
	}
	judge := http.HandlerFunc(s.front.judge)
	s.own = trusted.New(trusted.Config{Store: s.store, Sign: tokens.Request})
	s.join(cfg, judge, writer{ownWriter{s.own}, judge}, string(s.front.authority.Certificate()))
	s.scheduler = scheduler.New(scheduler.Config{
		Store: s.store, Writer: ownWriter{s.own}, Decider: scheduler.Filters{}, NodeName: cfg.NodeName, Journal: cfg.Journal, Shutdown: cfg.Shutdown, Log: cfg.Log,
	})
	if err := createFirst(s.store, append(first(), runtimeClasses(cfg.RuntimeHandlers)...)); err != nil {
		return nil, err
	}
	if err := s.front.listen(); err != nil {
		return nil, err // s is closed
	}
	return s, nil
}

// privateFile is that of the objects of an API that the agent alone reaches, in the run directory.
const privateFile = "objects.db"

// privateHistory is how many bytes of changes are held for the watches of an API that the agent
// alone reaches: it is never far behind.
const privateHistory = 256 << 10

// OpenPrivate opens an API that the agent alone reaches: its objects last as long as it, nobody
// listens, and nothing judges. Of the configuration it has RunDir, NodeName and Log.
func OpenPrivate(cfg Config) (_ *Server, err error) {
	s := &Server{oddities: &oddities{log: cfg.Log}}
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
	if err := os.Remove(path); err != nil { // what is open goes with the agent, however that ends
		return nil, err
	}
	s.own = trusted.New(trusted.Config{Store: s.store, Sign: refuseToken})
	s.join(cfg, http.HandlerFunc(notThere), writer{ownWriter{s.own}, s.own}, "")
	if err := createFirst(s.store, first()); err != nil {
		return nil, err // s is closed
	}
	return s, nil
}

// refuseToken says that nobody would know a token.
func refuseToken(_ context.Context, namespace, account string, _ *authenticationv1.TokenRequest) error {
	return apierrors.NewForbidden(v1.Resource("serviceaccounts/token"), namespace+"/"+account, errNoTokens)
}

var errNoTokens = errors.New("service account tokens need an API server, and this agent has none: start it without --local-api=false, or remove what asks for the token")

// join makes the parts that read and write the store.
func (s *Server) join(cfg Config, judge http.Handler, collects writer, authority string) {
	s.parts = newParts(cfg.Answers, cfg.NodeName, s.store, judge, s.oddities)
	s.garbage = gc.New(gc.Config{Store: s.store, Writer: collects, Defaults: defaultsOf(authority), Log: cfg.Log})
	s.binder = pvbinder.New(pvbinder.Config{Store: s.store, Writer: collects.ownWriter, NodeName: cfg.NodeName, Log: cfg.Log})
	s.manifests = manifests.New(manifests.Config{Store: s.store, Writer: collects.ownWriter, Log: cfg.Log})
}

// REST reaches the API as the agent itself does: in memory, and trusted.
func (s *Server) REST() *rest.Config {
	return &rest.Config{Host: "http://local", Transport: loopback.Transport{Handler: http.HandlerFunc(s.serveAgent)}}
}

// Health is what keeps the API from serving or storing.
func (s *Server) Health() error {
	err := errors.Join(s.store.Health(), s.oddities.health(s.store), s.garbage.Health(), s.binder.Health(), s.manifests.Health())
	if s.front == nil {
		return err
	}
	return errors.Join(s.front.health(), s.scheduler.Health(), err)
}

// SetManifests makes the API have the objects that manifests define now: all of them, each time.
// The error names those that it cannot have, which are tried again while Run runs.
func (s *Server) SetManifests(ctx context.Context, d manifests.Defined) error {
	return s.manifests.Set(ctx, d)
}

// ShutdownChanged notifies the scheduler that Config.Shutdown has changed.
func (s *Server) ShutdownChanged() {
	if s.scheduler != nil {
		s.scheduler.Wake()
	}
}

// Explain returns what holds a pod without a node; nil if there is no such pod.
func (s *Server) Explain(namespace, name string) (*explain.Unbound, error) {
	if s.scheduler == nil {
		return nil, nil
	}
	return s.scheduler.Explain(namespace, name)
}

// Unbound returns the pods that have no node and have not terminated.
func (s *Server) Unbound() ([]*v1.Pod, error) {
	if s.scheduler == nil {
		return nil, nil
	}
	return s.scheduler.Unbound()
}

// Run serves, collects garbage, binds volumes and pods, and keeps the objects of manifests, until
// the context is done. It ends with an error of class ErrDamaged when the file of objects was
// damaged meanwhile; Open then recovers it.
func (s *Server) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	parts := []func(context.Context) error{s.awaitDamage, s.garbage.Run, s.binder.Run, s.manifests.Run}
	if s.front != nil {
		parts = append(parts, s.scheduler.Run, s.Serve)
	}
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
func (s *Server) Serve(ctx context.Context) error { return s.front.serve(ctx, s.parts) }

// Address is that of the HTTPS listener, "" without one.
func (s *Server) Address() string { return s.front.address() }

// Close ends the child and closes the file. Run has ended.
func (s *Server) Close() error {
	var errs []error
	if s.front != nil {
		errs = append(errs, s.front.close())
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	return errors.Join(errs...)
}

// serveAgent answers the agent itself.
func (s *Server) serveAgent(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		s.parts.ServeHTTP(w, r)
		return
	}
	s.own.ServeHTTP(w, r)
}
