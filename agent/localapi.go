package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"berth/internal/cluster/kube"
	"berth/internal/config"
	"berth/internal/explain"
	"berth/internal/host/cgroups"
	"berth/internal/localapi"
	"berth/internal/localapi/apiserver"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/manifests"
	"berth/internal/localapi/store"
	"berth/internal/record/events"
	"berth/internal/runtime/embedded"
	"berth/internal/source/podconfig"
	"berth/internal/storage/objects"
)

// LocalAPI configures the local API.
type LocalAPI struct {
	// Address is that of the HTTPS port; port 0 selects a free one. "": only the unix socket.
	Address string
	// Registry is the path of the API writer; "" selects the embedded one. Documents is the path of
	// that program's OpenAPI documents; "" selects the embedded ones, or queries another program
	// for its own.
	Registry, Documents string
}

// localAPI is the local API within the agent. Its database is opened when the agent has locked its
// root directory; before that, and on failure, it behaves like an unavailable server.
type localAPI struct {
	cfg localapi.Config
	// serves is true if other clients use the API and it outlives the agent.
	serves bool
	// documents is the path of the API writer's documents; "" selects the embedded ones.
	documents string
	opened    chan struct{} // closed when server or failed is set
	once      sync.Once     // closes opened
	reopened  bool          // used only by the goroutine of run
	trust     *objects.LocalTrust

	turn    sync.Mutex         // serializes SetManifests
	defined manifests.Defined  // guarded by turn
	refused []manifests.Object // guarded by turn

	mu     sync.Mutex
	server *localapi.Server // guarded by mu
	failed error            // guarded by mu; why server is unavailable
}

func newLocalAPI(b *base) *localAPI {
	l := &localAPI{opened: make(chan struct{}), trust: objects.NewLocalTrust(), defined: manifests.Defined{Incomplete: true}, cfg: localapi.Config{
		RootDir: b.cfg.RootDir, RunDir: b.cfg.RunDir, NodeName: b.cfg.NodeName, Confine: confinement(b), Listen: b.out.ListenAPI, WatchRules: b.out.WatchRules,
		Log: b.cfg.Log,
	}}
	if b.cfg.RuntimeEndpoint == "" && b.out.DialCRI == nil {
		l.cfg.RuntimeHandlers = embedded.Handlers()
	}
	if told := b.cfg.LocalAPI; told != nil {
		l.serves, l.documents, l.cfg.Address, l.cfg.Registry = true, told.Documents, told.Address, told.Registry
	}
	return l
}

// The cgroup of an API writer, before its number. The previous release named it otherwise.
const (
	apiserverCgroup         = "berth-apiserver"
	previousAPIServerCgroup = "berth-registry"
)

// confinement returns a function that creates the cgroup of a child process; nil without cgroups.
func confinement(b *base) func() (apiserver.Cgroup, error) {
	if b.out.Cgroups != nil {
		return nil
	}
	made := cgroups.NewPrograms(b.cfg.CgroupRoot, apiserverCgroup, apiserver.MemoryLimit)
	return func() (apiserver.Cgroup, error) { return made.Make() }
}

// removeLeftAPIServer removes the cgroup of an API writer whose agent was killed.
func removeLeftAPIServer(ctx context.Context, cfg *Config, out *Environment) {
	if out.Cgroups != nil || cfg.Kubelet != nil {
		return
	}
	for _, name := range []string{apiserverCgroup, previousAPIServerCgroup} {
		if err := cgroups.NewPrograms(cfg.CgroupRoot, name, 0).RemoveLeft(ctx); err != nil {
			cfg.Log.Warn("Failed to remove the cgroup of an earlier API writer", "cgroup", name, "err", err)
		}
	}
}

