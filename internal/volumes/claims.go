package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

// Claims are where a pod's claims are read, and what they are bound to. What does not exist is a NotFound error of the API.
type Claims interface {
	GetPersistentVolumeClaim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error)
	GetPersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error)
	// PatchPersistentVolumeClaimStatus writes what differs between the statuses of old and changed, and returns the claim as stored.
	PatchPersistentVolumeClaimStatus(ctx context.Context, old, changed *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error)
}

// gidAnnotation of a persistent volume names the group that those who use it must be in (Kubernetes documentation, "Well-Known Labels,
// Annotations and Taints").
const gidAnnotation = "pv.beta.kubernetes.io/gid"

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

// boundTo returns what the pod's volume is bound to. A claim that is bound stays bound to the same volume, so it is read once in the life
// of a pod, and again when the volume could not be set up, unless the API server is away.
func (m *Manager) boundTo(ctx context.Context, p *v1.Pod, v *v1.Volume) (bound, error) {
	name, readOnly := claimOf(p, v)
	m.mu.Lock()
	b := m.bound[p.UID][v.Name]
	m.mu.Unlock()
	if had := b; had.PersistentVolume == nil || had.failed {
		var err error
		if b, err = m.readBound(ctx, p, v, name); err == nil {
			err = m.hold(p.UID, v.Name, b)
		}
		switch {
		case err != nil && had.failed:
			b = had
		case err != nil:
			return bound{}, &Error{Class: ClaimFailed, Volume: v.Name, Err: fmt.Errorf("error processing PVC %s/%s: %w", p.Namespace, name, err)}
		}
	}
	b.readOnly = readOnly
	return b, nil
}

// hold notes that the pod has the volume, unless it is for one pod and another one has it.
func (m *Manager) hold(uid pod.UID, name string, b bound) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Equal(b.Spec.AccessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}) {
		for other, volumes := range m.bound {
			for _, o := range volumes {
				if other != uid && o.Name == b.Name {
					return errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
				}
			}
		}
	}
	if m.bound[uid] == nil {
		m.bound[uid] = map[string]bound{}
	}
	m.bound[uid][name] = b
	return nil
}

// noteFailed notes that the pod's volume could not be set up.
func (m *Manager) noteFailed(uid pod.UID, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b, ok := m.bound[uid][name]; ok {
		b.failed = true
		m.bound[uid][name] = b
	}
}

// release forgets what the pod has.
func (m *Manager) release(uid pod.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.bound, uid)
	maps.DeleteFunc(m.firsts, func(_ string, first pod.UID) bool { return first == uid })
}

func (m *Manager) readBound(ctx context.Context, p *v1.Pod, v *v1.Volume, name string) (bound, error) {
	if m.claims == nil {
		return bound{}, errors.New("there is no API server to read it from")
	}
	claim, err := m.claims.GetPersistentVolumeClaim(ctx, p.Namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		return bound{}, fmt.Errorf("persistentvolumeclaim %q not found", name)
	case err != nil:
		return bound{}, err
	case v.Ephemeral != nil && !metav1.IsControlledBy(claim, p):
		return bound{}, fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", p.Namespace, name, p.Namespace, p.Name)
	case claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, "kubernetes.io/pvc-protection"):
		return bound{}, errors.New("PVC is being deleted")
	case claim.Status.Phase != v1.ClaimBound || claim.Spec.VolumeName == "":
		return bound{}, errors.New("PVC is not bound")
	}
	pv, err := m.claims.GetPersistentVolume(ctx, claim.Spec.VolumeName)
	switch {
	case err != nil:
		return bound{}, fmt.Errorf("failed to fetch PV %s: %w", claim.Spec.VolumeName, err)
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID || pv.Spec.ClaimRef.Name != claim.Name:
		return bound{}, fmt.Errorf("PV %s is not bound to this claim", pv.Name)
	}
	return bound{PersistentVolume: pv, claim: claim}, checkMode(p, v, ptr.Deref(pv.Spec.VolumeMode, v1.PersistentVolumeFilesystem))
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

// Groups are those that the pod's processes have to be in to use its volumes, in addition to what the pod says.
func (in Inputs) Groups() []int64 {
	var groups []int64
	for _, b := range in.bound {
		if gid, err := strconv.ParseInt(b.Annotations[gidAnnotation], 10, 64); err == nil && gid > 0 {
			groups = append(groups, gid)
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

// checkNodeAffinity refuses volumes that are to be had on other nodes.
func (m *Manager) checkNodeAffinity(pv *v1.PersistentVolume) error {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return nil
	}
	node, known := m.node()
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
