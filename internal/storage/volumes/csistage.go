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
)

// csiStager unstages unused volumes, and schedules all work that does not depend on a pod.
type csiStager struct {
	*csiShared
	attach   *csiAttacher
	raw      *csiDisks
	expander *csiExpander
}

// unstaging is the unstaging of an unused volume.
type unstaging struct {
	running bool
	delay   wait.DelayFunc // after a failure
	retry   time.Time
}

// unstageRetry is the back-off of unstaging attempts.
var unstageRetry = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Cap: 2*time.Minute + 2*time.Second, Steps: math.MaxInt}

// Load finds CSI volumes of an earlier agent.
func (c *csiStager) Load() {
	s := c.csi
	list := func(dir string) []string {
		entries, err := c.files.ReadDir(dir)
		if err := ignoreMissing(err); err != nil {
			c.log.Warn("volumes that an earlier agent left are not found", "error", err)
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
		data, err := c.readCSIData(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.log.Warn("a volume that an earlier agent left is not known", "error", err)
		}
		return data, err == nil
	}
	pods := list(filepath.Join(c.root, "pods"))
	for _, podDir := range pods {
		uid := pod.UID(filepath.Base(podDir))
		for _, dir := range list(filepath.Join(podDir, "volumes", csiPlugin)) {
			if data, ok := read(dir); ok {
				s.use(uid, data.id())
				s.note(func() { s.label(data.id(), data.Label, uid) })
			}
		}
	}
	c.raw.load(pods)
	for _, driver := range list(filepath.Dir(c.csiDisks())) {
		if filepath.Base(driver) == devicesDir {
			continue
		}
		for _, dir := range list(driver) {
			data, ok := read(dir)
			if ok {
				s.note(func() {
					s.staged[data.id()] = false
					s.label(data.id(), data.Label)
				})
			} else if err := c.removeMounted(dir, "globalmount"); err != nil {
				c.log.Warn("Failed to remove the directory of an unknown volume", "error", err)
			}
		}
	}
}

// Settled reports that all desired pods are known: volumes that none of them uses may be unstaged.
func (c *csiStager) Settled() {
	c.csi.note(func() { c.csi.settled = true })
	c.csi.wakeUp()
}

// Run unstages unused volumes, expands volumes that have grown, and wakes pods whose volumes are
// due for republishing, until ctx is done.
func (c *csiStager) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	if !c.attach.learnAttachable(ctx) {
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
		case <-c.csi.wake:
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
		grown, look := c.expander.dueLooks(time.Now())
		for _, ids := range grown {
			running.Go(func() { c.expander.expandGrown(ctx, ids) })
		}
		if at.IsZero() || !look.IsZero() && look.Before(at) {
			at = look
		}
		if !at.IsZero() {
			next.Reset(time.Until(at))
		}
		if !republishing && c.hasRepublished() {
			republishing = true
			republish.Reset(c.csi.RepublishPeriod)
		}
	}
}

