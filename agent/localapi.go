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
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/manifests"
	"berth/internal/localapi/registry"
	"berth/internal/localapi/store"
	"berth/internal/record/events"
	"berth/internal/runtime/embedded"
	"berth/internal/source/podconfig"
)

// LocalAPI is what a user decides about the Kubernetes API of this machine.
type LocalAPI struct {
	// Address is that of the HTTPS port; port 0 is any. "": there is the unix socket alone.
	Address string
	// Registry is the path of the program that judges what is written; "": the one that is inside
	// berth. Documents is that of the file that the program has written of itself; "": that of the
	// one inside, and another one is asked.
	Registry, Documents string
}

// localAPI is the API server of this machine within the agent. Its file is opened when the agent
// has its root directory; until then, and where that fails, it is as a server that is away.
type localAPI struct {
	cfg localapi.Config
	// serves says that it is for others, too, and outlives the agent.
	serves bool
	// documents is the path of the file of the program; "": that of the program inside counts.
	documents string
	opened    chan struct{} // closed when server or failed is set
	once      sync.Once     // of this
	reopened  bool          // of the goroutine of run
	trust     *manifestTrust

	turn    sync.Mutex         // of who hands over what manifests are
	defined manifests.Defined  // guarded by turn
	refused []manifests.Object // guarded by turn

	mu     sync.Mutex
	server *localapi.Server // guarded by mu
	failed error            // guarded by mu; why there is none
}

func newLocalAPI(b *base) *localAPI {
	l := &localAPI{opened: make(chan struct{}), trust: &manifestTrust{changed: make(chan struct{})}, defined: manifests.Defined{Incomplete: true}, cfg: localapi.Config{
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

// registryCgroups are the cgroups of the program that judges what is written.
func registryCgroups(cgroupRoot string) *cgroups.Programs {
	return cgroups.NewPrograms(cgroupRoot, "berth-registry", registry.MemoryLimit)
}

// confinement makes the cgroup of a process of this program; nil in a world without cgroups.
func confinement(b *base) func() (registry.Cgroup, error) {
	if b.out.Cgroups != nil {
		return nil
	}
	made := registryCgroups(b.cfg.CgroupRoot)
	return func() (registry.Cgroup, error) { return made.Make() }
}

// removeLeftRegistry removes the cgroup of a program whose agent was cut off.
func removeLeftRegistry(ctx context.Context, cfg *Config, out *Outside) {
	if out.Cgroups != nil || cfg.Kubelet != nil {
		return
	}
	if err := registryCgroups(cfg.CgroupRoot).RemoveLeft(ctx); err != nil {
		cfg.Log.Warn("the program of a local API before is not gone", "error", err)
	}
}

// open opens the API, by the program inside unless another one is named.
func (l *localAPI) open(ctx context.Context) (_ *localapi.Server, err error) {
	if !l.serves {
		return localapi.OpenPrivate(l.cfg)
	}
	c := l.cfg
	c.Unpack = func() (string, error) { return embedded.APIProgram(ctx, embedded.APIFolder(c.RootDir)) }
	switch {
	case l.documents != "":
		c.Documents, err = registry.OpenDocuments(l.documents)
	case c.Registry == "":
		c.Documents, err = documentsInside()
	}
	if err != nil {
		return nil, err
	}
	return localapi.Open(c)
}

// reportRecovery records an event about the Node when a damaged file of objects was recovered.
func reportRecovery(r *events.Recorder) func(*store.Recovery) {
	return func(done *store.Recovery) {
		r.NodeEvent(v1.EventTypeWarning, "LocalAPIDamaged", fmt.Sprintf("%s; the damaged file is kept as %s", done, done.Aside))
	}
}

// localAPILimit is how long it may take to end: clients get 5 seconds, and so does its program.
const localAPILimit = 12 * time.Second

// localAPIRetry is how long after a failure it is tried again to open the API: its disk may have
// been full, or somebody may have restored its file.
const localAPIRetry = 10 * time.Second

// run serves until ctx is done. What keeps it from that ends neither agent nor pods: it is told as
// a condition.
func (l *localAPI) run(ctx context.Context) error {
	for {
		err := l.runOnce(ctx)
		if !errors.Is(err, errDamaged) {
			return err
		}
		l.reopened = true
	}
}

// errDamaged is the end of an API whose file was damaged: it is opened anew.
var errDamaged = errors.New("the local API is reopened")

// runOnce opens the API, as often as it takes, and serves.
func (l *localAPI) runOnce(ctx context.Context) error {
	s, err := l.open(ctx)
	l.set(s, err)
	l.once.Do(func() { close(l.opened) })
	late := l.reopened
	for last := ""; err != nil; late = true {
		if now := err.Error(); now != last { // once for each cause
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
	if late { // what manifests are was handed over before
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

// set notes the API, or why there is none.
func (l *localAPI) set(s *localapi.Server, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server, l.failed = s, err
}

// ready waits until it is known whether the API can be had.
func (l *localAPI) ready(ctx context.Context) error {
	select {
	case <-l.opened:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Health is what keeps it from serving.
func (l *localAPI) Health() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil || l.server == nil {
		return l.failed
	}
	return l.server.Health()
}

// hasPort reports whether clients reach it at a port.
func (l *localAPI) hasPort() bool { return l.address() != "" }

// address returns that of the port at which clients reach it, "" without one.
func (l *localAPI) address() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.serves || l.failed != nil || l.server == nil {
		return ""
	}
	return l.server.Address()
}

// Explain is server.Scheduler.
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

// Unbound is server.Scheduler.
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

// rest is how the agent itself reaches it.
func (l *localAPI) rest() *rest.Config { return &rest.Config{Host: "http://local", Transport: l} }

// RoundTrip carries out a request of the agent.
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

// localLease is how long the Node's lease lasts, in seconds: nobody takes a node away here, so
// that it is renewed seldom, and the disk is spared.
const localLease = 600

// memberSettings are the settings of a member. With an API server within the agent they are what
// the user has set, or the KubeletConfiguration's defaults, but for what only controllers, other
// nodes and a network are the reason for.
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
		if d, err := config.LoadRun(config.NewRunFlags()); err == nil { // flags that nobody gave
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

// isPrivate reports whether nobody but the agent reaches the API server, nor has to hear of it.
func (s *apiServer) isPrivate() bool { return s.local != nil && !s.local.serves }

// isCluster reports whether the API server is that of a cluster.
func (s *apiServer) isCluster() bool { return s.local == nil }

// define makes the API have the objects of manifests. Of ClusterTrustBundles it has none: they are
// kept here.
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
	l.trust.set(trust)
	l.write(func() { l.defined = d })
}

// refuse makes the API have the pods that stand for refused manifests.
func (l *localAPI) refuse(pods []manifests.Object) {
	l.write(func() { l.refused = pods })
}

// write makes the API have what manifests are after change.
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
	_ = s.SetManifests(context.Background(), d) // it says so itself, tries again, and it is its health
}
