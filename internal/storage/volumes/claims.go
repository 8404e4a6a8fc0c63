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

// Claims are where a pod's claims are read, and what they are bound to. What does not exist is a
// NotFound error of the API.
type Claims interface {
	GetPersistentVolumeClaim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error)
	GetPersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error)
	// PatchPersistentVolumeClaimStatus writes what differs between the statuses of old and changed,
	// and returns the claim as stored.
	PatchPersistentVolumeClaimStatus(ctx context.Context, old, changed *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error)
}

// gidAnnotation of a persistent volume names the group that those who use it must be in (Kubernetes
// documentation, "Well-Known Labels, Annotations and Taints").
const gidAnnotation = "pv.beta.kubernetes.io/gid"

// mountOptionsAnnotation is what mountOptions was before it was a field (Kubernetes documentation,
// "Persistent Volumes", Mount Options).
const mountOptionsAnnotation = "volume.beta.kubernetes.io/mount-options"

// bound is what stands behind a volume of a pod that refers to a claim.
type bound struct {
	*v1.PersistentVolume
	claim    *v1.PersistentVolumeClaim // as it was when the pod came
	readOnly bool                      // as the pod asks for it
	failed   bool                      // it was not set up: somebody may be about to mend the persistent volume
}

// claimOf returns the claim that the volume refers to, "" if it refers to none.
func claimOf(p *v1.Pod, v *v1.Volume) (claim string, readOnly bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, v.PersistentVolumeClaim.ReadOnly
	case v.Ephemeral != nil:
		return p.Name + "-" + v.Name, false // the documented name of a generic ephemeral volume's claim
	}
	return "", false
}

// claims knows what the claims of pods are bound to.
type claims struct {
	api  Claims
	node func() (*v1.Node, bool) // the newest Node, and whether it is known

	mu sync.Mutex
	// bound are what the claims of pods are bound to, by the names of the pods' volumes; guarded by
	// mu.
	bound map[pod.UID]map[string]bound
	// unbound are the claims of pods that were not bound when they were read last; guarded by mu.
	unbound map[pod.UID]map[string]*v1.PersistentVolumeClaim
}

// noteUnbound records that the claim of the pod's volume is not bound, with nil that it is.
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

// UnboundClaims returns the claims of the pod that were not bound when they were read last, by
// name. They must not be changed.
func (m *Manager) UnboundClaims(uid pod.UID) []*v1.PersistentVolumeClaim {
	m.claims.mu.Lock()
	defer m.claims.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.claims.unbound[uid]), func(a, b *v1.PersistentVolumeClaim) int { return strings.Compare(a.Name, b.Name) })
}

// resolve finds what the volume's claim, if it has one, is bound to. A claim that is bound stays
// bound to the same volume, so it is read once in the life of a pod, and again when the volume
// could not be set up, unless the API server is away.
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

// of returns a copy of what the pod's volume is bound to, nil if that is not known.
func (c *claims) of(uid pod.UID, volume string) *bound {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, ok := c.bound[uid][volume]; ok {
		return &b
	}
	return nil
}

// hold notes that the pod has the volume, unless it is for one pod and another one has it.
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

// noteFailed notes that the volume could not be set up.
func (c *claims) noteFailed(v *volume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, ok := c.bound[v.pod.UID][v.spec.Name]; ok && v.bound != nil {
		b.failed = true
		c.bound[v.pod.UID][v.spec.Name] = b
	}
}

// noteClaim notes what became of the claim through which the pod has the volume.
func (c *claims) noteClaim(uid pod.UID, b *bound, claim *v1.PersistentVolumeClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, had := range c.bound[uid] {
		if had.Name == b.Name {
			had.claim = claim
			c.bound[uid][name] = had
		}
	}
}

// release forgets what the pod has.
func (c *claims) release(uid pod.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.bound, uid)
	delete(c.unbound, uid)
}

// reread returns the claim as it is now.
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

// checkMode refuses containers that use the volume as what it is not.
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

// check refuses what is behind a claim if it cannot be had here, or not as it says.
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
	if v.isBlock() && !kinds[v.source()].disks {
		err := fmt.Errorf("persistent volumes of type %s have no volumeMode Block here", v.source())
		return &Error{Class: class, Step: "FindMapperPluginBySpec", Err: err}
	}
	return nil
}

// checkNodeAffinity refuses volumes that are to be had on other nodes.
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

// mountOptions returns how the volume is to be mounted.
func mountOptions(pv *v1.PersistentVolume) []string {
	if old, ok := pv.Annotations[mountOptionsAnnotation]; ok {
		return strings.Split(old, ",")
	}
	return pv.Spec.MountOptions
}
