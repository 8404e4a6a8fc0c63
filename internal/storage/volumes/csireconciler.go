package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"berth/internal/pod"
	"berth/internal/storage/csi"
)

// CSIReconciler unstages unused CSI volumes, expands those that have grown, and wakes pods that
// wait for a driver. It is safe for concurrent use.
type CSIReconciler struct {
	config   *CSIConfig
	host     *host
	dirs     *csiDirs
	drivers  *csiDrivers
	state    *csiState
	attacher *csiAttacher
	blocks   *csiBlocks
	expander *csiExpander
}

type unstaging struct {
	running bool
	delay   wait.DelayFunc // after a failure
	retry   time.Time
}

var unstageRetry = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Cap: 2*time.Minute + 2*time.Second, Steps: math.MaxInt}

// Load finds CSI volumes of an earlier agent.
func (c *CSIReconciler) Load() {
	s := c.state
	list := func(dir string) []string {
		entries, err := c.host.files.ReadDir(dir)
		if err := ignoreMissing(err); err != nil {
			c.host.log.Warn("volumes that an earlier agent left are not found", "error", err)
		}
		var paths []string
		for _, e := range entries {
			if e.IsDir() {
				paths = append(paths, filepath.Join(dir, e.Name()))
			}
		}
		return paths
	}
	read := func(dir string) (csiData, bool) {
		data, err := c.dirs.readData(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.host.log.Warn("a volume that an earlier agent left is not known", "error", err)
		}
		return data, err == nil
	}
	pods := list(filepath.Join(c.host.root, "pods"))
	for _, podDir := range pods {
		uid := pod.UID(filepath.Base(podDir))
		for _, dir := range list(filepath.Join(podDir, "volumes", csiPlugin)) {
			if data, ok := read(dir); ok {
				s.addUser(uid, data.id())
				s.locked(func() { s.setLabel(data.id(), data.Label, uid) })
			}
		}
	}
	c.blocks.load(pods)
	for _, driver := range list(filepath.Dir(c.dirs.disksDir())) {
		if filepath.Base(driver) == devicesDir {
			continue
		}
		for _, dir := range list(driver) {
			data, ok := read(dir)
			if ok {
				s.locked(func() {
					s.staged[data.id()] = false
					s.setLabel(data.id(), data.Label)
				})
			} else if err := c.dirs.removeMounted(dir, "globalmount"); err != nil {
				c.host.log.Warn("Failed to remove the directory of an unknown volume", "error", err)
			}
		}
	}
}

// Settled reports that all desired pods are known: volumes that none of them uses may be unstaged.
func (c *CSIReconciler) Settled() {
	c.state.locked(func() { c.state.settled = true })
	c.state.wakeUp()
}

// Run unstages unused volumes, expands volumes that have grown, and wakes pods whose volumes are
// due for republishing, until ctx is done.
func (c *CSIReconciler) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	if !c.attacher.learnAttachable(ctx) {
		return ctx.Err()
	}
	next := time.NewTimer(0)
	defer next.Stop()
	republish := time.NewTimer(0)
	defer republish.Stop()
	republishing := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.state.wake:
		case <-next.C:
		case <-republish.C:
			if republishing {
				c.wakeRepublished()
			}
			republishing = false
		}
		due, at := c.dueUnstages(time.Now())
		for _, id := range due {
			running.Go(func() { c.unstageUnused(ctx, id) })
		}
		grown, check := c.expander.dueChecks(time.Now())
		for _, ids := range grown {
			running.Go(func() { c.expander.expandGrown(ctx, ids) })
		}
		if at.IsZero() || !check.IsZero() && check.Before(at) {
			at = check
		}
		if !at.IsZero() {
			next.Reset(time.Until(at))
		}
		if !republishing && c.hasRepublished() {
			republishing = true
			republish.Reset(c.config.RepublishPeriod)
		}
	}
}

// Drain waits until all unused volumes are unstaged. The error names those that are not.
func (c *CSIReconciler) Drain(ctx context.Context) error {
	c.Settled()
	for {
		var staged []string
		var unstaged chan struct{}
		c.state.locked(func() {
			unstaged = c.state.unstaged
			for id := range c.state.staged {
				if len(c.state.users[id]) == 0 {
					staged = append(staged, string(id.unique()))
				}
			}
		})
		if len(staged) == 0 {
			return nil
		}
		select {
		case <-unstaged:
		case <-ctx.Done():
			slices.Sort(staged)
			return fmt.Errorf("volumes that are still staged: %s", strings.Join(staged, ", "))
		}
	}
}

func (c *CSIReconciler) hasRepublished() bool {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return len(c.state.republish) > 0
}

func (c *CSIReconciler) wakeRepublished() {
	var pods []pod.UID
	c.state.locked(func() {
		for uid := range c.state.republish {
			pods = append(pods, uid)
		}
	})
	for _, uid := range pods {
		c.config.Wake(uid)
	}
}

