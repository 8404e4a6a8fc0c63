package objects

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Run mode has no controller that looks for a volume which suits a claim. A claim is bound to the
// one that it names (spec.volumeName), or that names it (spec.claimRef); nothing but a manifest can
// change that.

// GetPersistentVolumeClaim returns a claim of manifests, and what it is bound to. A claim that is
// bound to nothing is an error that says how to bind it.
func (l *Local) GetPersistentVolumeClaim(_ context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	claim, err := l.claims.get(namespace, name)
	if err != nil {
		return nil, err
	}
	volume := l.volumeOf(claim)
	if volume == "" {
		return nil, fmt.Errorf("it is bound to no volume: name a PersistentVolume of a manifest under its spec.volumeName")
	}
	bound := claim.DeepCopy()
	bound.Spec.VolumeName = volume
	bound.Status.Phase = v1.ClaimBound
	if has, ok := l.sizes[key{namespace, name}]; ok {
		bound.Status.Capacity = v1.ResourceList{v1.ResourceStorage: has}
	}
	return bound, nil
}

// PatchPersistentVolumeClaimStatus remembers the size that a claim's volume was given; all else
// about a claim is in manifests. The size is forgotten with the agent: then drivers are asked anew
// to make volumes as large as manifests say.
func (l *Local) PatchPersistentVolumeClaimStatus(_ context.Context, _, changed *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if has, ok := changed.Status.Capacity[v1.ResourceStorage]; ok {
		l.sizes[key{changed.Namespace, changed.Name}] = has
	}
	return changed, nil
}

// GetPersistentVolume returns a volume of manifests, and the claim that it is bound to: of several
// claims that name it, the first by namespace and name.
func (l *Local) GetPersistentVolume(_ context.Context, name string) (*v1.PersistentVolume, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pv, err := l.volumes.get("", name)
	if err != nil || pv.Spec.ClaimRef != nil {
		return pv, err
	}
	for _, k := range slices.SortedFunc(maps.Keys(l.claims.objects), compareKeys) {
		if l.claims.objects[k].Spec.VolumeName == name {
			pv = pv.DeepCopy()
			pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: k.namespace, Name: k.name}
			return pv, nil
		}
	}
	return pv, nil
}

// volumeOf returns the name of the volume that the claim is bound to, "" for none. The caller holds
// l.mu.
func (l *Local) volumeOf(claim *v1.PersistentVolumeClaim) string {
	if claim.Spec.VolumeName != "" {
		return claim.Spec.VolumeName
	}
	for _, k := range slices.SortedFunc(maps.Keys(l.volumes.objects), compareKeys) {
		if ref := l.volumes.objects[k].Spec.ClaimRef; ref != nil && ref.Namespace == claim.Namespace && ref.Name == claim.Name {
			return k.name
		}
	}
	return ""
}

func compareKeys(a, b key) int {
	return strings.Compare(a.namespace+"/"+a.name, b.namespace+"/"+b.name)
}