// Drain waits until all unused volumes are unstaged. The error names those that are not.
func (c *csiStager) Drain(ctx context.Context) error {
	c.Settled()
	for {
		var left []string
		var freed chan struct{}
		c.csi.note(func() {
			freed = c.csi.freed
			for id := range c.csi.staged {
				if len(c.csi.users[id]) == 0 {
					left = append(left, string(id.unique()))
				}
			}
		})
		if len(left) == 0 {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			slices.Sort(left)
			return fmt.Errorf("volumes that are still staged: %s", strings.Join(left, ", "))
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *csiStager) hasRepublished() bool {
	c.csi.mu.Lock()
	defer c.csi.mu.Unlock()
	return len(c.csi.republish) > 0
}

func (c *csiStager) wakeRepublished() {
	var pods []pod.UID
	c.csi.note(func() {
		for uid := range c.csi.republish {
			pods = append(pods, uid)
		}
	})
	for _, uid := range pods {
		c.csi.Wake(uid)
	}
}

// dueUnstages returns the volumes that are due for unstaging, marks them as running, and returns
// the time of the next attempt.
func (c *csiStager) dueUnstages(now time.Time) (due []csiID, next time.Time) {
	s := c.csi
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

// unstageUnused is one attempt to unstage a volume.
func (c *csiStager) unstageUnused(ctx context.Context, id csiID) {
	err := c.unstage(ctx, id)
	s := c.csi
	s.note(func() {
		u := s.unstaging[id]
		if err == nil {
			delete(s.unstaging, id)
			return
		}
		u.running = false
		u.retry = time.Now().Add(u.delay())
	})
	if err != nil && ctx.Err() == nil {
		c.log.Warn("volume not unstaged, which is tried again", "driver", id.driver, "volume", id.handle, "error", err)
	}
	s.wakeUp()
	s.publishInUse()
}

func (c *csiStager) unstage(ctx context.Context, id csiID) error {
	give, err := c.csi.take(ctx, id)
	if err != nil {
		return err
	}
	defer give()
	s := c.csi
	used := false
	s.note(func() {
		if used = len(s.users[id]) > 0; !used {
			s.staged[id] = false
		}
	})
	if used {
		return nil // a pod has started to use it
	}
	began, operation := time.Now(), unmountDevice
	c.csi.note(func() {
		if c.csi.disks[id] != "" {
			operation = unmapDevice
		}
	})
	err = c.unstageAlone(ctx, id)
	c.operated(ctx, csiPluginName(id.driver), operation, time.Since(began), err)
	if err != nil {
		return err
	}
	s.note(func() {
		delete(s.staged, id)
		delete(s.labels, id)
		close(s.freed)
		s.freed = make(chan struct{})
	})
	return nil
}

// unstageAlone has the driver unstage the volume. The caller holds the volume's lock.
func (c *csiStager) unstageAlone(ctx context.Context, id csiID) error {
	var disk string
	c.csi.note(func() { disk = c.csi.disks[id] })
	if disk != "" {
		return c.raw.unstage(ctx, id, c.diskOf(disk))
	}
	path := c.stagePath(id)
	if _, err := c.files.Lstat(path); err == nil {
		refs, err := c.mounter.GetMountRefs(path)
		if err != nil {
			return fmt.Errorf("mounts of %s: %w", path, err)
		}
		// Drivers may mount inside the staging path; only mounts in pod directories count.
		if i := slices.IndexFunc(refs, c.isOfPod); i >= 0 {
			return fmt.Errorf("the device mount path %q is still mounted by other references %v", path, refs)
		}
	}
	driver, err := c.csi.Drivers.Driver(id.driver)
	if err != nil {
		return csiError("%w", err)
	}
	can, err := driver.Capabilities(ctx)
	if err != nil {
		return csiError("capabilities of the driver: %w", err)
	}
	if can[csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		if err := driver.Unstage(ctx, id.handle, path); err != nil {
			return heldBy(csiError("attacher.UnmountDevice failed: %w", err), path)
		}
	}
	return c.removeMounted(c.stageDir(id), "globalmount")
}

// VolumesInUse returns the volumes that must not be detached from this machine, sorted. It is nil
// until the state of an earlier agent is known: the reported list then stays unchanged.
func (c *csiStager) VolumesInUse() []v1.UniqueVolumeName {
	c.csi.mu.Lock()
	defer c.csi.mu.Unlock()
	return c.csi.inUse()
}

// NodeChanged notifies of a change of the Node, which reports attached volumes.
func (c *csiStager) NodeChanged() {
	c.csi.note(func() {
		close(c.csi.changed)
		c.csi.changed = make(chan struct{})
	})
}

// DriversChanged notifies of registered or deregistered drivers: operations that wait for one are
// retried.
func (c *csiStager) DriversChanged() {
	var waiting []pod.UID
	c.csi.note(func() {
		for uid := range c.csi.waiting {
			waiting = append(waiting, uid)
		}
		clear(c.csi.waiting)
		clear(c.csi.expands)
		for _, g := range c.csi.growing {
			g.asked = true
		}
		for _, u := range c.csi.unstaging {
			u.retry = time.Time{}
		}
	})
	for _, uid := range waiting {
		c.csi.Wake(uid)
	}
	c.csi.wakeUp()
}
