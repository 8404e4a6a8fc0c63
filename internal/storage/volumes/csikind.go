package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// csiKind handles CSI volumes.
type csiKind struct {
	*csiShared
	attach   *csiAttacher
	raw      *csiDisks
	expander *csiExpander
	stager   *csiStager
}

func newCSIKind(s *csiShared) *csiKind {
	k := &csiKind{csiShared: s, attach: &csiAttacher{s}, raw: &csiDisks{s}, expander: &csiExpander{s, resizes{s}}}
	k.stager = &csiStager{csiShared: s, attach: k.attach, raw: k.raw, expander: k.expander}
	return k
}

func newCSI(p *parts) kind { return p.drivers }

// prepare records that the pod is about to use the volume, and waits until it is attached, if
// required.
func (c *csiKind) prepare(ctx context.Context, of *volume) error {
	c.csi.note(func() { of.live = c.csi.republish[of.pod.UID] })
	v := csiOf(of)
	c.csi.use(v.pod.UID, v.csiID)
	if v.claim != nil {
		c.expander.note(v)
	}
	var err error
	if v.object, err = c.readDriver(ctx, v.driver); err != nil {
		return err
	}
	needs := mustAttach(v)
	c.csi.note(func() { c.csi.attach[v.csiID] = needs })
	c.csi.publishInUse()
	mark := filepath.Join(publishDir(v.podDir, v.specName), csiDataFile)
	if v.block {
		mark = diskLink(v.podDir, v.specName)
	}
	if _, err := c.files.Lstat(mark); err == nil {
		return nil // it was attached before, and stays attached while in use
	}
	if needs && c.csi.ControllerAttach {
		began := time.Now()
		end := c.waits.begin(of, "the attacher of the CSI driver "+v.driver, "the attachment of "+v.handle+" to this node", attachWait)
		err := c.attach.await(ctx, v.csiID)
		end()
		c.operated(ctx, csiPluginName(v.driver), verifyAttached, time.Since(began), err)
		if err != nil {
			if full := c.attach.findLimit(ctx, of.spec.Name, v); full != nil {
				c.csi.Exhausted(v.driver)
				return full
			}
			return &Error{Class: AttachFailed, Volume: of.spec.Name, Err: err}
		}
	}
	if _, err := c.driver(v.pod.UID, v.driver); err != nil {
		return &Error{Step: "MountDevice", Err: err}
	}
	return nil
}

// setup has the driver stage the volume, if necessary, and publish it for the pod.
func (c *csiKind) setup(ctx context.Context, of *volume) (outcome, error) {
	v := csiOf(of)
	if !safepath.IsElement(v.driver) || !safepath.IsElement(v.specName) {
		return outcome{}, errors.New("the names of driver and volume must be file names")
	}
	give, err := c.csi.take(ctx, v.csiID)
	if err != nil {
		return outcome{}, err
	}
	defer give()
	c.csi.use(v.pod.UID, v.csiID)
	if v.object, err = c.readDriver(ctx, v.driver); err != nil {
		return outcome{}, err
	}
	if v, err = c.withLabel(ctx, v); err != nil {
		return outcome{}, v.failed("MountDevice", err)
	}
	again := v.object != nil && ptr.Deref(v.object.Spec.RequiresRepublish, false)
	path := c.target(v)
	done := outcome{mounted: crispec.Volume{HostPath: path, ReadOnly: v.readOnly}}
	if v.block {
		done.mounted.HostPath, done.shared = diskLink(v.podDir, v.specName), c.diskOf(v.specName).bound
	}
	here := publication{v.pod.UID, v.specName}
	var published bool
	c.csi.note(func() {
		published = c.csi.published[here]
		if again {
			c.csi.republish[v.pod.UID] = true
		}
	})
	if !published || again {
		step, err := c.publish(ctx, v)
		if err == nil && !published && v.claim != nil {
			step, err = "Setup failed while expanding volume", c.expander.growMounted(ctx, v)
		}
		if err != nil {
			c.csi.note(func() { c.csi.waiting[v.pod.UID] = true }) // an exited driver may recover
			return outcome{}, v.failed(step, err)
		}
		done.fresh = !published
		c.csi.note(func() { c.csi.published[here] = true })
		c.csi.wakeUp()
	}
	done.mounted.SELinuxRelabel = !v.block && !v.readOnly && v.label == "" && hasSecurityLabels(path)
	return done, nil
}

