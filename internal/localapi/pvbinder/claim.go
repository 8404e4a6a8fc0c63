package pvbinder

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/component-helpers/storage/ephemeral"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// Annotations of claims, volumes and classes, and the name of the provisioner that provisions
// nothing (kubernetes.io/docs/reference/labels-annotations-taints).
const (
	bindCompleted      = "pv.kubernetes.io/bind-completed"
	boundByController  = "pv.kubernetes.io/bound-by-controller"
	provisionedBy      = "pv.kubernetes.io/provisioned-by"
	selectedNode       = "volume.kubernetes.io/selected-node"
	provisioner        = "volume.kubernetes.io/storage-provisioner"
	provisionerBeta    = "volume.beta.kubernetes.io/storage-provisioner"
	isDefaultClass     = "storageclass.kubernetes.io/is-default-class"
	isDefaultClassBeta = "storageclass.beta.kubernetes.io/is-default-class"
	noProvisioner      = "kubernetes.io/no-provisioner"
)

func (b *Binder) syncClaim(ctx context.Context, key store.Key) error {
	c, err := get[*v1.PersistentVolumeClaim](b, key)
	if err != nil || c == nil {
		return err
	}
	if _, complete := c.Annotations[bindCompleted]; complete {
		return b.syncBound(ctx, c)
	}
	if c.DeletionTimestamp != nil {
		return nil // it needs no volume any more
	}
	if c.Spec.VolumeName == "" {
		return b.syncUnbound(ctx, c)
	}
	v, err := get[*v1.PersistentVolume](b, volumeKey(c.Spec.VolumeName))
	switch {
	case err != nil:
		return err
	case v == nil:
		b.event(ctx, c, failedBinding, fmt.Sprintf("volume %q not found: create this PersistentVolume", c.Spec.VolumeName))
	case names(v, c):
		return b.bind(ctx, v, c)
	case v.Spec.ClaimRef != nil:
		b.event(ctx, c, failedBinding, fmt.Sprintf("volume %q already bound to a different claim: it is that of %s/%s; name another volume, or remove spec.claimRef of this one if that claim is gone",
			v.Name, v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name))
	default:
		why := misfitNamed(v, c)
		if why == "" {
			return b.bind(ctx, v, c)
		}
		b.event(ctx, c, volumeMismatch, fmt.Sprintf("Cannot bind to requested volume %q: %s", v.Name, why))
	}
	return b.setClaim(ctx, c, v1.ClaimPending)
}

