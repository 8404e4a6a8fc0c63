package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/csi"
	"berth/internal/pod"
)

// Reasons of events of volumes that grow; the words are the kubelet's.
const (
	resizedReason      = "FileSystemResizeSuccessful"
	readOnlyReason     = "FileSystemResizeFailed"
	resizeFailedReason = "VolumeResizeFailed"
)

// growing is a claim's volume that some pod has, and that may become larger meanwhile.
type growing struct {
	users  map[pod.UID]user
	known  resource.Quantity // the size that it has on this node
	seen   string            // the version of the claim that was looked at last
	failed bool              // the last try failed for good
	inUse  bool              // the driver cannot make it larger while it is in use: it is not asked again
	asked  bool              // there is a reason to look at it
	looked bool              // being looked at
	wait   time.Duration     // after the last failure
	retry  time.Time
}

// user is a pod with its volume.
type user struct {
	pod    *v1.Pod
	volume csiVolume
}

// errInUse says that a volume cannot be made larger before its pods are gone.
var errInUse = errors.New("the volume cannot be expanded while it is in use")

// noteGrowing notes that the pod has the claim's volume, or is about to. Where nobody is asked again and again, a pass of the pod is a reason to look.
func (m *Manager) noteGrowing(p *v1.Pod, v csiVolume) {
	news := false
	m.csi.note(func() {
		g := m.csi.growing[v.csiID]
		if g == nil {
			g = &growing{users: map[pod.UID]user{}, known: v.claim.Status.Capacity[v1.ResourceStorage]}
			m.csi.growing[v.csiID] = g
			news = true
		}
		g.users[p.UID] = user{p, v}
		g.asked = g.asked || m.csi.ClaimsPeriod == 0
		news = news || g.asked
	})
	if news {
		m.csi.wakeUp()
	}
}

// releaseGrowing forgets what the pod had. The caller holds s.mu.
func (s *csiState) releaseGrowing(uid pod.UID) {
	for id, g := range s.growing {
		if delete(g.users, uid); len(g.users) == 0 {
			delete(s.growing, id)
		}
	}
}

