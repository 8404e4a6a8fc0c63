package agent

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/cluster/offlinecache"
	"berth/internal/host/selinux"
	"berth/internal/pod"
	"berth/internal/record/events"
	"berth/internal/record/journal"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/images"
	"berth/internal/source/podconfig"
	"berth/internal/storage/objects"
	"berth/internal/storage/volumes"
)

// objectSources provide the objects that pods refer to.
type objectSources struct {
	objects  *objects.Objects
	changed  *pod.Inbox[pod.UID] // pods whose objects changed
	claims   volumes.Claims
	accounts images.Accounts // nil: no registry accepts their tokens
	// define sets the objects of manifests; nil if manifests define none.
	define func(podconfig.LocalObjects)
	// run keeps the objects up to date.
	run func(context.Context) error
	// csi configures CSI volumes.
	csi volumes.CSIConfig
}

// newObjectSources returns the origin of pods' objects for this mode.
func newObjectSources(g *dependencies, rt *containerRuntime) (objectSources, error) {
	csi := volumes.CSIConfig{
		NodeName:  g.cfg.NodeName,
		FileLabel: sync.OnceValue(func() string { return selinux.ReadLabels("/").File }),
	}
	if g.api.local != nil {
		return localObjectSources(g, rt, csi)
	}
	return clusterObjectSources(g, csi)
}

// serverObjects returns the settings for objects of an API server.
func serverObjects(g *dependencies, api offlinecache.API) objects.Config {
	k := g.member
	return objects.Config{
		Noted: func(uid pod.UID, why string) {
			if p, known := g.stores.pods.Get(uid); known {
				g.journal.Record(journal.Entry{
					Subject: journal.Subject{UID: uid, Namespace: p.Namespace, Name: p.Name}, Component: "objects", Decision: "look again", Why: why,
				})
			}
		},
		API: api, Classes: api, Accounts: api, Discovery: api, SyncFrequency: k.SyncFrequency.Duration, Log: g.cfg.Log, Metrics: g.out.Metrics,
		Strategy: objects.Strategy{
			Name: k.ConfigMapAndSecretChangeDetectionStrategy, Read: api,
			TTL: func() (time.Duration, bool) { return objectTTL(g.api.current.Node()) },
		},
		Certificates: objects.PodCertificates{
			Node:  func() (*v1.Node, bool) { return g.api.current.Node(), g.api.current.UID() != "" },
			Event: podEvents(g.recorder),
		},
	}
}

func clusterObjectSources(g *dependencies, c volumes.CSIConfig) (objectSources, error) {
	k, api := g.cfg.Kubelet, g.api.objects(g.cfg.NodeName)
	cfg := serverObjects(g, api)
	if k.FeatureEnabled("ClusterTrustBundleProjection") {
		cfg.Trust = api
	}
	if k.FeatureEnabled("PodCertificateRequest") {
		cfg.Certificates.API = api
	}
	all, err := objects.New(cfg)
	if err != nil {
		return objectSources{}, err
	}
	g.api.offline.Retry = all.Changed().Put
	c.Objects, c.Wake, c.Health = storageAPI{&g.api, api, all}, all.Changed().Put, k.FeatureEnabled("CSIVolumeHealth")
	c.InUseChanged, c.ControllerAttach, c.RepublishPeriod = g.api.current.Wake, *k.EnableControllerAttachDetach, k.SyncFrequency.Duration
	if k.FeatureEnabled("SELinuxMount") {
		c.LabelledModes = volumes.AllModes
	}
	c.ClaimsPeriod = k.SyncFrequency.Duration
	return objectSources{objects: all, changed: all.Changed(), claims: api, accounts: all, run: all.Run, csi: c}, nil
}

// podEvents records events about whole pods.
func podEvents(r *events.Recorder) func(p *v1.Pod, eventtype, reason, message string) {
	return func(p *v1.Pod, eventtype, reason, message string) { r.Event(p, "", eventtype, reason, message) }
}

// recordUnobserved records an event for a pod whose status the runtime does not report. An
// unavailable runtime causes no event for each pod.
func recordUnobserved(r *events.Recorder) func(p *v1.Pod, err error) {
	return func(p *v1.Pod, err error) {
		if !errors.Is(err, cri.ErrUnavailable) {
			r.Event(p, "", v1.EventTypeWarning, "FailedSync", "error determining status: "+err.Error())
		}
	}
}

// objectTTL returns how long ConfigMaps and Secrets are cached, as a cluster controller annotated
// it on the Node (Kubernetes documentation, "Well-Known Labels, Annotations and Taints").
func objectTTL(n *v1.Node) (time.Duration, bool) {
	if n == nil {
		return 0, false
	}
	seconds, err := strconv.Atoi(n.Annotations[v1.ObjectTTLAnnotationKey])
	return time.Duration(seconds) * time.Second, err == nil && seconds >= 0
}

// storageAPI provides the API objects that CSI volumes need.
type storageAPI struct {
	server  *apiServer
	api     offlinecache.API
	objects *objects.Objects
}

// driverWait bounds the wait for CSIDrivers from the API server.
const driverWait = 10 * time.Second

// CSIDriver returns the CSIDriver, nil if there is none.
func (s storageAPI) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	if d, ok := s.api.CachedCSIDriver(name); ok {
		return d, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, driverWait, errors.New("the API server does not tell of CSI drivers"))
	defer cancel()
	select {
	case <-s.server.csiDrivers.Synced():
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	d, ok := s.server.csiDrivers.Get("", name)
	if !ok {
		d = nil
	}
	s.api.CacheCSIDriver(name, d)
	return d, nil
}

// GetVolumeAttachment returns the VolumeAttachment of a volume of this node.
func (s storageAPI) GetVolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return s.api.GetVolumeAttachment(ctx, name)
}

// GetSecret returns the Secret as it is now in the API server.
func (s storageAPI) GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return s.api.ReadSecret(ctx, namespace, name, metav1.GetOptions{})
}

// DriverToken returns a token of the pod's service account.
func (s storageAPI) DriverToken(ctx context.Context, p *v1.Pod, audience string, seconds *int64) (string, time.Time, error) {
	return s.objects.DriverToken(ctx, p, audience, seconds)
}
