package agent

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/rest"

	"berth/internal/certs"
	"berth/internal/cgroups"
	"berth/internal/config"
	"berth/internal/cri"
	"berth/internal/events"
	"berth/internal/kube"
	"berth/internal/node"
	"berth/internal/nodelogs"
	"berth/internal/objects"
	"berth/internal/pod"
	"berth/internal/podconfig"
	"berth/internal/server"
	"berth/internal/stats"
	"berth/internal/status"
)

// Every joint that only a member of a cluster has.
var (
	_ status.API             = (*kube.Client)(nil)
	_ status.MirrorAPI       = (*kube.Client)(nil)
	_ events.API             = (*kube.Client)(nil)
	_ node.Nodes             = (*kube.Client)(nil)
	_ node.Leases            = (*kube.Client)(nil)
	_ node.Recorder          = nodeRecorder{}
	_ node.Runtime           = (*cri.Client)(nil)
	_ objects.API            = objectsAPI{}
	_ objects.TrustAPI       = objectsAPI{}
	_ objects.CertificateAPI = ofNode{}
	_ server.TokenReviewer   = (*kube.Client)(nil)
	_ server.AccessReviewer  = (*kube.Client)(nil)
	_ server.Streaming       = (*cri.Client)(nil)
	_ certs.Signer           = objectsAPI{}
	_ kube.Certificate       = (*certs.Client)(nil)
	_ podconfig.PodWatch     = (*kube.Watch[*v1.Pod])(nil)
)

// member is what a member of a cluster has besides: the API server's part. It is nil for berth run, and its API is nil for a kubelet without
// an API server.
type member struct {
	conf *config.Kubelet
	api  *memberAPI

	identity *certs.Client // nil where the kubeconfig suffices
	health   *node.RuntimeHealth
	serving  *certs.Serving
}

// memberAPI are the components that talk to the API server.
type memberAPI struct {
	client  *kube.Client
	nodes   *kube.Watch[*v1.Node]
	sender  *events.Sender
	objects *objects.Objects
	node    *node.Node

	csiDrivers *kube.Watch[*storagev1.CSIDriver]
	nodeWake   chan struct{} // capacity 1; the Node's UID may have changed
	roomMade   func()        // what the node has may have changed
	// nodeChanged says that the Node may tell of other volumes.
	nodeChanged func()
	// driversChanged says that the CSIDrivers may tell of other periods.
	driversChanged func()
	podEvent       func(p *v1.Pod, eventtype, reason, message string)
	static         *pod.Inbox[pod.FullName]
	patcher        *status.Patcher
	mirrors        *status.Mirrors

	serverCert *certs.Rotation // nil unless the API server signs the serving certificate
}

// heartbeatTimeout bounds the calls that keep the node alive: they wait for nobody.
const heartbeatTimeout = 10 * time.Second

// checkHost refuses hosts on which the configuration says that the agent must not run.
func checkHost(k *config.Kubelet) error {
	var errs []error
	if version, _ := cgroups.Detect(); version == 1 && *k.FailCgroupV1 {
		errs = append(errs, errors.New("this host has cgroup v1: boot it with cgroup v2, or set failCgroupV1: false"))
	}
	if b, err := os.ReadFile("/proc/swaps"); err == nil && *k.FailSwapOn && strings.Count(string(b), "\n") > 1 {
		errs = append(errs, errors.New("swap is on: turn it off, or set failSwapOn: false"))
	}
	if version, _ := cgroups.Detect(); version == 1 && k.MemorySwap.SwapBehavior == "LimitedSwap" {
		errs = append(errs, errors.New("memorySwap.swapBehavior LimitedSwap needs cgroup v2, and this host has v1: set it to NoSwap"))
	}
	if !*k.CgroupsPerQOS {
		errs = append(errs, errors.New("cgroupsPerQOS: false is not supported: pods always have cgroups of their own"))
	}
	return errors.Join(errs...)
}