// growMounted makes a volume that was just published for the pod as large as it is to be. It is the caller's turn with the volume.
func (m *Manager) growMounted(ctx context.Context, p *v1.Pod, podDir string, v csiVolume) error {
	var known resource.Quantity
	growing := false
	m.csi.note(func() {
		if g := m.csi.growing[v.csiID]; g != nil {
			known, growing = g.known, !g.inUse
		}
	})
	if size := v.pv.Spec.Capacity[v1.ResourceStorage]; !growing || known.Cmp(size) >= 0 {
		return nil
	}
	claim, pv, err := m.readGrowing(ctx, v)
	if err != nil {
		return err
	}
	if v.readOnly {
		if g, _ := computeGrowth(claim, pv, known); g == grows && !known.IsZero() {
			m.tellGrowth(p, claim, v1.EventTypeWarning, readOnlyReason, fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", pv.Name))
		}
		return nil
	}
	if err := m.grow(ctx, user{p, v}, podDir, claim, pv); !errors.Is(err, errInUse) {
		return err
	}
	return nil
}

// readGrowing reads claim and volume as they are now.
func (m *Manager) readGrowing(ctx context.Context, v csiVolume) (*v1.PersistentVolumeClaim, *v1.PersistentVolume, error) {
	claim, err := m.claims.GetPersistentVolumeClaim(ctx, v.claim.Namespace, v.claim.Name)
	if err != nil {
		return nil, nil, err
	}
	if claim.UID != v.claim.UID {
		return nil, nil, fmt.Errorf("PVC %s/%s is another one by now", claim.Namespace, claim.Name)
	}
	pv, err := m.claims.GetPersistentVolume(ctx, v.pv.Name)
	return claim, pv, err
}

// grow makes a published volume as large as claim and persistent volume say, and tells the claim. It is the caller's turn with the volume.
func (m *Manager) grow(ctx context.Context, u user, podDir string, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	id := u.volume.csiID
	var known resource.Quantity
	m.csi.note(func() {
		if g := m.csi.growing[id]; g != nil {
			known = g.known
		}
	})
	state, target := computeGrowth(claim, pv, known)
	has := claim.Status.Capacity[v1.ResourceStorage]
	done := func() { m.noteKnown(id, target) }
	switch state {
	case sized:
		done()
		return nil
	case waits:
		return nil
	}
	driver, err := m.driver(u.pod.UID, id.driver)
	if err != nil {
		return err
	}
	can, err := driver.Capabilities(ctx)
	if err != nil {
		return csiError("capabilities of the driver: %w", err)
	}
	switch {
	case can[csiapi.NodeServiceCapability_RPC_EXPAND_VOLUME]:
	case !tellsProgress(claim) || has.Cmp(target) >= 0:
		done() // the controller has done all there is to do
		return nil
	default:
		return m.tellResizeFailed(ctx, u, claim, target, csiError("NodeExpand is not supported by the CSI driver %s", id.driver))
	}
	if claim, err = m.claims.PatchPersistentVolumeClaimStatus(ctx, claim, mergeResizeBegun(claim)); err != nil {
		return fmt.Errorf("mark PVC %s/%s as resize in progress: %w", u.volume.claim.Namespace, u.volume.claim.Name, err)
	}
	if err := m.callExpand(ctx, driver, can, u, podDir, target); err != nil {
		return m.tellResizeFailed(ctx, u, claim, target, err)
	}
	done()
	if !known.IsZero() { // else it is not known whether the driver had anything to do
		m.tellGrowth(u.pod, claim, v1.EventTypeNormal, resizedReason, fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", pv.Name, m.csi.NodeName))
	}
	if _, err := m.claims.PatchPersistentVolumeClaimStatus(ctx, claim, mergeResized(claim, target)); err != nil {
		return fmt.Errorf("mark PVC %s/%s as resized: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// noteKnown notes the size that the volume has on this node now.
func (m *Manager) noteKnown(id csiID, size resource.Quantity) {
	m.csi.note(func() {
		if g := m.csi.growing[id]; g != nil {
			g.known, g.failed = size, false
		}
	})
}

func (m *Manager) callExpand(ctx context.Context, driver *csi.Driver, can csi.Capabilities, u user, podDir string, target resource.Quantity) error {
	v := u.volume
	v.label = "" // it is mounted by now
	how := capabilityOf(u.pod, v, can)
	if mount := how.GetMount(); mount != nil {
		mount.VolumeMountGroup = ""
	}
	r := &csiapi.NodeExpandVolumeRequest{
		VolumeId: v.handle, VolumePath: m.target(u.pod.UID, podDir, v), CapacityRange: &csiapi.CapacityRange{RequiredBytes: target.Value()}, VolumeCapability: how,
	}
	if can[csiapi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		r.StagingTargetPath = m.staging(v)
	}
	var err error
	if r.Secrets, err = m.secret(ctx, v.expandSecret); err != nil {
		return err
	}
	began := time.Now()
	_, err = driver.Expand(ctx, r)
	m.operated(ctx, csiPluginName(v.driver), ExpandVolume, time.Since(began), err)
	if err != nil {
		return csiError("Expander.NodeExpand failed to expand the volume: %w", err)
	}
	return nil
}

// tellResizeFailed writes the failure into the claim, and returns it.
func (m *Manager) tellResizeFailed(ctx context.Context, u user, claim *v1.PersistentVolumeClaim, target resource.Quantity, cause error) error {
	how, code := feasible, status.Code(cause)
	wants := claim.Spec.Resources.Requests[v1.ResourceStorage]
	m.csi.note(func() {
		g := m.csi.growing[u.volume.csiID]
		if g == nil {
			return
		}
		switch {
		case code == codes.FailedPrecondition:
			g.inUse = true
		case code == codes.InvalidArgument || code == codes.OutOfRange || code == codes.NotFound, g.failed && !csi.IsUncertain(cause) && wants.Cmp(target) != 0:
			how = infeasible
		}
		g.failed = g.failed || !csi.IsUncertain(cause)
	})
	message := fmt.Sprintf("failed to expand pvc with %v", cause)
	if _, err := m.claims.PatchPersistentVolumeClaimStatus(ctx, claim, mergeResizeFailed(claim, message, how, time.Now())); err != nil {
		cause = errors.Join(cause, fmt.Errorf("tell PVC %s/%s: %w", claim.Namespace, claim.Name, err))
	}
	if code == codes.FailedPrecondition {
		cause = errors.Join(errInUse, cause)
	}
	return cause
}

// tellGrowth records one event about the pod and one about its claim.
func (m *Manager) tellGrowth(p *v1.Pod, claim *v1.PersistentVolumeClaim, eventtype, reason, message string) {
	m.event(p, eventtype, reason, message)
	m.csi.ClaimEvent(claim, eventtype, reason, message)
}

// dueLooks returns the volumes that are to be looked at now, by driver, which then count as being so, and when the next is due; zero for never. Of
// those that are looked at again and again, all are at the same time.
func (m *Manager) dueLooks(now time.Time) (due map[string][]csiID, next time.Time) {
	s := m.csi
	due = map[string][]csiID{}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.ClaimsPeriod > 0 && !now.Before(s.looks)
	for id, g := range s.growing {
		switch again := !g.retry.IsZero() && !now.Before(g.retry); {
		case g.inUse || g.looked:
		case all || again || g.asked && g.retry.IsZero():
			g.looked, g.asked = true, false
			due[id.driver] = append(due[id.driver], id)
		case !g.retry.IsZero() && (next.IsZero() || g.retry.Before(next)):
			next = g.retry
		}
	}
	if all {
		s.looks = now.Add(s.ClaimsPeriod)
	}
	if s.ClaimsPeriod > 0 && len(s.growing) > 0 && (next.IsZero() || s.looks.Before(next)) {
		next = s.looks
	}
	return due, next
}

// lookForGrowth makes larger what has grown of a driver's volumes, one after the other.
func (m *Manager) lookForGrowth(ctx context.Context, ids []csiID) {
	for _, id := range ids {
		u, err := m.growMeanwhile(ctx, id)
		m.csi.note(func() {
			g := m.csi.growing[id]
			if g == nil {
				return
			}
			g.looked = false
			if err == nil {
				g.wait, g.retry = 0, time.Time{}
				return
			}
			g.seen = ""
			g.wait = min(max(2*g.wait, firstUnstageRetry), lastUnstageRetry)
			g.retry = time.Now().Add(g.wait)
		})
		if err != nil && ctx.Err() == nil {
			m.log.Warn("volume not expanded, which is tried again", "driver", id.driver, "volume", id.handle, "error", err)
			if u.pod != nil {
				m.event(u.pod, v1.EventTypeWarning, resizeFailedReason, fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", u.volume.specName, err))
			}
		}
	}
	m.csi.wakeUp()
}

// growMeanwhile makes the volume larger, if it has grown, while pods have it, and returns the one through which it was done. Without a driver that can
// do that the claim is not even read.
func (m *Manager) growMeanwhile(ctx context.Context, id csiID) (user, error) {
	if able, err := m.canExpand(ctx, id.driver); err != nil || !able {
		return user{}, err
	}
	give, err := m.csi.take(ctx, id)
	if err != nil {
		return user{}, err
	}
	defer give()
	u, podDir, ok := m.publishedUser(id)
	if !ok {
		return user{}, nil
	}
	claim, err := m.claims.GetPersistentVolumeClaim(ctx, u.volume.claim.Namespace, u.volume.claim.Name)
	if err != nil {
		return user{}, fmt.Errorf("read its claim: %w", err)
	}
	news := claim.UID == u.volume.claim.UID
	m.csi.note(func() {
		if g := m.csi.growing[id]; g == nil || claim.ResourceVersion != "" && g.seen == claim.ResourceVersion {
			news = false
		}
	})
	if !news {
		return user{}, nil
	}
	pv, err := m.claims.GetPersistentVolume(ctx, u.volume.pv.Name)
	if err != nil {
		return user{}, fmt.Errorf("read its persistent volume: %w", err)
	}
	if err := m.grow(ctx, u, podDir, claim, pv); err != nil {
		return u, err
	}
	m.csi.note(func() {
		if g := m.csi.growing[id]; g != nil {
			g.seen = claim.ResourceVersion
		}
	})
	return u, nil
}

// publishedUser returns a pod that the volume is published for, to be written to.
func (m *Manager) publishedUser(id csiID) (u user, podDir string, ok bool) {
	var users map[pod.UID]user
	m.csi.note(func() {
		if g := m.csi.growing[id]; g != nil {
			users = maps.Clone(g.users)
		}
	})
	for _, uid := range slices.Sorted(maps.Keys(users)) {
		u := users[uid]
		podDir, err := m.podDir(uid)
		if err != nil || u.volume.readOnly {
			continue
		}
		if m.isPublished(uid, podDir, u.volume) {
			return u, podDir, true
		}
	}
	return user{}, "", false
}

// isPublished reports whether the volume is there for the pod, by this agent or by an earlier one.
func (m *Manager) isPublished(uid pod.UID, podDir string, v csiVolume) bool {
	var published bool
	m.csi.note(func() { published = m.csi.published[publication{uid, v.specName}] })
	switch {
	case published:
		return true
	case v.block:
		number, err := m.shownDisk(m.target(uid, podDir, v))
		return err == nil && number != 0
	}
	found, err := m.isMounted(publishPath(podDir, v.specName))
	return err == nil && found
}

// canExpand reports whether the driver makes volumes larger. It is asked once in its life; when it comes back, its volumes are looked at again.
func (m *Manager) canExpand(ctx context.Context, name string) (bool, error) {
	known := false
	var able bool
	m.csi.note(func() { able, known = m.csi.expands[name] })
	if known {
		return able, nil
	}
	driver, err := m.csi.Drivers.Driver(name)
	if err != nil {
		return false, nil
	}
	can, err := driver.Capabilities(ctx)
	if err != nil {
		return false, csiError("capabilities of the driver: %w", err)
	}
	able = can[csiapi.NodeServiceCapability_RPC_EXPAND_VOLUME]
	m.csi.note(func() { m.csi.expands[name] = able })
	return able, nil
}
