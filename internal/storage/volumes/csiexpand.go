package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/wait"

	"berth/internal/pod"
	"berth/internal/storage/csi"
)

// growing is a claim's volume that a pod uses and that may grow meanwhile.
type growing struct {
	users     map[pod.UID]csiVolume
	known     resource.Quantity // its size on this node
	seen      string            // resource version of the last claim that was checked
	failed    bool              // the last attempt failed permanently
	inUse     bool              // the driver cannot expand it while in use: no more attempts
	requested bool              // a check is requested
	running   bool              // a check is running
	delay     wait.DelayFunc    // after a failure
	retry     time.Time
}

// csiExpander expands the volumes of claims.
type csiExpander struct {
	host    *host
	config  *CSIConfig
	dirs    *csiDirs
	drivers *csiDrivers
	claims  *claims
	resizes *resizes
	state   *csiState

	mu       sync.Mutex
	growing  map[csiID]*growing // guarded by mu; volumes of claims
	expands  map[string]bool    // guarded by mu; whether drivers support expansion, if known
	rereadAt time.Time          // guarded by mu; when claims are to be read again
}

// locked calls f with mu held.
func (c *csiExpander) locked(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

var errInUse = errors.New("the volume cannot be expanded while it is in use")

// addUser records that the pod uses the claim's volume, or is about to. Without periodic reads,
// each pass of the pod requests a check.
func (c *csiExpander) addUser(v csiVolume) {
	due := false
	c.locked(func() {
		g := c.growing[v.id]
		if g == nil {
			g = &growing{users: map[pod.UID]csiVolume{}, delay: unstageRetry.DelayFunc(), known: v.claim.Status.Capacity[v1.ResourceStorage]}
			c.growing[v.id] = g
			due = true
		}
		g.users[v.pod.UID] = v
		g.requested = g.requested || c.config.ClaimsPeriod == 0
		due = due || g.requested
	})
	if due {
		c.state.wakeUp()
	}
}

// release deletes the pod's entries.
func (c *csiExpander) release(uid pod.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, g := range c.growing {
		if delete(g.users, uid); len(g.users) == 0 {
			delete(c.growing, id)
		}
	}
}

// driversChanged requests a check of all volumes, and of the capabilities of drivers.
func (c *csiExpander) driversChanged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.expands)
	for _, g := range c.growing {
		g.requested = true
	}
}

// expandMounted expands a volume that was just published for the pod. The caller holds the volume's
// lock.
func (c *csiExpander) expandMounted(ctx context.Context, v csiVolume) error {
	var known resource.Quantity
	growing := false
	c.locked(func() {
		if g := c.growing[v.id]; g != nil {
			known, growing = g.known, !g.inUse
		}
	})
	if size := v.pv.Spec.Capacity[v1.ResourceStorage]; !growing || known.Cmp(size) >= 0 {
		return nil
	}
	claim, pv, err := c.readGrowing(ctx, v)
	if err != nil {
		return err
	}
	if v.readOnly {
		if g, _ := computeGrowth(claim, pv, known); g == grows && !known.IsZero() {
			c.resizes.recordReadOnly(v.pod, claim, pv.Name)
		}
		return nil
	}
	if err := c.expand(ctx, v, claim, pv); !errors.Is(err, errInUse) {
		return err
	}
	return nil
}

func (c *csiExpander) readGrowing(ctx context.Context, v csiVolume) (*v1.PersistentVolumeClaim, *v1.PersistentVolume, error) {
	claim, err := c.claims.reread(ctx, v.claim)
	if err != nil {
		return nil, nil, err
	}
	pv, err := c.claims.api.GetPersistentVolume(ctx, v.pv.Name)
	return claim, pv, err
}