// open opens the API, with the embedded API writer unless another one is configured.
func (l *localAPI) open(ctx context.Context) (_ *localapi.Server, err error) {
	if !l.serves {
		return localapi.OpenPrivate(l.cfg)
	}
	c := l.cfg
	c.Unpack = func() (string, error) { return embedded.APIProgram(ctx, embedded.APIFolder(c.RootDir)) }
	switch {
	case l.documents != "":
		c.Documents, err = apiserver.OpenDocuments(l.documents)
	case c.Registry == "":
		c.Documents, err = documentsInside()
	}
	if err != nil {
		return nil, err
	}
	return localapi.Open(c)
}

// reportRecovery records a Node event when a damaged database was recovered.
func reportRecovery(r *events.Recorder) func(*store.Recovery) {
	return func(done *store.Recovery) {
		r.NodeEvent(v1.EventTypeWarning, "LocalAPIDamaged", fmt.Sprintf("%s; the damaged file is kept as %s", done, done.Aside))
	}
}

// localAPILimit bounds the shutdown: clients get 5 seconds, and so does the API writer.
const localAPILimit = 12 * time.Second

// localAPIRetry is the delay before the API is opened again after a failure: the disk may have been
// full, or an administrator may have restored the file.
const localAPIRetry = 10 * time.Second

// run serves until ctx is done. A failure to serve is reported as a condition; agent and pods keep
// running.
func (l *localAPI) run(ctx context.Context) error {
	for {
		err := l.runOnce(ctx)
		if !errors.Is(err, errDamaged) {
			return err
		}
		l.reopened = true
	}
}

// errDamaged is returned when the database was damaged; the API is reopened.
var errDamaged = errors.New("the local API is reopened")

// runOnce opens the API, with retries, and serves.
func (l *localAPI) runOnce(ctx context.Context) error {
	s, err := l.open(ctx)
	l.set(s, err)
	l.once.Do(func() { close(l.opened) })
	late := l.reopened
	for last := ""; err != nil; late = true {
		if now := err.Error(); now != last { // once per cause
			l.cfg.Log.Error("the local API does not serve; it is tried again", "error", err)
			last = now
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(localAPIRetry):
		}
		if s, err = l.open(ctx); err == nil {
			l.cfg.Log.Info("the local API serves now")
		}
		l.set(s, err)
	}
	if late { // the manifests were set without a server
		l.write(func() {})
	}
	err = s.Run(ctx)
	if ctx.Err() == nil && errors.Is(err, localapi.ErrDamaged) {
		l.cfg.Log.Error("The objects of the local API were damaged; they are recovered", "err", err)
		l.set(nil, err)
		return errors.Join(s.Close(), errDamaged)
	}
	if ctx.Err() == nil {
		if err == nil {
			err = errors.New("it has ended by itself: start the agent again")
		}
		l.cfg.Log.Error("the local API does not serve", "error", err)
		l.set(s, err)
		<-ctx.Done()
	}
	return errors.Join(ctx.Err(), s.Close())
}

// set stores the API, or why it is unavailable.
func (l *localAPI) set(s *localapi.Server, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server, l.failed = s, err
}

// ready waits until the API was opened or failed to open.
func (l *localAPI) ready(ctx context.Context) error {
	select {
	case <-l.opened:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Health returns why the API does not serve.
func (l *localAPI) Health() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil || l.server == nil {
		return l.failed
	}
	return l.server.Health()
}

// hasPort reports whether clients can connect to a port.
func (l *localAPI) hasPort() bool { return l.address() != "" }

// address returns the address of the port, "" without a port.
func (l *localAPI) address() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.serves || l.failed != nil || l.server == nil {
		return ""
	}
	return l.server.Address()
}

// Explain implements server.Scheduler.
func (l *localAPI) Explain(namespace, name string) *explain.Unbound {
	s := l.serving()
	if s == nil {
		return nil
	}
	u, err := s.Explain(namespace, name)
	if err != nil {
		l.cfg.Log.Warn("Failed to explain a pod without a node", "pod", namespace+"/"+name, "err", err)
	}
	return u
}

// shutdownChanged notifies the scheduler that a shutdown of the machine begins or is cancelled.
func (l *localAPI) shutdownChanged() {
	if s := l.serving(); s != nil {
		s.ShutdownChanged()
	}
}

