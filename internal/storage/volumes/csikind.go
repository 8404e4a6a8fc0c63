package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/host/safepath"
	"berth/internal/pod"
	"berth/internal/runtime/crispec"
)

type csiKind struct {
	config     *CSIConfig
	host       *host
	dirs       *csiDirs
	drivers    *csiDrivers
	state      *csiState
	attacher   *csiAttacher
	blocks     *csiBlocks
	expander   *csiExpander
	reconciler *CSIReconciler
}

func newCSIKind(c CSIConfig, disks *disks, resizes *resizes) *csiKind {
	if c.Drivers == nil {
		c.Drivers = noDrivers{}
	}
	if c.Wake == nil {
		c.Wake = func(pod.UID) {}
	}
	if c.InUseChanged == nil {
		c.InUseChanged = func() {}
	}
	if c.FileLabel == nil {
		c.FileLabel = func() string { return "" }
	}
	if c.RepublishPeriod == 0 {
		c.RepublishPeriod = time.Minute
	}
	h, claims := disks.host, resizes.claims
	state := newCSIState(c.InUseChanged)
	dirs := &csiDirs{host: h, disks: disks}
	drivers := &csiDrivers{registered: c.Drivers, objects: c.Objects, state: state}
	k := &csiKind{
		config: &c, host: h, dirs: dirs, drivers: drivers, state: state,
		attacher: &csiAttacher{log: h.log, claims: claims, objects: c.Objects, state: state, nodeName: c.NodeName},
		blocks:   &csiBlocks{host: h, disks: disks, dirs: dirs, drivers: drivers, state: state, nodeName: c.NodeName},
		expander: &csiExpander{
			host: h, config: &c, dirs: dirs, drivers: drivers, claims: claims, resizes: resizes, state: state,
			growing: map[csiID]*growing{}, expands: map[string]bool{},
		},
	}
	k.reconciler = &CSIReconciler{
		config: &c, host: h, dirs: dirs, drivers: drivers, state: state, attacher: k.attacher, blocks: k.blocks, expander: k.expander,
	}
	return k
}

// prepare records that the pod is about to use the volume, and waits until it is attached, if
// required.
func (c *csiKind) prepare(ctx context.Context, of *volume) error {
	c.state.locked(func() { of.live = c.state.republish[of.pod.UID] })
	v := csiOf(of)
	c.state.addUser(v.pod.UID, v.id)
	if v.claim != nil {
		c.expander.addUser(v)
	}
	var err error
	if v.object, err = c.drivers.object(ctx, v.id.driver); err != nil {
		return err
	}
	needs := mustAttach(v)
	c.state.locked(func() { c.state.attach[v.id] = needs })
	c.state.publishInUse()
	mark := filepath.Join(publishDir(v.podDir, v.specName), csiDataFile)
	if v.block {
		mark = diskLink(v.podDir, v.specName)
	}
	if _, err := c.host.files.Lstat(mark); err == nil {
		return nil // it was attached before, and stays attached while in use
	}
	if needs && c.config.ControllerAttach {
		began := time.Now()
		end := c.host.waits.begin(of, "the attacher of the CSI driver "+v.id.driver, "the attachment of "+v.id.handle+" to this node", attachWait)
		err := c.attacher.await(ctx, v.id)
		end()
		c.host.metrics.operated(ctx, csiPluginName(v.id.driver), verifyAttached, time.Since(began), err)
		if err != nil {
			if full := c.attacher.findLimit(ctx, of.spec.Name, v); full != nil {
				c.config.Drivers.Refresh(v.id.driver)
				return full
			}
			return &Error{Class: AttachFailed, Volume: of.spec.Name, Err: err}
		}
	}
	if _, err := c.drivers.forPod(v.pod.UID, v.id.driver); err != nil {
		return &Error{Step: "MountDevice", Err: err}
	}
	return nil
}

// setup has the driver stage the volume, if necessary, and publish it for the pod.
func (c *csiKind) setup(ctx context.Context, of *volume) (outcome, error) {
	v := csiOf(of)
	if !safepath.IsElement(v.id.driver) || !safepath.IsElement(v.specName) {
		return outcome{}, errors.New("the names of driver and volume must be file names")
	}
	unlock, err := c.state.locks.lock(ctx, v.id)
	if err != nil {
		return outcome{}, err
	}
	defer unlock()
	c.state.addUser(v.pod.UID, v.id)
	if v.object, err = c.drivers.object(ctx, v.id.driver); err != nil {
		return outcome{}, err
	}
	if v, err = c.withLabel(ctx, v); err != nil {
		return outcome{}, v.failed("MountDevice", err)
	}
	again := v.object != nil && ptr.Deref(v.object.Spec.RequiresRepublish, false)
	path := c.dirs.target(v)
	done := outcome{mounted: crispec.Volume{HostPath: path, ReadOnly: v.readOnly}}
	if v.block {
		done.mounted.HostPath, done.shared = diskLink(v.podDir, v.specName), c.dirs.disk(v.specName).bound
	}
	here := publication{v.pod.UID, v.specName}
	var published bool
	c.state.locked(func() {
		published = c.state.published[here]
		if again {
			c.state.republish[v.pod.UID] = true
		}
	})
	if !published || again {
		step, err := c.publish(ctx, v)
		if err == nil && !published && v.claim != nil {
			step, err = "Setup failed while expanding volume", c.expander.expandMounted(ctx, v)
		}
		if err != nil {
			c.state.locked(func() { c.state.waiting[v.pod.UID] = true }) // an exited driver may recover
			return outcome{}, v.failed(step, err)
		}
		done.fresh = !published
		c.state.locked(func() { c.state.published[here] = true })
		c.state.wakeUp()
	}
	done.mounted.SELinuxRelabel = !v.block && !v.readOnly && v.label == "" && hasSecurityLabels(path)
	return done, nil
}