// expand expands a published volume to the size in claim and persistent volume, and updates the
// claim. The caller holds the volume's lock.
func (c *csiExpander) expand(ctx context.Context, v csiVolume, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	id := v.id
	var known resource.Quantity
	c.locked(func() {
		if g := c.growing[id]; g != nil {
			known = g.known
		}
	})
	state, target := computeGrowth(claim, pv, known)
	has := claim.Status.Capacity[v1.ResourceStorage]
	switch state {
	case sized:
		c.setSize(id, target)
		return nil
	case waits:
		return nil
	}
	driver, err := c.drivers.forPod(v.pod.UID, id.driver)
	if err != nil {
		return err
	}
	if v.capabilities, err = driver.Capabilities(ctx); err != nil {
		return csiError("capabilities of the driver: %w", err)
	}
	switch {
	case v.capabilities[csiapi.NodeServiceCapability_RPC_EXPAND_VOLUME]:
	case !reportsProgress(claim) || has.Cmp(target) >= 0:
		c.setSize(id, target) // the controller has completed the expansion
		return nil
	default:
		return c.recordFailed(ctx, v, claim, target, csiError("NodeExpand is not supported by the CSI driver %s", id.driver))
	}
	if claim, err = c.resizes.begin(ctx, claim); err != nil {
		return err
	}
	if err := c.callDriver(ctx, driver, v, target); err != nil {
		return c.recordFailed(ctx, v, claim, target, err)
	}
	c.setSize(id, target)
	if !known.IsZero() { // otherwise it is not known whether the driver did anything
		c.resizes.recordResized(v.pod, claim, pv.Name)
	}
	_, err = c.resizes.finish(ctx, claim, target)
	return err
}

// setSize records the volume's size on this node.
func (c *csiExpander) setSize(id csiID, size resource.Quantity) {
	c.locked(func() {
		if g := c.growing[id]; g != nil {
			g.known, g.failed = size, false
		}
	})
}

func (c *csiExpander) callDriver(ctx context.Context, driver *csi.Driver, v csiVolume, target resource.Quantity) error {
	v.label = "" // it is mounted already
	capability := capabilityOf(v)
	if mount := capability.GetMount(); mount != nil {
		mount.VolumeMountGroup = ""
	}
	r := &csiapi.NodeExpandVolumeRequest{
		VolumeId: v.id.handle, VolumePath: c.dirs.target(v), CapacityRange: &csiapi.CapacityRange{RequiredBytes: target.Value()}, VolumeCapability: capability,
	}
	if v.capabilities[csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		r.StagingTargetPath = c.dirs.staging(v)
	}
	var err error
	if r.Secrets, err = c.drivers.secret(ctx, v.expandSecret); err != nil {
		return err
	}
	began := time.Now()
	err = driver.Expand(ctx, r)
	c.host.metrics.operated(ctx, csiPluginName(v.id.driver), expandVolume, time.Since(began), err)
	if err != nil {
		return csiError("Expander.NodeExpand failed to expand the volume: %w", err)
	}
	return nil
}

// recordFailed writes the failure into the claim, and returns it.
func (c *csiExpander) recordFailed(ctx context.Context, v csiVolume, claim *v1.PersistentVolumeClaim, target resource.Quantity, cause error) error {
	f, code := feasible, status.Code(cause)
	wants := claim.Spec.Resources.Requests[v1.ResourceStorage]
	c.locked(func() {
		g := c.growing[v.id]
		if g == nil {
			return
		}
		switch {
		case code == codes.FailedPrecondition:
			g.inUse = true
		case code == codes.InvalidArgument || code == codes.OutOfRange || code == codes.NotFound, g.failed && !csi.IsUncertain(cause) && wants.Cmp(target) != 0:
			f = infeasible
		}
		g.failed = g.failed || !csi.IsUncertain(cause)
	})
	if err := c.resizes.fail(ctx, claim, f, cause); err != nil {
		cause = errors.Join(cause, fmt.Errorf("tell PVC %s/%s: %w", claim.Namespace, claim.Name, err))
	}
	if code == codes.FailedPrecondition {
		cause = errors.Join(errInUse, cause)
	}
	return cause
}

// dueChecks returns the volumes that are due for a check, by driver, and marks them as running; and
// the time of the next check, zero for never. All periodic checks are due at the same time.
func (c *csiExpander) dueChecks(now time.Time) (due map[string][]csiID, next time.Time) {
	due = map[string][]csiID{}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.config.ClaimsPeriod > 0 && !now.Before(c.rereadAt)
	for id, g := range c.growing {
		switch again := !g.retry.IsZero() && !now.Before(g.retry); {
		case g.inUse || g.running:
		case all || again || g.requested && g.retry.IsZero():
			g.running, g.requested = true, false
			due[id.driver] = append(due[id.driver], id)
		case !g.retry.IsZero() && (next.IsZero() || g.retry.Before(next)):
			next = g.retry
		}
	}
	if all {
		c.rereadAt = now.Add(c.config.ClaimsPeriod)
	}
	if c.config.ClaimsPeriod > 0 && len(c.growing) > 0 && (next.IsZero() || c.rereadAt.Before(next)) {
		next = c.rereadAt
	}
	return due, next
}

