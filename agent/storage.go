package agent

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/explain"
	"berth/internal/storage/csi"
	"berth/internal/storage/mounts"
	"berth/internal/storage/plugins"
	"berth/internal/storage/volumes"
)

// pluginsDir and registryDir are directories below the root directory: of plugins, and of their
// registration sockets.
const (
	pluginsDir  = "plugins"
	registryDir = "plugins_registry"
)

// storage holds the volume manager and the CSI drivers.
type storage struct {
	drivers *csi.Drivers
	plugins *plugins.Watcher
	volumes *volumes.Manager
	sweep   func() error // removes incomplete mounts of an earlier agent; nil: nothing is mounted here
}

// newStorage creates the volume manager and the watcher of CSI drivers.
func newStorage(g *dependencies, o *objectSources, n nodeSource, shared *resourceManagers) (s storage, err error) {
	drivers := csi.Config{NodeName: g.cfg.NodeName, Log: g.cfg.Log, Metrics: g.out.Metrics, Dial: g.out.DialPlugin}
	if !g.api.isPrivate() {
		drivers.Nodes, drivers.CSINodes, drivers.Initialized, drivers.Registered = g.api.client, g.api.client, n.Wake, g.api.current.Registered
		drivers.Period, drivers.PeriodsChanged = g.api.allocatablePeriod, g.api.driversChanged
		drivers.Late = !g.api.isCluster()
	}
	if s.drivers, err = csi.New(drivers); err != nil {
		return s, err
	}
	handlers := map[string]plugins.Handler{plugins.CSIPlugin: s.drivers, plugins.DevicePlugin: shared.devices}
	if shared.claims != nil {
		handlers[plugins.DRAPlugin] = shared.claims
	}
	if s.plugins, err = plugins.New(plugins.Config{
		Dir: g.cfg.inRoot(registryDir), Watch: g.out.Plugins, Dial: g.out.DialPlugin, Log: g.cfg.Log,
		Handlers: handlers, Metrics: g.out.Metrics,
	}); err != nil {
		return s, err
	}
	mounter := g.out.Mounter
	if mounter == nil {
		own := mounts.New(g.cfg.RootDir, g.cfg.RunDir)
		mounter, s.sweep = own, own.Sweep
	}
	ofDrivers := o.csi
	ofDrivers.Drivers = s.drivers
	if s.volumes, err = volumes.New(volumes.Config{
		Root: g.cfg.RootDir, AllocatableMemory: g.resources.Allocatable.Memory().Value(), Mounter: mounter, Objects: o.objects, Certificates: o.objects,
		Claims: o.claims, Node: n.Current, CSI: ofDrivers, Recorder: g.recorder, Metrics: g.out.Metrics, Log: g.cfg.Log, Journal: g.journal,
	}); err != nil {
		return s, err
	}
	s.drivers.Subscribe(s.volumes.CSI.DriversChanged)
	return s, nil
}

// load finds the volumes of an earlier agent.
func (s *storage) load(log *slog.Logger) func() {
	return func() {
		if s.sweep != nil {
			if err := s.sweep(); err != nil {
				log.Warn("Failed to clean up partial mounts of an earlier agent, will retry at the next start", "error", err)
			}
		}
		s.volumes.CSI.Load()
	}
}

// sources returns the claims and CSI drivers of the pods' volumes, nil if no pod has such a volume.
func (s *storage) sources(rootDir string, pods []*v1.Pod) (out *explain.VolumeSources) {
	external := func(v v1.Volume) bool { return v.CSI != nil || v.PersistentVolumeClaim != nil || v.Ephemeral != nil }
	for _, p := range pods {
		if !slices.ContainsFunc(p.Spec.Volumes, external) && len(p.Spec.ResourceClaims) == 0 {
			continue
		}
		if out == nil {
			out = &explain.VolumeSources{CSIDrivers: s.drivers.Names(), PluginRegistry: filepath.Join(rootDir, registryDir)}
		}
		for _, c := range s.volumes.UnboundClaims(p.UID) {
			out.UnboundClaims = append(out.UnboundClaims, explain.UnboundClaim{Name: c.Name, Phase: cmp.Or(c.Status.Phase, v1.ClaimPending), Spec: c.Spec})
		}
	}
	return out
}

// unstageLimit bounds how long an agent that has stopped all pods waits for drivers to unstage
// shared volumes.
const unstageLimit = 30 * time.Second

func (a *Agent) drainVolumes(ctx context.Context) error {
	if a.Exit() == KeepPods {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, unstageLimit)
	defer cancel()
	err := a.storage.volumes.CSI.Drain(ctx)
	if err != nil {
		a.ending.drain.Add(err)
	}
	return err
}
