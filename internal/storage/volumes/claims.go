package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

// Claims is the API for claims and persistent volumes. Objects that do not exist return a NotFound
// API error.
type Claims interface {
	GetPersistentVolumeClaim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error)
	GetPersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error)
	// PatchPersistentVolumeClaimStatus writes the differences between the statuses of old and
	// changed, and returns the claim as stored.
	PatchPersistentVolumeClaimStatus(ctx context.Context, old, changed *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error)
}

// gidAnnotation of a persistent volume is a supplemental group of the pods that use it (Kubernetes
// documentation, "Well-Known Labels, Annotations and Taints").
const gidAnnotation = "pv.beta.kubernetes.io/gid"

// mountOptionsAnnotation is the predecessor of the field mountOptions (Kubernetes documentation,
// "Persistent Volumes", Mount Options).
const mountOptionsAnnotation = "volume.beta.kubernetes.io/mount-options"

// bound is the persistent volume of a pod's volume that refers to a claim.
type bound struct {
	*v1.PersistentVolume
	claim    *v1.PersistentVolumeClaim // as of the first read for the pod
	readOnly bool                      // as the pod requests
	failed   bool                      // setup failed: read again, as the persistent volume may change
}

// claimOf returns the name of the volume's claim, "" if it has none.
func claimOf(p *v1.Pod, v *v1.Volume) (claim string, readOnly bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, v.PersistentVolumeClaim.ReadOnly
	case v.Ephemeral != nil:
		return p.Name + "-" + v.Name, false // documented claim name of a generic ephemeral volume
	}
	return "", false
}

// claims caches the persistent volumes of pods' claims.
type claims struct {
	api  Claims
	node func() (*v1.Node, bool) // the newest Node, and whether it is known

	mu sync.Mutex
	// bound has the persistent volumes of pods by the names of the pods' volumes; guarded by mu.
	bound map[pod.UID]map[string]bound
	// unbound has the claims of pods that were not bound at the last read; guarded by mu.
	unbound map[pod.UID]map[string]*v1.PersistentVolumeClaim
}

// noteUnbound records that the claim of the pod's volume is not bound; nil: it is.
func (c *claims) noteUnbound(uid pod.UID, volume string, claim *v1.PersistentVolumeClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if claim == nil {
		delete(c.unbound[uid], volume)
		return
	}
	if c.unbound[uid] == nil {
		c.unbound[uid] = map[string]*v1.PersistentVolumeClaim{}
	}
	c.unbound[uid][volume] = claim
}

// UnboundClaims returns the pod's claims that were not bound at the last read, sorted by name.
// Callers must not change them.
func (m *Manager) UnboundClaims(uid pod.UID) []*v1.PersistentVolumeClaim {
	m.claims.mu.Lock()
	defer m.claims.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.claims.unbound[uid]), func(a, b *v1.PersistentVolumeClaim) int { return strings.Compare(a.Name, b.Name) })
}

// resolve sets the persistent volume of the volume's claim, if it has one. A bound claim never
// changes its volume, so it is read once per pod, and again after a failed setup, unless the API
// server is unavailable.
func (c *claims) resolve(ctx context.Context, v *volume) error {
	name, readOnly := claimOf(v.pod, v.spec)
	if name == "" {
		return nil
	}
	had := c.of(v.pod.UID, v.spec.Name)
	b := had
	if had == nil || had.failed {
		var err error
		c.noteUnbound(v.pod.UID, v.spec.Name, nil)
		if b, err = c.read(ctx, v, name); err == nil {
			err = c.hold(v.pod.UID, v.spec.Name, *b)
		}
		switch {
		case err != nil && had != nil:
			b = had
		case err != nil:
			return &Error{Class: ClaimFailed, Volume: v.spec.Name, Err: fmt.Errorf("error processing PVC %s/%s: %w", v.pod.Namespace, name, err)}
		}
	}
	b.readOnly = readOnly
	v.bound = b
	return nil
}

// of returns a copy of the pod volume's binding, nil if it is not known.
func (c *claims) of(uid pod.UID, volume string) *bound {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, ok := c.bound[uid][volume]; ok {
		return &b
	}
	return nil
}

// hold records that the pod uses the volume; an error if it is ReadWriteOncePod and another pod
// uses it.
func (c *claims) hold(uid pod.UID, name string, b bound) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Equal(b.Spec.AccessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}) {
		for other, volumes := range c.bound {
			for _, o := range volumes {
				if other != uid && o.Name == b.Name {
					return errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
				}
			}
		}
	}
	if c.bound[uid] == nil {
		c.bound[uid] = map[string]bound{}
	}
	c.bound[uid][name] = b
	return nil
}