// expandGrown expands a driver's volumes that have grown, one after the other.
func (c *csiExpander) expandGrown(ctx context.Context, ids []csiID) {
	for _, id := range ids {
		v, err := c.expandInUse(ctx, id)
		c.locked(func() {
			g := c.growing[id]
			if g == nil {
				return
			}
			g.running = false
			if err == nil {
				g.delay, g.retry = unstageRetry.DelayFunc(), time.Time{}
				return
			}
			g.seen = ""
			g.retry = time.Now().Add(g.delay())
		})
		if err != nil && ctx.Err() == nil {
			c.host.log.Warn("volume not expanded, which is tried again", "driver", id.driver, "volume", id.handle, "error", err)
			if v.pod != nil {
				c.host.recorder.Event(v.pod, "", v1.EventTypeWarning, resizeFailedReason, fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", v.specName, err))
			}
		}
	}
	c.state.wakeUp()
}

// expandInUse expands a volume in use if it has grown, and returns the pod's volume through which
// it did so. Without a driver that supports it, the claim is not read.
func (c *csiExpander) expandInUse(ctx context.Context, id csiID) (csiVolume, error) {
	if able, err := c.canExpand(ctx, id.driver); err != nil || !able {
		return csiVolume{}, err
	}
	unlock, err := c.state.locks.lock(ctx, id)
	if err != nil {
		return csiVolume{}, err
	}
	defer unlock()
	v, ok := c.publishedUser(id)
	if !ok {
		return csiVolume{}, nil
	}
	claim, err := c.claims.api.GetPersistentVolumeClaim(ctx, v.claim.Namespace, v.claim.Name)
	if err != nil {
		return csiVolume{}, fmt.Errorf("read its claim: %w", err)
	}
	changed := claim.UID == v.claim.UID
	c.locked(func() {
		if g := c.growing[id]; g == nil || claim.ResourceVersion != "" && g.seen == claim.ResourceVersion {
			changed = false
		}
	})
	if !changed {
		return csiVolume{}, nil
	}
	pv, err := c.claims.api.GetPersistentVolume(ctx, v.pv.Name)
	if err != nil {
		return csiVolume{}, fmt.Errorf("read its persistent volume: %w", err)
	}
	if err := c.expand(ctx, v, claim, pv); err != nil {
		return v, err
	}
	c.locked(func() {
		if g := c.growing[id]; g != nil {
			g.seen = claim.ResourceVersion
		}
	})
	return v, nil
}

// publishedUser returns a pod's volume that is published and writable.
func (c *csiExpander) publishedUser(id csiID) (v csiVolume, ok bool) {
	var users map[pod.UID]csiVolume
	c.locked(func() {
		if g := c.growing[id]; g != nil {
			users = maps.Clone(g.users)
		}
	})
	for _, uid := range slices.Sorted(maps.Keys(users)) {
		if v := users[uid]; !v.readOnly && (c.state.isPublished(v.pod.UID, v.specName) || c.dirs.isPublished(v)) {
			return v, true
		}
	}
	return csiVolume{}, false
}

// canExpand reports whether the driver supports expansion. The result is cached until drivers
// change; then its volumes are checked again.
func (c *csiExpander) canExpand(ctx context.Context, name string) (bool, error) {
	known := false
	var able bool
	c.locked(func() { able, known = c.expands[name] })
	if known {
		return able, nil
	}
	driver, err := c.drivers.registered.Driver(name)
	if err != nil {
		return false, nil
	}
	capabilities, err := driver.Capabilities(ctx)
	if err != nil {
		return false, csiError("capabilities of the driver: %w", err)
	}
	able = capabilities[csiapi.NodeServiceCapability_RPC_EXPAND_VOLUME]
	c.locked(func() { c.expands[name] = able })
	return able, nil
}
