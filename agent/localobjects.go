package agent

import (
	"context"
	"errors"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/cluster/kube"
	"berth/internal/runtime/images"
	"berth/internal/storage/objects"
	"berth/internal/storage/volumes"
)

// localObjectSources returns the origin of pods' objects with a local API: it has no controllers
// and lacks some kinds.
func localObjectSources(g *dependencies, rt *containerRuntime, c volumes.CSIConfig) (objectSources, error) {
	server := g.api.objects(g.cfg.NodeName)
	cfg := serverObjects(g, server)
	cfg.Trust, cfg.Handlers = g.api.local.trust, rt.handlers
	cfg.Services = &objects.LocalService{Address: g.api.local.address, Event: g.recorder.Event}
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
		objects: all, changed: all.Changed(), claims: server, accounts: accounts, csi: c, define: g.api.local.define,
		run: func(ctx context.Context) error {
			var both sync.WaitGroup
			both.Go(func() { _ = claims.Run(ctx) }) // returns only when ctx is done
			defer both.Wait()
			return all.Run(ctx)
		},
	}, nil
}

// localDrivers are the CSI objects of a node without an attach controller.
type localDrivers struct{ volumes.StorageObjects }

// CSIDriver returns the CSIDriver object. Without one, it returns defaults for a machine without
// controllers: volumes are not attached first.
func (s localDrivers) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	d, err := s.StorageObjects.CSIDriver(ctx, name)
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