// teardown has the drivers unpublish the volumes in the pod's directory, including those of an
// earlier agent.
func (c *csiKind) teardown(ctx context.Context, uid pod.UID, podDir string) error {
	if err := errors.Join(c.blocks.unpublishAll(ctx, uid, podDir), c.unpublishAll(ctx, uid, podDir)); err != nil {
		return err
	}
	c.expander.release(uid)
	c.state.release(uid)
	return nil
}

func (c *csiKind) unpublishAll(ctx context.Context, uid pod.UID, podDir string) error {
	dirs, err := c.host.files.ReadDir(filepath.Join(podDir, "volumes", csiPlugin))
	if err := ignoreMissing(err); err != nil {
		return err
	}
	dirs = slices.DeleteFunc(dirs, func(d os.DirEntry) bool { return !d.IsDir() })
	errs := make([]error, len(dirs))
	var wg sync.WaitGroup
	for i, d := range dirs {
		wg.Go(func() {
			if err := c.unpublish(ctx, uid, podDir, d.Name()); err != nil {
				errs[i] = fmt.Errorf("volume %s: %w", d.Name(), err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c *csiKind) unpublish(ctx context.Context, uid pod.UID, podDir, specName string) (err error) {
	dir := publishDir(podDir, specName)
	data, err := c.dirs.readData(dir)
	if err != nil {
		return c.unmountUnknown(dir, err)
	}
	unlock, err := c.state.locks.lock(ctx, data.id())
	if err != nil {
		return err
	}
	defer unlock()
	began := time.Now()
	defer func() {
		c.host.metrics.operated(ctx, csiPluginName(data.DriverName), unmountVolume, time.Since(began), err)
	}()
	c.state.locked(func() { delete(c.state.published, publication{uid, specName}) })
	driver, err := c.drivers.forPod(uid, data.DriverName)
	if err != nil {
		return err
	}
	path := publishPath(podDir, specName)
	if err := driver.Unpublish(ctx, data.VolumeHandle, path); err != nil {
		c.state.locked(func() { c.state.waiting[uid] = true })
		return heldBy(csiError("Unmounter.TearDownAt failed: %w", err), path)
	}
	return c.dirs.removeMounted(dir, "mount")
}

// unmountUnknown unmounts a volume whose driver is not known. A volume is published only after the
// csiDataFile is written, so usually nothing is mounted.
func (c *csiKind) unmountUnknown(dir string, cause error) error {
	path := filepath.Join(dir, "mount")
	mounted, err := c.host.isMounted(path)
	if err != nil {
		return err
	}
	if mounted {
		c.host.log.Warn("The driver of a volume is unknown, unmounting it without the driver", "mount", path, "error", cause)
		if err := c.host.mounter.Unmount(path); err != nil {
			return err
		}
	}
	return c.dirs.removeMounted(dir, "mount")
}

// abnormalReason is the reason of the event for a volume that its driver reports as abnormal; it is
// the kubelet's.
const abnormalReason = "VolumeConditionAbnormal"

// use returns the usage that the driver reports.
func (c *csiKind) use(ctx context.Context, of *volume) (Use, error) {
	v := csiOf(of)
	if !c.state.isPublished(v.pod.UID, v.specName) && !c.dirs.isPublished(v) {
		return Use{}, fmt.Errorf("volume %s is not mounted", v.specName)
	}
	driver, err := c.drivers.registered.Driver(v.id.driver)
	if err != nil {
		return Use{}, err
	}
	capabilities, err := driver.Capabilities(ctx)
	if err != nil {
		return Use{}, err
	}
	if !capabilities[csiapi.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
		return Use{}, errors.ErrUnsupported
	}
	s, err := driver.Stats(ctx, v.id.handle, c.dirs.target(v))
	if err != nil {
		return Use{}, err
	}
	reportsHealth := c.config.Health && capabilities[csiapi.NodeServiceCapability_RPC_VOLUME_CONDITION] && s.Condition != nil
	if len(s.Usage) == 0 && !reportsHealth {
		return Use{}, fmt.Errorf("driver %s returns no usage of volume %s", v.id.driver, v.id.handle)
	}
	out := computeUse(s.Usage)
	out.Source = v.id.driver
	if reportsHealth {
		out.Abnormal = &s.Condition.Abnormal
		if s.Condition.Abnormal {
			c.host.recorder.Event(v.pod, "", v1.EventTypeWarning, abnormalReason, fmt.Sprintf("Volume %s: %s", v.specName, s.Condition.Message))
		}
	}
	return out, nil
}

// computeUse converts the driver's usage; unknown units and negative numbers are dropped.
func computeUse(usage []*csiapi.VolumeUsage) Use {
	var out Use
	of := func(n int64) uint64 { return uint64(max(n, 0)) }
	for _, u := range usage {
		switch u.GetUnit() {
		case csiapi.VolumeUsage_BYTES:
			out.Capacity, out.Available, out.Used = of(u.Total), of(u.Available), of(u.Used)
		case csiapi.VolumeUsage_INODES:
			out.Inodes, out.InodesFree, out.InodesUsed = of(u.Total), of(u.Available), of(u.Used)
		}
	}
	return out
}