// dueUnstages returns the volumes that are due for unstaging, marks them as running, and returns
// the time of the next attempt.
func (c *CSIReconciler) dueUnstages(now time.Time) (due []csiID, next time.Time) {
	s := c.state
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.settled {
		return nil, time.Time{}
	}
	for id := range s.staged {
		u := s.unstaging[id]
		switch {
		case len(s.users[id]) > 0:
			if u != nil && !u.running {
				delete(s.unstaging, id)
			}
		case u != nil && u.running:
		case u != nil && now.Before(u.retry):
			if next.IsZero() || u.retry.Before(next) {
				next = u.retry
			}
		default:
			if u == nil {
				u = &unstaging{delay: unstageRetry.DelayFunc()}
				s.unstaging[id] = u
			}
			u.running = true
			due = append(due, id)
		}
	}
	slices.SortFunc(due, func(a, b csiID) int { return strings.Compare(string(a.unique()), string(b.unique())) })
	return due, next
}

func (c *CSIReconciler) unstageUnused(ctx context.Context, id csiID) {
	err := c.unstage(ctx, id)
	s := c.state
	s.locked(func() {
		u := s.unstaging[id]
		if err == nil {
			delete(s.unstaging, id)
			return
		}
		u.running = false
		u.retry = time.Now().Add(u.delay())
	})
	if err != nil && ctx.Err() == nil {
		c.host.log.Warn("volume not unstaged, which is tried again", "driver", id.driver, "volume", id.handle, "error", err)
	}
	s.wakeUp()
	s.publishInUse()
}

func (c *CSIReconciler) unstage(ctx context.Context, id csiID) error {
	unlock, err := c.state.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	s := c.state
	used := false
	s.locked(func() {
		if used = len(s.users[id]) > 0; !used {
			s.staged[id] = false
		}
	})
	if used {
		return nil // a pod has started to use it
	}
	began, operation := time.Now(), unmountDevice
	s.locked(func() {
		if s.disks[id] != "" {
			operation = unmapDevice
		}
	})
	err = c.unstageAlone(ctx, id)
	c.host.metrics.operated(ctx, csiPluginName(id.driver), operation, time.Since(began), err)
	if err != nil {
		return err
	}
	s.locked(func() {
		delete(s.staged, id)
		delete(s.labels, id)
		close(s.unstaged)
		s.unstaged = make(chan struct{})
	})
	return nil
}

// unstageAlone has the driver unstage the volume. The caller holds the volume's lock.
func (c *CSIReconciler) unstageAlone(ctx context.Context, id csiID) error {
	var disk string
	c.state.locked(func() { disk = c.state.disks[id] })
	if disk != "" {
		return c.blocks.unstage(ctx, id, c.dirs.disk(disk))
	}
	path := c.dirs.stagePath(id)
	if _, err := c.host.files.Lstat(path); err == nil {
		refs, err := c.host.mounter.GetMountRefs(path)
		if err != nil {
			return fmt.Errorf("mounts of %s: %w", path, err)
		}
		// Drivers may mount inside the staging path; only mounts in pod directories count.
		if i := slices.IndexFunc(refs, c.host.isOfPod); i >= 0 {
			return fmt.Errorf("the device mount path %q is still mounted by other references %v", path, refs)
		}
	}
	driver, err := c.drivers.registered.Driver(id.driver)
	if err != nil {
		return csiError("%w", err)
	}
	if err := unstage(ctx, driver, id, path, "attacher.UnmountDevice"); err != nil {
		return err
	}
	return c.dirs.removeMounted(c.dirs.stageDir(id), "globalmount")
}

// unstage calls NodeUnstageVolume, if the driver stages volumes. The error names the operation.
func unstage(ctx context.Context, driver *csi.Driver, id csiID, path, operation string) error {
	capabilities, err := driver.Capabilities(ctx)
	if err != nil {
		return csiError("capabilities of the driver: %w", err)
	}
	if !capabilities[csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		return nil
	}
	if err := driver.Unstage(ctx, id.handle, path); err != nil {
		return heldBy(csiError(operation+" failed: %w", err), path)
	}
	return nil
}

// VolumesInUse returns the volumes that must not be detached from this machine, sorted. It is nil
// until the state of an earlier agent is known: the reported list then stays unchanged.
func (c *CSIReconciler) VolumesInUse() []v1.UniqueVolumeName {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return c.state.inUse()
}

// NodeChanged notifies of a change of the Node, which reports attached volumes.
func (c *CSIReconciler) NodeChanged() {
	c.state.locked(func() {
		close(c.state.nodeChanged)
		c.state.nodeChanged = make(chan struct{})
	})
}

// DriversChanged notifies of registered or deregistered drivers: operations that wait for one are
// retried.
func (c *CSIReconciler) DriversChanged() {
	var waiting []pod.UID
	c.state.locked(func() {
		for uid := range c.state.waiting {
			waiting = append(waiting, uid)
		}
		clear(c.state.waiting)
		for _, u := range c.state.unstaging {
			u.retry = time.Time{}
		}
	})
	c.expander.driversChanged()
	for _, uid := range waiting {
		c.config.Wake(uid)
	}
	c.state.wakeUp()
}
