package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"berth/internal/cluster/kept"
	"berth/internal/config"
	"berth/internal/host/cgroups"
	"berth/internal/localapi"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/manifests"
	"berth/internal/localapi/registry"
	"berth/internal/runtime/embedded"
	"berth/internal/source/manifest"
	"berth/internal/source/podconfig"
	"berth/internal/storage/objects"
	"berth/internal/storage/volumes"
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
		RootDir: b.cfg.RootDir, RunDir: b.cfg.RunDir, NodeName: b.cfg.NodeName, Confine: confinement(b), Log: b.cfg.Log,
	}}
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

// localAPILimit is how long it may take to end: clients get 5 seconds, and so does its program.
const localAPILimit = 12 * time.Second

// localAPIRetry is how long after a failure it is tried again to open the API: its disk may have
// been full, or somebody may have restored its file.
const localAPIRetry = 10 * time.Second

// run serves until ctx is done. What keeps it from that ends neither agent nor pods: it is told as
// a condition.
func (l *localAPI) run(ctx context.Context) error {
	s, err := l.open(ctx)
	l.set(s, err)
	close(l.opened)
	for tried := false; err != nil; tried = true {
		if !tried {
			l.cfg.Log.Error("the local API does not serve; it is tried again", "error", err)
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
		l.write(func() {})
	}
	if err = s.Run(ctx); ctx.Err() == nil {
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

// rest is how the agent itself reaches it.
func (l *localAPI) rest() *rest.Config { return &rest.Config{Host: "http://local", Transport: l} }

// RoundTrip carries out a request of the agent.
func (l *localAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	s, failed := l.server, l.failed
	l.mu.Unlock()
	switch {
	case failed != nil:
		return nil, failed
	case s == nil:
		return nil, &net.OpError{Op: "dial", Net: "local", Err: syscall.ECONNREFUSED}
	}
	return s.REST().Transport.RoundTrip(r)
}

// localLease is how long the Node's lease lasts, in seconds: nobody takes a node away here, so
// that it is renewed seldom, and the disk is spared.
const localLease = 600

// memberSettings are the settings that a member of a cluster has. With an API server of this
// machine they are the KubeletConfiguration's defaults, but for what only controllers and a network
// are the reason for.
func memberSettings(cfg *Config) *config.Kubelet {
	if cfg.Kubelet != nil {
		return cfg.Kubelet
	}
	k := config.KubeletConfiguration{}
	if cfg.Run != nil {
		k = *cfg.Run
	} else if d, err := config.LoadRun(config.NewRunFlags()); err == nil { // flags that nobody gave
		k = *d
	}
	k.EnableControllerAttachDetach = ptr.To(false)
	k.KubeAPIQPS, k.EventRecordQPS = ptr.To[int32](-1), ptr.To[int32](-1)
	k.NodeLeaseDurationSeconds, k.NodeStatusUpdateFrequency.Duration = localLease, time.Minute
	return &config.Kubelet{KubeletConfiguration: k, KeepObjects: config.KeepNothing, RootDir: cfg.RootDir}
}

// isCluster reports whether there is an API server, and it is not this machine's.
func (s *apiServer) isCluster() bool { return s.exists() && s.local == nil }

// machineOrigin is where the objects of pods come from where the API server is this machine's: it
// has no controllers, and some kinds are none of it.
func machineOrigin(g *ground, rt *containerRuntime, c volumes.CSIConfig) (origin, error) {
	server := g.api.objects(g.cfg.NodeName)
	cfg := serverObjects(g, server)
	cfg.API, cfg.Trust = withoutServices{server}, g.api.local.trust
	all, err := objects.New(cfg)
	if err != nil {
		return origin{}, err
	}
	g.api.kept.Retry = all.Changed().Put
	c.Objects, c.Wake, c.Health = localDrivers{storageAPI{&g.api, server, all}}, all.Changed().Put, true
	c.ClaimsPeriod = g.member.SyncFrequency.Duration
	return origin{
		objects: handlerNames{all, rt.handlers}, changed: all.Changed(), claims: server, accounts: all, run: all.Run, csi: c, define: g.api.local.define,
	}, nil
}

// define makes the API have the objects of manifests. Of ClusterTrustBundles it has none: they are
// kept here.
func (l *localAPI) define(defined podconfig.LocalObjects) {
	d := manifests.Defined{Incomplete: !defined.Complete}
	for _, o := range defined.All {
		if object, ok := o.Object.(kinds.Object); ok && o.Kind != "ClusterTrustBundle" {
			d.Objects = append(d.Objects, manifests.Object{Object: object, Path: o.Path})
		}
	}
	l.trust.set(manifest.NewLocalObjects(defined.All).ClusterTrustBundles)
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

// manifestTrust are the ClusterTrustBundles of manifests.
type manifestTrust struct {
	mu       sync.Mutex
	defined  []*certificatesv1beta1.ClusterTrustBundle // guarded by mu
	all      []*certificatesv1beta1.ClusterTrustBundle // guarded by mu; the same, with versions
	versions int                                       // guarded by mu; that there were
	changed  chan struct{}                             // guarded by mu; closed and replaced with each change
}

// set takes the bundles. Each that is new or another one gets a new version, as an API server would
// give it.
func (t *manifestTrust) set(defined []*certificatesv1beta1.ClusterTrustBundle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.Equal(defined, t.defined) {
		return
	}
	all := make([]*certificatesv1beta1.ClusterTrustBundle, len(defined))
	for i, b := range defined {
		if same := slices.Index(t.defined, b); same >= 0 {
			all[i] = t.all[same]
			continue
		}
		t.versions++
		all[i] = b.DeepCopy()
		all[i].ResourceVersion = strconv.Itoa(t.versions)
	}
	t.defined, t.all = defined, all
	close(t.changed)
	t.changed = make(chan struct{})
}

// ProbeClusterTrustBundles says that there are some, or may be.
func (t *manifestTrust) ProbeClusterTrustBundles(context.Context) error { return nil }

// FollowClusterTrustBundles hands over all bundles.
func (t *manifestTrust) FollowClusterTrustBundles(ctx context.Context, seen func([]*certificatesv1beta1.ClusterTrustBundle)) {
	for ctx.Err() == nil {
		t.mu.Lock()
		all, changed := t.all, t.changed
		t.mu.Unlock()
		seen(all)
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// withoutServices is an API server that has none, and never will.
type withoutServices struct{ kept.API }

// FollowServices hands over no Service.
func (a withoutServices) FollowServices(ctx context.Context, seen func([]*v1.Service)) {
	seen(nil)
	<-ctx.Done()
}

// handlerNames are objects of an API server where a pod may name a handler of the runtime as its
// RuntimeClass, too: nobody has to define one for that.
type handlerNames struct {
	*objects.Objects
	handlers func(context.Context) ([]string, error)
}

// RuntimeHandler returns the handler that the pod's runtimeClassName stands for. One that the
// runtime does not have is an error that names those that it has.
func (o handlerNames) RuntimeHandler(ctx context.Context, p *v1.Pod) (string, error) {
	handler, err := o.Objects.RuntimeHandler(ctx, p)
	if err != nil && !errors.Is(err, objects.ErrNoClass) {
		return "", err
	}
	if err != nil {
		handler = *p.Spec.RuntimeClassName
	}
	all, asked := o.handlers(ctx)
	if asked != nil {
		return "", asked
	}
	if handler != "" && slices.Contains(all, handler) {
		return handler, nil
	}
	offered := "none with a name"
	if all = slices.DeleteFunc(all, func(h string) bool { return h == "" }); len(all) > 0 {
		slices.Sort(all)
		offered = strings.Join(all, ", ")
	}
	if err != nil {
		return "", fmt.Errorf("%w; handlers of the runtime, which can be named as well, are: %s", err, offered)
	}
	return "", fmt.Errorf("RuntimeClass %q: the runtime has no handler %q: its handlers are: %s", *p.Spec.RuntimeClassName, handler, offered)
}

// localDrivers are the objects of CSI drivers where no controller attaches volumes.
type localDrivers struct{ storageAPI }

// CSIDriver returns what is said of a driver. Of one that nobody speaks of, it says what fits a
// machine without controllers: its volumes are not attached first.
func (s localDrivers) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	d, err := s.storageAPI.CSIDriver(ctx, name)
	if d == nil && err == nil {
		return objects.UnknownDriver(name), nil
	}
	return d, err
}

// GetVolumeAttachment always fails: only the controllers of a cluster attach volumes.
func (s localDrivers) GetVolumeAttachment(context.Context, string) (*storagev1.VolumeAttachment, error) {
	return nil, objects.ErrNoAttacher
}