// Unbound implements server.Scheduler.
func (l *localAPI) Unbound() []*v1.Pod {
	s := l.serving()
	if s == nil {
		return nil
	}
	pods, err := s.Unbound()
	if err != nil {
		l.cfg.Log.Warn("Failed to list the pods without a node", "err", err)
	}
	return pods
}

// serving returns the API, nil while it does not serve.
func (l *localAPI) serving() *localapi.Server {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return nil
	}
	return l.server
}

// rest returns the agent's own client configuration.
func (l *localAPI) rest() *rest.Config { return &rest.Config{Host: "http://local", Transport: l} }

// RoundTrip performs a request of the agent.
func (l *localAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	s, failed := l.server, l.failed
	l.mu.Unlock()
	switch {
	case failed != nil:
		return nil, kube.ReportedError{Err: failed}
	case s == nil:
		return nil, &net.OpError{Op: "dial", Net: "local", Err: syscall.ECONNREFUSED}
	}
	return s.REST().Transport.RoundTrip(r)
}

// localLease is the duration of the Node's lease, in seconds. No controller acts on its expiry
// here, so it is renewed rarely to spare the disk.
const localLease = 600

// memberSettings returns the settings of a cluster member. With an API server within the agent they
// are the user's, or the defaults of the KubeletConfiguration, except for what only controllers,
// other nodes and a network require.
func memberSettings(cfg *Config) *config.Kubelet {
	k := config.Kubelet{RootDir: cfg.RootDir}
	switch {
	case cfg.Kubelet != nil && !cfg.Kubelet.Standalone():
		return cfg.Kubelet
	case cfg.Kubelet != nil:
		k = *cfg.Kubelet
	case cfg.Run != nil:
		k.KubeletConfiguration = *cfg.Run
	default:
		if d, err := config.LoadRun(config.NewRunFlags()); err == nil { // without flags
			k.KubeletConfiguration = *d
		}
	}
	k.KeepObjects = config.KeepNothing
	k.EnableControllerAttachDetach, k.RegisterNode = ptr.To(false), ptr.To(true)
	k.CloudProvider, k.RegisterWithTaints = "", nil
	k.KubeAPIQPS, k.EventRecordQPS = ptr.To[int32](-1), ptr.To[int32](-1)
	k.NodeLeaseDurationSeconds, k.NodeStatusUpdateFrequency.Duration = localLease, time.Minute
	return &k
}

// isPrivate reports whether only the agent can reach the API server.
func (s *apiServer) isPrivate() bool { return s.local != nil && !s.local.serves }

// isCluster reports whether the API server is that of a cluster.
func (s *apiServer) isCluster() bool { return s.local == nil }

// define stores the objects of manifests in the API. ClusterTrustBundles are not part of it: they
// are stored here.
func (l *localAPI) define(defined podconfig.LocalObjects) {
	d := manifests.Defined{Incomplete: !defined.Complete}
	var trust []*certificatesv1beta1.ClusterTrustBundle
	for _, o := range defined.All {
		switch object := o.Object.(type) {
		case *certificatesv1beta1.ClusterTrustBundle:
			trust = append(trust, object)
		case kinds.Object:
			d.Objects = append(d.Objects, manifests.Object{Object: object, Path: o.Path})
		}
	}
	l.trust.Set(trust)
	l.write(func() { l.defined = d })
}

// refuse stores the pods that represent rejected manifests in the API.
func (l *localAPI) refuse(pods []manifests.Object) {
	l.write(func() { l.refused = pods })
}

// write stores the manifests in the API after change.
func (l *localAPI) write(change func()) {
	l.turn.Lock()
	defer l.turn.Unlock()
	change()
	l.mu.Lock()
	s, failed := l.server, l.failed
	l.mu.Unlock()
	if failed != nil || s == nil {
		return
	}
	d := l.defined
	d.Objects = slices.Concat(d.Objects, l.refused)
	_ = s.SetManifests(context.Background(), d) // logs, retries and reports failures itself
}