func (c *claims) noteFailed(v *volume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, ok := c.bound[v.pod.UID][v.spec.Name]; ok && v.bound != nil {
		b.failed = true
		c.bound[v.pod.UID][v.spec.Name] = b
	}
}

func (c *claims) updateClaim(uid pod.UID, b *bound, claim *v1.PersistentVolumeClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, had := range c.bound[uid] {
		if had.Name == b.Name {
			had.claim = claim
			c.bound[uid][name] = had
		}
	}
}

// release deletes the pod's entries.
func (c *claims) release(uid pod.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.bound, uid)
	delete(c.unbound, uid)
}

// reread returns the current claim.
func (c *claims) reread(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	now, err := c.api.GetPersistentVolumeClaim(ctx, claim.Namespace, claim.Name)
	if err == nil && now.UID != claim.UID {
		return nil, fmt.Errorf("PVC %s/%s is another one by now", claim.Namespace, claim.Name)
	}
	return now, err
}

func (c *claims) read(ctx context.Context, v *volume, name string) (*bound, error) {
	p := v.pod
	claim, err := c.api.GetPersistentVolumeClaim(ctx, p.Namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("persistentvolumeclaim %q not found", name)
	case err != nil:
		return nil, err
	case v.spec.Ephemeral != nil && !metav1.IsControlledBy(claim, p):
		return nil, fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", p.Namespace, name, p.Namespace, p.Name)
	case claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, "kubernetes.io/pvc-protection"):
		return nil, errors.New("PVC is being deleted")
	case claim.Status.Phase != v1.ClaimBound || claim.Spec.VolumeName == "":
		c.noteUnbound(p.UID, v.spec.Name, claim)
		return nil, errors.New("PVC is not bound")
	}
	pv, err := c.api.GetPersistentVolume(ctx, claim.Spec.VolumeName)
	switch {
	case err != nil:
		return nil, fmt.Errorf("failed to fetch PV %s: %w", claim.Spec.VolumeName, err)
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID || pv.Spec.ClaimRef.Name != claim.Name:
		return nil, fmt.Errorf("PV %s is not bound to this claim", pv.Name)
	}
	return &bound{PersistentVolume: pv, claim: claim}, checkMode(p, v.spec, ptr.Deref(pv.Spec.VolumeMode, v1.PersistentVolumeFilesystem))
}

// checkMode rejects containers that use the volume in another mode than its volumeMode.
func checkMode(p *v1.Pod, v *v1.Volume, mode v1.PersistentVolumeMode) error {
	for _, c := range containersOf(p) {
		mounts := slices.ContainsFunc(c.VolumeMounts, func(vm v1.VolumeMount) bool { return vm.Name == v.Name })
		devices := slices.ContainsFunc(c.VolumeDevices, func(d v1.VolumeDevice) bool { return d.Name == v.Name })
		switch {
		case mode == v1.PersistentVolumeBlock && mounts:
			return fmt.Errorf("volume %s has volumeMode Block, but is specified in volumeMounts", v.Name)
		case mode != v1.PersistentVolumeBlock && devices:
			return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeDevices", v.Name, mode)
		}
	}
	return nil
}

// check rejects a persistent volume that is not available on this node or not supported.
func (c *claims) check(v *volume) error {
	if v.bound == nil {
		return nil
	}
	class := MountFailed
	if v.isBlock() {
		class = MapFailed
	}
	if err := c.checkNodeAffinity(v.bound.PersistentVolume); err != nil {
		return &Error{Class: class, Step: "NodeAffinity check", Err: err}
	}
	if v.isBlock() && !kinds[v.source()].block {
		err := fmt.Errorf("persistent volumes of type %s have no volumeMode Block here", v.source())
		return &Error{Class: class, Step: "FindMapperPluginBySpec", Err: err}
	}
	return nil
}

// checkNodeAffinity rejects volumes whose node affinity does not match this node.
func (c *claims) checkNodeAffinity(pv *v1.PersistentVolume) error {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return nil
	}
	node, known := c.node()
	if !known {
		return errors.New("the Node of this machine is not known")
	}
	selector, err := nodeaffinity.NewNodeSelector(pv.Spec.NodeAffinity.Required)
	if err != nil {
		return err
	}
	if !selector.Match(node) {
		return errors.New("no matching NodeSelectorTerms")
	}
	return nil
}

func mountOptions(pv *v1.PersistentVolume) []string {
	if old, ok := pv.Annotations[mountOptionsAnnotation]; ok {
		return strings.Split(old, ",")
	}
	return pv.Spec.MountOptions
}