// newMember builds what talks to the API server, up to what needs the components of every agent.
func newMember(cfg *Config, out Outside, count measures) (*member, error) {
	k := cfg.Kubelet
	if err := checkHost(k); err != nil {
		return nil, err
	}
	m := &member{conf: k}
	if k.Standalone() {
		return m, nil
	}
	rc := out.REST
	if rc == nil {
		var err error
		if rc, err = m.openIdentity(cfg, count.clientCert); err != nil {
			return nil, err
		}
	}
	return m, m.connect(cfg, out, rc)
}

func (m *member) connect(cfg *Config, out Outside, rc *rest.Config) error {
	k := m.conf
	open := kube.Config{
		REST: rc, Version: cfg.Version, ContentType: k.ContentType, Metrics: out.Metrics, Log: cfg.Log,
		Limits: kube.Limits{QPS: float32(*k.KubeAPIQPS), Burst: int(k.KubeAPIBurst)},
	}
	if m.identity != nil {
		open.Certificate = m.identity
	}
	client, err := kube.Open(open)
	if err != nil {
		return err
	}
	eventClient, err := client.With(kube.Limits{QPS: float32(*k.EventRecordQPS), Burst: int(k.EventBurst)})
	if err != nil {
		return err
	}
	a := &memberAPI{client: client, nodeWake: make(chan struct{}, 1), static: pod.NewInbox[pod.FullName]()}
	a.sender = events.NewSender(eventClient, "kubelet", cfg.NodeName, cfg.Log)
	a.nodes = kube.NewWatch[*v1.Node](client, kube.Named("", cfg.NodeName), func() {
		n, _ := a.nodes.Get("", cfg.NodeName)
		a.node.Observe(n)
		a.roomMade()
		a.nodeChanged()
		wake(a.nodeWake)
		if a.serverCert != nil {
			a.serverCert.Wake() // the addresses may have changed
		}
	})
	trust, certificates := objects.TrustAPI(nil), objects.PodCertificates{
		Node:  func() (*v1.Node, bool) { return a.nodes.Get("", cfg.NodeName) },
		Event: func(p *v1.Pod, eventtype, reason, message string) { a.podEvent(p, eventtype, reason, message) },
	}
	if k.FeatureEnabled("ClusterTrustBundleProjection") {
		trust = objectsAPI{client}
	}
	if k.FeatureEnabled("PodCertificateRequest") {
		certificates.API = ofNode{client, cfg.NodeName}
	}
	a.csiDrivers = kube.NewWatch[*storagev1.CSIDriver](client, kube.Selector{}, func() { a.driversChanged() })
	if a.objects, err = objects.New(objects.Config{
		Trust: trust, Certificates: certificates,
		API: objectsAPI{client}, Classes: objectsAPI{client}, Accounts: client, SyncFrequency: k.SyncFrequency.Duration, Log: cfg.Log,
		Strategy: objects.Strategy{Name: k.ConfigMapAndSecretChangeDetectionStrategy, Read: client, TTL: func() (time.Duration, bool) {
			n, _ := a.nodes.Get("", cfg.NodeName)
			return objectTTL(n)
		}},
	}); err != nil {
		return err
	}
	m.api = a
	return nil
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// nodeRecorder records events about the Node.
type nodeRecorder struct{ *events.Recorder }

// Event records one event.
func (r nodeRecorder) Event(eventtype, reason, message string) {
	r.NodeEvent(eventtype, reason, message)
}

// wakeNode says that something that the Node tells has changed.
func (a *Agent) wakeNode() {
	if api := a.member.api; api != nil && api.node != nil {
		api.node.Wake()
	}
}

// newNode builds the Node object's keeper.
func (a *Agent) newNode(recorder *events.Recorder) error {
	k, m := a.cfg.Kubelet, a.member
	heartbeat, err := m.api.client.With(kube.Limits{Timeout: min(heartbeatTimeout, time.Duration(k.NodeLeaseDurationSeconds)*time.Second)})
	if err != nil {
		return err
	}
	m.api.node, err = node.New(node.Config{
		Settings: node.Settings{
			Name: a.cfg.NodeName, KubeletVersion: a.cfg.Version, KubeletPort: k.Port, RegisterNode: *k.RegisterNode, Labels: k.NodeLabels,
			Taints: k.RegisterWithTaints, ProviderID: k.ProviderID, ExternalCloudProvider: k.CloudProvider == "external", NodeIPs: k.NodeIPs,
			ControllerAttachDetach: *k.EnableControllerAttachDetach, MaxPods: int(k.MaxPods), PodsPerCore: int(k.PodsPerCore),
			LocalStorageCapacityIsolation: *k.LocalStorageCapacityIsolation, Reservation: a.resources.reservation, MaxImages: int(*k.NodeStatusMaxImages),
			DeclaredFeatures: declaredFeatures(k),
		},
		Sources: node.Sources{
			Machine:  a.out.Machine,
			Network:  a.out.Network,
			Runtime:  m.health.State,
			Images:   a.nodeImages,
			Problems: a.nodeProblems,

			VolumesInUse: a.storage.volumes.VolumesInUse,
		},
		Nodes: heartbeat, Leases: heartbeat, Recorder: nodeRecorder{recorder}, Log: a.cfg.Log,
		UpdateFrequency: k.NodeStatusUpdateFrequency.Duration, ReportFrequency: k.NodeStatusReportFrequency.Duration,
		LeaseDuration: time.Duration(k.NodeLeaseDurationSeconds) * time.Second,
		RootDir:       a.cfg.RootDir, LabelsFile: filepath.Join(a.cfg.RootDir, "node_labels.json"),
		CloseIdleConnections: heartbeat.CloseConnections, Metrics: a.out.Metrics, Booted: stats.BootTime("/proc"), Started: a.started,
	})
	return err
}

// declaredFeatures are the features that others must know of before they rely on this node (KEP-5328), as far as they are on; nil where
// none are declared.
func declaredFeatures(k *config.Kubelet) []string {
	if !k.FeatureEnabled("NodeDeclaredFeatures") {
		return nil
	}
	out := []string{}
	for _, name := range []string{ // sorted
		"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers", "RestartAllContainersOnContainerExits",
	} {
		if k.FeatureEnabled(name) {
			out = append(out, name)
		}
	}
	return out
}

func (a *Agent) nodeImages(ctx context.Context) ([]v1.ContainerImage, error) {
	images, err := a.cri.ListImages(ctx)
	if err != nil {
		return nil, err
	}
	return node.ContainerImages(images), nil
}

// nodeProblems are the conditions that make the node not ready.
func (a *Agent) nodeProblems() []error {
	var errs []error
	for _, c := range a.conditions() {
		if err := c.check(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.title, err))
		}
	}
	if err := a.storage.drivers.Health(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// keepKnowledge keeps on disk what only the agent knows of static pods.
func (a *Agent) keepKnowledge(ctx context.Context) {
	a.probes.Write(ctx)
	a.kept.Write(ctx)
}

// newReporting builds what tells the API server of pods.
func (a *Agent) newReporting(states *pod.States) {
	m := a.member.api
	m.patcher = status.NewPatcher(status.PatcherConfig{
		API: m.client, Manager: a.status, Pods: a.pods, States: states, Keep: a.keepKnowledge, Metrics: a.statuses, Journal: a.journal, Log: a.cfg.Log,
	})
	m.mirrors = status.NewMirrors(status.MirrorsConfig{
		API: m.client, Pods: a.pods, Changed: m.static,
		Node:        func() (string, pod.UID) { return a.cfg.NodeName, m.node.UID() },
		NodeChanged: m.nodeWake,
		Ending: func(n pod.FullName) bool {
			first, ok := a.workers.FirstOfName(n)
			p, wanted := a.pods.GetByFullName(n)
			_, ending := a.workers.Ending(first)
			return ok && (!wanted || p.UID != first || ending)
		},
		Complete: a.source.SeenAllSources,
		Shown:    m.patcher.Look,
		Log:      a.cfg.Log,
	})
}

// apiUID returns the UID under which the API server knows the pod: its mirror's for a static pod, "" if it does not know it.
func (a *Agent) apiUID(p *v1.Pod) pod.UID {
	if !pod.IsStatic(p) {
		return p.UID
	}
	if mirror, ok := a.pods.Mirror(pod.FullNameOf(p)); ok {
		return mirror.UID
	}
	return ""
}

// newDoors builds the ports of kubelet mode.
func (a *Agent) newDoors() (*server.Kubelet, error) {
	k, m := a.cfg.Kubelet, a.member
	d := &server.Kubelet{NodeName: a.cfg.NodeName, DisableDebugging: !*k.EnableDebuggingHandlers}
	if k.FeatureEnabled("ContainerCheckpoint") {
		d.Checkpoints = server.Checkpoints{Runtime: a.cri, Dir: filepath.Join(a.cfg.RootDir, "checkpoints")}
	}
	if *k.EnableSystemLogHandler {
		d.NodeLogs = server.NodeLogs{
			Logs: &nodelogs.Logs{Dir: "/var/log", Journalctl: "journalctl"}, Query: *k.EnableSystemLogQuery && k.FeatureEnabled("NodeLogQuery"),
		}
	}
	if *k.HealthzPort > 0 {
		d.ListenHealthz = server.ListenTCP(k.HealthzBindAddress, *k.HealthzPort)
	}
	if !*k.EnableServer {
		return d, nil
	}
	d.ListenSecure = server.ListenTCP(k.Address, k.Port)
	if k.ReadOnlyPort > 0 {
		d.ListenReadOnly = server.ListenTCP(k.Address, k.ReadOnlyPort)
	}
	if err := a.newServing(); err != nil {
		return nil, err
	}
	d.Certificate = m.serving.GetCertificate
	t := k.TLS()
	d.MinTLSVersion, d.CipherSuites, d.Curves = t.MinVersion, t.CipherSuites, t.Curves
	d.Authentication = server.Authentication{Anonymous: *k.Authentication.Anonymous.Enabled, TokenTTL: k.Authentication.Webhook.CacheTTL.Duration}
	if f := k.Authentication.X509.ClientCAFile; f != "" {
		ca := certs.NewClientCA(f, a.cfg.Log)
		if err := ca.Load(); err != nil {
			return nil, err
		}
		d.Authentication.VerifyClient = func(chain []*x509.Certificate) error { return ca.Verify(chain) }
	}
	d.Authorization = server.Authorization{
		Mode: server.AuthorizationMode(k.Authorization.Mode), AllowTTL: k.Authorization.Webhook.CacheAuthorizedTTL.Duration,
		DenyTTL: k.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
	}
	if m.api != nil {
		// Whoever reaches the port causes reviews: the agent's own calls must not wait behind them.
		reviews, err := m.api.client.With(kube.Limits{QPS: float32(*k.KubeAPIQPS), Burst: int(k.KubeAPIBurst)})
		if err != nil {
			return nil, err
		}
		d.Authorization.Reviewer = reviews
		if *k.Authentication.Webhook.Enabled {
			d.Authentication.Tokens = reviews
		}
	}
	return d, nil
}

// debugging returns what looks into the process: profiles, which in run mode only root sees, and the level of the log.
func (a *Agent) debugging() server.Debug {
	k := a.cfg.Kubelet
	if k == nil {
		return server.Debug{Profiling: true}
	}
	d := server.Debug{Profiling: *k.EnableProfilingHandler}
	if level := a.cfg.LogLevel; level != nil && *k.EnableDebugFlagsHandler {
		d.SetVerbosity = func(v uint32) { level.Set(config.LogLevel(v)) }
	}
	return d
}

// memberPhases inserts what a member of a cluster runs into the start order.
func (a *Agent) memberPhases(phases []phase) []phase {
	m := a.member
	if m == nil {
		return phases
	}
	add := func(name string, c ...component) {
		i := slices.IndexFunc(phases, func(p phase) bool { return p.name == name })
		phases[i].components = append(phases[i].components, c...)
	}
	add("upkeep", component{name: "runtime health", run: m.health.Run})
	if m.api == nil {
		return phases
	}
	add("upkeep", m.identityComponents()...)
	add("upkeep",
		component{name: "objects", run: m.api.objects.Run},
		component{name: "event sender", run: m.api.sender.Run},
		component{name: "node watch", run: m.api.nodes.Run},
		component{name: "CSI driver watch", run: m.api.csiDrivers.Run},
		component{name: "node", run: m.api.node.Run, ready: loaded(m.api.node.Load)}, // admission needs the stand-in
	)
	add("loop",
		component{name: "status patches", run: m.api.patcher.Run},
		component{name: "mirror pods", run: m.api.mirrors.Run},
	)
	return phases
}

// objectTTL returns how long copies of ConfigMaps and Secrets serve, as the controller of the cluster's size wrote it to the Node (Kubernetes
// documentation, "Well-Known Labels, Annotations and Taints").
func objectTTL(n *v1.Node) (time.Duration, bool) {
	if n == nil {
		return 0, false
	}
	seconds, err := strconv.Atoi(n.Annotations[v1.ObjectTTLAnnotationKey])
	return time.Duration(seconds) * time.Second, err == nil && seconds >= 0
}

// objectsAPI lets objects follow what the API server has.
type objectsAPI struct{ *kube.Client }

// FollowConfigMap hands over one ConfigMap, nil when there is none.
func (c objectsAPI) FollowConfigMap(ctx context.Context, namespace, name string, seen func(*v1.ConfigMap)) {
	followOne(ctx, c.Client, namespace, name, seen)
}

// FollowSecret hands over one Secret, nil when there is none.
func (c objectsAPI) FollowSecret(ctx context.Context, namespace, name string, seen func(*v1.Secret)) {
	followOne(ctx, c.Client, namespace, name, seen)
}

// FollowRuntimeClass hands over one RuntimeClass, nil when there is none.
func (c objectsAPI) FollowRuntimeClass(ctx context.Context, name string, seen func(*nodev1.RuntimeClass)) {
	followOne(ctx, c.Client, "", name, seen)
}

// FollowServices hands over all services.
func (c objectsAPI) FollowServices(ctx context.Context, seen func([]*v1.Service)) {
	followAll(ctx, c.Client, kube.Selector{}, seen)
}

// FollowClusterTrustBundles hands over all ClusterTrustBundles.
func (c objectsAPI) FollowClusterTrustBundles(ctx context.Context, seen func([]*certificatesv1beta1.ClusterTrustBundle)) {
	followAll(ctx, c.Client, kube.Selector{}, seen)
}

// ofNode is what the API server lets a node ask for its pods.
type ofNode struct {
	*kube.Client
	name string
}

// FollowPodCertificateRequests hands over the requests of this node.
func (n ofNode) FollowPodCertificateRequests(ctx context.Context, seen func([]*certificatesv1beta1.PodCertificateRequest)) {
	followAll(ctx, n.Client, kube.OfNode(n.name), seen)
}

func followAll[P kube.Watchable](ctx context.Context, c *kube.Client, which kube.Selector, seen func([]P)) {
	var w *kube.Watch[P]
	w = kube.NewWatch[P](c, which, func() {
		if all, synced := w.List(); synced {
			seen(all)
		}
	})
	_ = w.Run(ctx) // ends with ctx only
}

func followOne[P kube.Watchable](ctx context.Context, c *kube.Client, namespace, name string, seen func(P)) {
	var w *kube.Watch[P]
	w = kube.NewWatch[P](c, kube.Named(namespace, name), func() {
		if _, synced := w.List(); synced {
			o, _ := w.Get(namespace, name)
			seen(o)
		}
	})
	_ = w.Run(ctx) // ends with ctx only
}