// teardown has the drivers unpublish the volumes in the pod's directory, including those of an
// earlier agent.
func (c *csiKind) teardown(ctx context.Context, uid pod.UID, podDir string) error {
	if err := errors.Join(c.raw.unpublishAll(ctx, uid, podDir), c.unpublishAll(ctx, uid, podDir)); err != nil {
		return err
	}
	c.csi.release(uid)
	return nil
}

func (c *csiKind) unpublishAll(ctx context.Context, uid pod.UID, podDir string) error {
	dir, err := c.files.Open(filepath.Join(podDir, "volumes", csiPlugin))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	dirs, err := dir.ReadDir(-1)
	dir.Close()
	if err != nil {
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
	data, err := c.readCSIData(dir)
	if err != nil {
		return c.unmountUnknown(dir, err)
	}
	give, err := c.csi.take(ctx, data.id())
	if err != nil {
		return err
	}
	defer give()
	began := time.Now()
	defer func() { c.operated(ctx, csiPluginName(data.DriverName), unmountVolume, time.Since(began), err) }()
	c.csi.note(func() { delete(c.csi.published, publication{uid, specName}) })
	driver, err := c.driver(uid, data.DriverName)
	if err != nil {
		return err
	}
	path := publishPath(podDir, specName)
	if err := driver.Unpublish(ctx, data.VolumeHandle, path); err != nil {
		c.csi.note(func() { c.csi.waiting[uid] = true })
		return heldBy(csiError("Unmounter.TearDownAt failed: %w", err), path)
	}
	return c.removeMounted(dir, "mount")
}

// unmountUnknown unmounts a volume whose driver is not known. A volume is published only after the
// csiDataFile is written, so usually nothing is mounted.
func (c *csiKind) unmountUnknown(dir string, cause error) error {
	path := filepath.Join(dir, "mount")
	mounted, err := c.isMounted(path)
	if err != nil {
		return err
	}
	if mounted {
		c.log.Warn("The driver of a volume is unknown, unmounting it without the driver", "mount", path, "error", cause)
		if err := c.mounter.Unmount(path); err != nil {
			return err
		}
	}
	return c.removeMounted(dir, "mount")
}

// abnormalReason is the reason of the event for a volume that its driver reports as abnormal; it is
// the kubelet's.
const abnormalReason = "VolumeConditionAbnormal"

// use returns the usage that the driver reports.
func (c *csiKind) use(ctx context.Context, of *volume) (Use, error) {
	v := csiOf(of)
	if c.csi.Drivers == nil {
		return Use{}, errors.ErrUnsupported
	}
	if !c.isPublished(v) {
		return Use{}, fmt.Errorf("volume %s is not mounted", v.specName)
	}
	driver, err := c.csi.Drivers.Driver(v.driver)
	if err != nil {
		return Use{}, err
	}
	can, err := driver.Capabilities(ctx)
	if err != nil {
		return Use{}, err
	}
	if !can[csiapi.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
		return Use{}, errors.ErrUnsupported
	}
	s, err := driver.Stats(ctx, v.handle, c.target(v))
	if err != nil {
		return Use{}, err
	}
	tells := c.csi.Health && can[csiapi.NodeServiceCapability_RPC_VOLUME_CONDITION] && s.Condition != nil
	if len(s.Usage) == 0 && !tells {
		return Use{}, fmt.Errorf("driver %s returns no usage of volume %s", v.driver, v.handle)
	}
	out := computeUse(s.Usage)
	out.Source = v.driver
	if tells {
		out.Abnormal = &s.Condition.Abnormal
		if s.Condition.Abnormal {
			c.event(v.pod, v1.EventTypeWarning, abnormalReason, fmt.Sprintf("Volume %s: %s", v.specName, s.Condition.Message))
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
