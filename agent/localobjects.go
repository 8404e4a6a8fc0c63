package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/offlinecache"
	"berth/internal/runtime/images"
	"berth/internal/storage/objects"
	"berth/internal/storage/volumes"
)

// localObjectSources returns the origin of pods' objects with a local API: it has no controllers and
// lacks some kinds.
func localObjectSources(g *dependencies, rt *containerRuntime, c volumes.CSIConfig) (objectSources, error) {
	server := g.api.objects(g.cfg.NodeName)
	cfg := serverObjects(g, server)
	cfg.API, cfg.Trust = withoutServices{server}, g.api.local.trust
	all, err := objects.New(cfg)
	if err != nil {
		return objectSources{}, err
	}
	g.api.offline.Retry = all.Changed().Put
	c.Objects, c.Wake, c.Health = localDrivers{storageAPI{&g.api, server, all}}, all.Changed().Put, true
	// Claims are few and all known, so that their pods need no polling.
	claims := kube.NewWatch[*v1.PersistentVolumeClaim](g.api.client, kube.Selector{}, func() {
		for _, p := range g.stores.pods.List() {
			if slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }) {
				all.Changed().Put(p.UID)
			}
		}
	})
	var accounts images.Accounts = all
	if g.api.isPrivate() { // tokens of a private API are not accepted by anyone
		accounts = nil
	}
	return objectSources{
		objects: &apiService{handlerNames: handlerNames{all, rt.handlers}, address: g.api.local.address, event: g.recorder.Event}, changed: all.Changed(), claims: server, accounts: accounts, csi: c, define: g.api.local.define,
		run: func(ctx context.Context) error {
			var both sync.WaitGroup
			both.Go(func() { _ = claims.Run(ctx) }) // returns only when ctx is done
			defer both.Wait()
			return all.Run(ctx)
		},
	}, nil
}

// manifestTrust holds the ClusterTrustBundles of manifests.
type manifestTrust struct {
	mu       sync.Mutex
	defined  []*certificatesv1beta1.ClusterTrustBundle // guarded by mu
	all      []*certificatesv1beta1.ClusterTrustBundle // guarded by mu; with resource versions
	versions int                                       // guarded by mu; the last resource version
	changed  chan struct{}                             // guarded by mu; closed and replaced on each change
}

// set replaces the bundles. New and changed ones get a new resource version, as in an API server.
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

// ProbeClusterTrustBundles returns nil: the kind is always available.
func (t *manifestTrust) ProbeClusterTrustBundles(context.Context) error { return nil }

// FollowClusterTrustBundles calls seen with all bundles, on each change.
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

// withoutServices is an API server without Services.
type withoutServices struct{ offlinecache.API }

// FollowServices calls seen with no Services.
func (a withoutServices) FollowServices(ctx context.Context, seen func([]*v1.Service)) {
	seen(nil)
	<-ctx.Done()
}

// handlerNames lets a pod's runtimeClassName name a runtime handler, so that no RuntimeClass is
// required.
type handlerNames struct {
	*objects.Objects
	handlers func(context.Context) ([]string, error)
}

// RuntimeHandler returns the runtime handler for the pod's runtimeClassName. For a handler that the
// runtime does not have, the error lists the available ones.
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

// localDrivers are the CSI objects of a node without an attach controller.
type localDrivers struct{ storageAPI }

// CSIDriver returns the CSIDriver object. Without one, it returns defaults for a machine without
// controllers: volumes are not attached first.
func (s localDrivers) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	d, err := s.storageAPI.CSIDriver(ctx, name)
	if d == nil && err == nil {
		return unknownDriver(name), nil
	}
	return d, err
}

// GetVolumeAttachment always fails: only cluster controllers attach volumes.
func (s localDrivers) GetVolumeAttachment(context.Context, string) (*storagev1.VolumeAttachment, error) {
	return nil, errNoAttacher
}

// unknownDriver returns the defaults for a driver without a CSIDriver object.
func unknownDriver(name string) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{
		AttachRequired: ptr.To(false), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}}
}

// errNoAttacher is returned because no controller attaches volumes to this machine.
var errNoAttacher = errors.New("volumes are attached by the controllers of a cluster: set attachRequired: false in the CSIDriver, if its volumes can do without")
