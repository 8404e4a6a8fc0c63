package agent

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"berth/internal/csi"
	"berth/internal/events"
	"berth/internal/kube"
	"berth/internal/objects"
	"berth/internal/plugins"
	"berth/internal/pod"
	"berth/internal/selinux"
	"berth/internal/volumes"
)

var (
	_ plugins.Handler        = (*csi.Drivers)(nil)
	_ volumes.Drivers        = (*csi.Drivers)(nil)
	_ csi.Nodes              = (*kube.Client)(nil)
	_ csi.CSINodes           = (*kube.Client)(nil)
	_ volumes.StorageObjects = (*objects.Local)(nil)
	_ volumes.StorageObjects = storageAPI{}
)

// pluginsDir and registryDir are folders below the root directory: of plugins, and of the sockets on which they register.
const (
	pluginsDir  = "plugins"
	registryDir = "plugins_registry"
)

// storage is what makes volumes of CSI drivers.
type storage struct {
	drivers *csi.Drivers
	plugins *plugins.Watcher
	volumes *volumes.Manager
	sweep   func() error // removes what an earlier agent has mounted half way; nil: nothing is mounted here
}

// newDrivers builds the list of drivers and what finds them.
func (a *Agent) newDrivers() error {
	cfg := csi.Config{
		NodeName: a.cfg.NodeName, Log: a.cfg.Log, Metrics: a.out.Metrics, Dial: a.out.DialPlugin,
		Changed: func() { a.storage.volumes.DriversChanged() },
	}
	if m := a.member; m != nil && m.api != nil {
		cfg.Nodes, cfg.CSINodes, cfg.Initialized = m.api.client, m.api.client, a.wakeNode
		cfg.Period = m.api.allocatablePeriod
		cfg.Registered = func() <-chan struct{} { return m.api.node.Registered() }
	}
	var err error
	if a.storage.drivers, err = csi.New(cfg); err != nil {
		return err
	}
	a.storage.plugins, err = plugins.New(plugins.Config{
		Dir: filepath.Join(a.cfg.RootDir, registryDir), Watch: a.out.Plugins, Dial: a.out.DialPlugin, Log: a.cfg.Log,
		Handlers: map[string]plugins.Handler{plugins.CSIPlugin: a.storage.drivers},
	})
	return err
}

// allocatablePeriod is how often the cluster wants to be told how many volumes this node takes of the driver, 0 for never.
func (a *memberAPI) allocatablePeriod(driver string) time.Duration {
	d, ok := a.csiDrivers.Get("", driver)
	if !ok || d.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return 0
	}
	return time.Duration(*d.Spec.NodeAllocatableUpdatePeriodSeconds) * time.Second
}

// csiConfig is what volumes of CSI drivers need here; a kubelet without an API server has none.
func (a *Agent) csiConfig(recorder *events.Recorder) volumes.CSIConfig {
	c := volumes.CSIConfig{
		NodeName: a.cfg.NodeName, ClaimEvent: recorder.ClaimEvent, FileLabel: sync.OnceValue(func() string { return selinux.ReadLabels("/").File }),
	}
	switch m := a.member; {
	case m == nil:
		c.Health = true
		c.Drivers, c.Objects, c.Wake = a.storage.drivers, a.local, func(uid pod.UID) { a.local.Changed().Put(uid) }
	case m.api != nil:
		c.Drivers, c.Objects, c.Wake = a.storage.drivers, storageAPI{m.api}, func(uid pod.UID) { m.api.objects.Changed().Put(uid) }
		c.InUseChanged, c.ControllerAttach, c.RepublishPeriod = a.wakeNode, *m.conf.EnableControllerAttachDetach, m.conf.SyncFrequency.Duration
		c.Exhausted = a.storage.drivers.Refresh
		if m.conf.FeatureEnabled("SELinuxMount") {
			c.LabelledModes = volumes.AllModes
		}
		c.ClaimsPeriod, c.Health = m.conf.SyncFrequency.Duration, m.conf.FeatureEnabled("CSIVolumeHealth")
	}
	return c
}

// storageComponents run beside the other upkeep. Volumes come last, so that they end after the pods that have them and before what they need.
func (a *Agent) storageComponents() []component {
	return []component{
		{name: "plugin watcher", run: a.storage.plugins.Run},
		{name: "CSI drivers", run: a.storage.drivers.Run},
		{name: "volumes", run: a.storage.volumes.Run, ready: loaded(a.loadVolumes), drain: a.drainVolumes},
	}
}

// loadVolumes finds what an earlier agent left of volumes.
func (a *Agent) loadVolumes() {
	if a.storage.sweep != nil {
		if err := a.storage.sweep(); err != nil {
			a.cfg.Log.Warn("what an earlier agent has mounted half way stays until the next start", "error", err)
		}
	}
	a.storage.volumes.Load()
}

// unstageLimit bounds how long an agent that has ended all pods waits for drivers to take down what the pods shared.
const unstageLimit = 30 * time.Second

func (a *Agent) drainVolumes(ctx context.Context) error {
	if a.Exit() == KeepPods {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, unstageLimit)
	defer cancel()
	err := a.storage.volumes.Drain(ctx)
	if err != nil {
		a.left = append(a.left, err.Error())
	}
	return err
}

// storageAPI are the objects of the API server that volumes of CSI drivers need.
type storageAPI struct{ *memberAPI }

// driverWait is how long the API server is waited for to tell of drivers.
const driverWait = 10 * time.Second

// CSIDriver returns what is said of a driver, nil if nothing is.
func (s storageAPI) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, driverWait, errors.New("the API server does not tell of CSI drivers"))
	defer cancel()
	select {
	case <-s.csiDrivers.Synced():
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	d, ok := s.csiDrivers.Get("", name)
	if !ok {
		return nil, nil
	}
	return d, nil
}

// GetVolumeAttachment reads the record of a volume that is attached to this node.
func (s storageAPI) GetVolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return s.client.GetVolumeAttachment(ctx, name)
}

// GetSecret reads the Secret as it is now.
func (s storageAPI) GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return s.client.GetSecret(ctx, namespace, name)
}

// DriverToken returns a token of the pod's service account.
func (s storageAPI) DriverToken(ctx context.Context, p *v1.Pod, audience string, seconds *int64) (string, time.Time, error) {
	return s.objects.DriverToken(ctx, p, audience, seconds)
}