// syncBound restores the binding of a claim that was bound before, or sets the claim to Lost.
func (b *Binder) syncBound(ctx context.Context, c *v1.PersistentVolumeClaim) error {
	if c.Spec.VolumeName == "" {
		b.event(ctx, c, claimLost, "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
		return b.setClaim(ctx, c, v1.ClaimLost)
	}
	v, err := get[*v1.PersistentVolume](b, volumeKey(c.Spec.VolumeName))
	switch {
	case err != nil:
		return err
	case v == nil:
		b.event(ctx, c, claimLost, "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case v.Spec.ClaimRef == nil || names(v, c):
		return b.bind(ctx, v, c)
	default:
		b.event(ctx, c, claimMisbound, "Two claims are bound to the same volume, this one is bound incorrectly")
	}
	return b.setClaim(ctx, c, v1.ClaimLost)
}

// syncUnbound finds a volume for a claim that names none.
func (b *Binder) syncUnbound(ctx context.Context, c *v1.PersistentVolumeClaim) error {
	volumes, err := list[*v1.PersistentVolume](b, store.Range{Resource: volumesResource})
	if err != nil {
		return err
	}
	given := preBound(volumes, c)
	if given != nil && misfit(given, c) == "" {
		return b.bind(ctx, given, c)
	}
	if leavesClass(c) {
		classes, err := list[*storagev1.StorageClass](b, store.Range{Resource: classesResource})
		if err != nil {
			return err
		}
		if class := defaultClass(classes); class != nil {
			c.Spec.StorageClassName = &class.Name
			return b.cfg.Writer.Update(ctx, c) // the update queues the claim again
		}
	}
	class, err := b.classOf(c)
	if err != nil {
		return err
	}
	if waits(class) {
		if used, err := b.hasConsumer(c); err != nil || !used {
			b.event(ctx, c, waitForFirstConsumer, "waiting for first consumer to be created before binding")
			return cmp.Or(err, b.setClaim(ctx, c, v1.ClaimPending))
		}
	}
	node, err := get[*v1.Node](b, store.Key{Resource: nodesResource, Name: b.cfg.NodeName})
	if err != nil {
		return err
	}
	v, err := choose(volumes, c, node)
	switch {
	case err != nil:
		return err
	case v != nil:
		return b.bind(ctx, v, c)
	case given != nil:
		b.event(ctx, c, volumeMismatch, fmt.Sprintf("Cannot bind to requested volume %q: %s", given.Name, misfit(given, c)))
		return b.setClaim(ctx, c, v1.ClaimPending)
	}
	return b.provision(ctx, c, class)
}

// classOf returns the class of a claim; nil if it names none, or one that does not exist.
func (b *Binder) classOf(c *v1.PersistentVolumeClaim) (*storagev1.StorageClass, error) {
	name := claimClass(c)
	if name == "" {
		return nil, nil
	}
	return get[*storagev1.StorageClass](b, store.Key{Resource: classesResource, Name: name})
}

// hasConsumer reports whether a pod that is neither terminating nor terminated uses a claim.
func (b *Binder) hasConsumer(c *v1.PersistentVolumeClaim) (bool, error) {
	pods, err := list[*v1.Pod](b, store.Range{Resource: podsResource, Namespace: c.Namespace})
	return slices.ContainsFunc(pods, func(p *v1.Pod) bool {
		return p.DeletionTimestamp == nil && p.Status.Phase != v1.PodSucceeded && p.Status.Phase != v1.PodFailed &&
			slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool {
				return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == c.Name ||
					v.Ephemeral != nil && ephemeral.VolumeClaimName(p, &v) == c.Name
			})
	}), err
}

// bind sets the claim in the volume, then the volume in the claim. It writes only changes.
func (b *Binder) bind(ctx context.Context, old *v1.PersistentVolume, c *v1.PersistentVolumeClaim) error {
	v := old.DeepCopy()
	if !names(v, c) {
		set(&v.Annotations, boundByController, "yes")
	}
	if !names(v, c) || v.Spec.ClaimRef.UID != c.UID {
		v.Spec.ClaimRef = &v1.ObjectReference{
			Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion,
		}
	}
	setPhase(v, v1.VolumeBound, "")
	if err := b.update(ctx, old, v); err != nil {
		return fmt.Errorf("volume %s: %w", v.Name, err)
	}
	before := c.DeepCopy()
	if c.Spec.VolumeName != v.Name {
		c.Spec.VolumeName = v.Name
		set(&c.Annotations, boundByController, "yes")
	}
	if _, complete := c.Annotations[bindCompleted]; !complete {
		set(&c.Annotations, bindCompleted, "yes")
	}
	if c.Status.Phase != v1.ClaimBound { // later, whatever resizes the volume updates it
		c.Status.Phase = v1.ClaimBound
		set(&c.Status.Capacity, v1.ResourceStorage, v.Spec.Capacity[v1.ResourceStorage])
		c.Status.CurrentVolumeAttributesClassName = v.Spec.VolumeAttributesClassName
	}
	c.Status.AccessModes = v.Spec.AccessModes
	delete(b.reported, claimKey(c.Namespace, c.Name))
	return b.update(ctx, before, c)
}

func set[K comparable, V any, M ~map[K]V](m *M, key K, value V) {
	if *m == nil {
		*m = M{}
	}
	(*m)[key] = value
}

// setClaim writes the phase of a claim without a volume.
func (b *Binder) setClaim(ctx context.Context, c *v1.PersistentVolumeClaim, phase v1.PersistentVolumeClaimPhase) error {
	before := c.DeepCopy()
	c.Status.Phase, c.Status.AccessModes, c.Status.Capacity, c.Status.CurrentVolumeAttributesClassName = phase, nil, nil, nil
	return b.update(ctx, before, c)
}

// update writes an object if it has changed.
func (b *Binder) update(ctx context.Context, before, now kinds.Object) error {
	if equality.Semantic.DeepEqual(now, before) {
		return nil
	}
	return b.cfg.Writer.Update(ctx, now)
}
