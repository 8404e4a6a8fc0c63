package pvbinder_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/localapi/kinds"
)

const none = "no persistent volumes available for this claim and no storage class is set"

// TestMatch has one claim, data of 5Gi, look among volumes.
func TestMatch(t *testing.T) {
	const (
		immediate = storagev1.VolumeBindingImmediate
		waits     = storagev1.VolumeBindingWaitForFirstConsumer
		noMaker   = "kubernetes.io/no-provisioner"
	)
	block := ptr.To(v1.PersistentVolumeBlock)
	gold := func(v *v1.PersistentVolume) { v.Spec.VolumeAttributesClassName = ptr.To("gold") }
	deleted := func(v *v1.PersistentVolume) {
		now := metav1.Now()
		v.DeletionTimestamp, v.Finalizers = &now, []string{"kubernetes.io/pv-protection"}
	}
	labelled := func(s metav1.LabelSelector) func(*v1.PersistentVolumeClaim) {
		return func(c *v1.PersistentVolumeClaim) { c.Spec.Selector = &s }
	}
	modes := func(m ...v1.PersistentVolumeAccessMode) func(*v1.PersistentVolumeClaim) {
		return func(c *v1.PersistentVolumeClaim) { c.Spec.AccessModes = m }
	}
	for _, c := range []struct {
		name  string
		claim *v1.PersistentVolumeClaim
		have  []kinds.Object
		bound string // the volume; "": none
		event string
	}{
		{name: "nothing there", event: "FailedBinding: " + none},
		{name: "the smallest", have: []kinds.Object{volume("a", "20Gi"), volume("b", "5Gi"), volume("c", "10Gi")}, bound: "b"},
		{name: "the first of one size", have: []kinds.Object{volume("b", "5Gi"), volume("a", "5Gi")}, bound: "a"},
		{name: "too small", have: []kinds.Object{volume("a", "4Gi")}, event: "FailedBinding: " + none},
		{name: "deleted", have: []kinds.Object{volume("a", "5Gi", deleted)}, event: "FailedBinding: " + none},
		{name: "of a claim to come", have: []kinds.Object{volume("a", "5Gi", keptFor("other"))}, event: "FailedBinding: " + none},
		{name: "kept for it", have: []kinds.Object{volume("a", "5Gi"), volume("b", "50Gi", keptFor("data"))}, bound: "b"},
		{name: "kept for it, of another class", have: []kinds.Object{volume("b", "50Gi", keptFor("data"), volumesClass("x"))}, bound: "b"},
		{name: "kept for it, elsewhere", have: []kinds.Object{theNode(), volume("b", "50Gi", keptFor("data"), onNodes("slow"))}, bound: "b"},
		{
			name: "kept for it, too small", have: []kinds.Object{volume("b", "1Gi", keptFor("data"))},
			event: `VolumeMismatch: Cannot bind to requested volume "b": requested PV is too small`,
		},
		{name: "kept for it, too small, and another", have: []kinds.Object{volume("a", "5Gi"), volume("b", "1Gi", keptFor("data"))}, bound: "a"},
		{
			name: "kept for an older one of its name", have: []kinds.Object{volume("b", "5Gi", keptFor("data"), func(v *v1.PersistentVolume) { v.Spec.ClaimRef.UID = "old" })},
			event: "FailedBinding: " + none,
		},
		{
			name: "kept for it by a user, and half bound by the binder", claim: claim("data", "5Gi", func(c *v1.PersistentVolumeClaim) { c.UID = "its" }),
			have: []kinds.Object{volume("a", "5Gi", keptFor("data")), volume("b", "5Gi", keptFor("data"), func(v *v1.PersistentVolume) { v.Spec.ClaimRef.UID = "its" }), volume("c", "5Gi", keptFor("data"))}, bound: "b",
		},
		{
			name: "for a claim that is deleted", have: []kinds.Object{volume("a", "5Gi")},
			claim: claim("data", "5Gi", func(c *v1.PersistentVolumeClaim) {
				now := metav1.Now()
				c.DeletionTimestamp, c.Finalizers = &now, []string{"kubernetes.io/pvc-protection"}
			}),
		},
		{name: "modes", claim: claim("data", "5Gi", modes(v1.ReadOnlyMany, v1.ReadWriteOnce)), have: []kinds.Object{volume("a", "5Gi")}, bound: "a"},
		{name: "a mode that it has not", claim: claim("data", "5Gi", modes(v1.ReadWriteOnce, v1.ReadWriteMany)), have: []kinds.Object{volume("a", "5Gi")}, event: "FailedBinding: " + none},
		{name: "a file system for a disk", claim: claim("data", "5Gi", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = block }), have: []kinds.Object{volume("a", "5Gi")}, event: "FailedBinding: " + none},
		{
			name: "a disk for a disk", claim: claim("data", "5Gi", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = block }),
			have: []kinds.Object{volume("a", "5Gi", func(v *v1.PersistentVolume) { v.Spec.VolumeMode = block })}, bound: "a",
		},
		{name: "other attributes", have: []kinds.Object{volume("a", "5Gi", gold)}, event: "FailedBinding: " + none},
		{
			name: "the same attributes", claim: claim("data", "5Gi", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr.To("gold") }),
			have: []kinds.Object{volume("a", "5Gi"), volume("b", "5Gi", gold)}, bound: "b",
		},
		{
			name: "labels", claim: claim("data", "5Gi", labelled(metav1.LabelSelector{MatchLabels: map[string]string{"name": "b"}})),
			have: []kinds.Object{volume("a", "5Gi"), volume("b", "5Gi")}, bound: "b",
		},
		{
			name: "labels that none has", claim: claim("data", "5Gi", labelled(metav1.LabelSelector{MatchLabels: map[string]string{"name": "x"}})),
			have: []kinds.Object{volume("a", "5Gi")}, event: "FailedBinding: " + none,
		},
		{name: "on this node", have: []kinds.Object{theNode(), volume("a", "5Gi", onNodes("fast"))}, bound: "a"},
		{name: "on others", have: []kinds.Object{theNode(), volume("a", "5Gi", onNodes("slow"))}, event: "FailedBinding: " + none},
		{name: "on a node that is not known yet", have: []kinds.Object{volume("a", "5Gi", onNodes("fast"))}, event: "FailedBinding: " + none},
		{name: "of a class that nothing defines", claim: claim("data", "5Gi", claimsClass("x")), have: []kinds.Object{volume("a", "5Gi"), volume("b", "5Gi", volumesClass("x"))}, bound: "b"},
		{name: "no class where others have one", claim: claim("data", "5Gi", claimsClass("")), have: []kinds.Object{volume("b", "5Gi", volumesClass("x")), isDefault(class("x", noMaker, immediate))}, event: "FailedBinding: " + none},
		{
			name: "the old annotation of a class", claim: claim("data", "5Gi", func(c *v1.PersistentVolumeClaim) {
				c.Annotations = map[string]string{v1.BetaStorageClassAnnotation: "x"}
			}),
			have: []kinds.Object{volume("a", "5Gi"), volume("b", "5Gi", func(v *v1.PersistentVolume) { v.Annotations = map[string]string{v1.BetaStorageClassAnnotation: "x"} })}, bound: "b",
		},
		{name: "the default class", have: []kinds.Object{volume("a", "5Gi"), volume("b", "9Gi", volumesClass("x")), class("a", "y", immediate), isDefault(class("x", noMaker, immediate))}, bound: "b"},
		{
			name: "no default for who is named", have: []kinds.Object{volume("a", "5Gi", keptFor("data")), isDefault(class("x", noMaker, immediate))}, bound: "a",
		},
		{name: "a class that is not there", claim: claim("data", "5Gi", claimsClass("x")), event: `ProvisioningFailed: storageclass.storage.k8s.io "x" not found`},
		{
			name: "a class that makes none", claim: claim("data", "5Gi", claimsClass("x")), have: []kinds.Object{class("x", noMaker, immediate)},
			event: "ProvisioningFailed: no volume plugin matched name: kubernetes.io/no-provisioner",
		},
		{
			name: "a class that waits", claim: claim("data", "5Gi", claimsClass("x")), have: []kinds.Object{class("x", noMaker, waits), volume("a", "5Gi", volumesClass("x"))},
			event: "WaitForFirstConsumer: waiting for first consumer to be created before binding",
		},
		{name: "a class that waits, and a pod", claim: claim("data", "5Gi", claimsClass("x")), have: []kinds.Object{class("x", noMaker, waits), volume("a", "5Gi", volumesClass("x")), podWith("p", uses("data"))}, bound: "a"},
		{
			name: "a class that waits, and a pod that has ended", claim: claim("data", "5Gi", claimsClass("x")),
			have: []kinds.Object{class("x", noMaker, waits), volume("a", "5Gi", volumesClass("x")), func() *v1.Pod {
				p := podWith("p", uses("data"))
				p.Status.Phase = v1.PodSucceeded
				return p
			}()},
			event: "WaitForFirstConsumer: waiting for first consumer to be created before binding",
		},
		{
			name: "a class that waits, and a pod that is being deleted", claim: claim("data", "5Gi", claimsClass("x")),
			have: []kinds.Object{class("x", noMaker, waits), volume("a", "5Gi", volumesClass("x")), func() *v1.Pod {
				now := metav1.Now()
				p := podWith("p", uses("data"))
				p.DeletionTimestamp = &now
				return p
			}()},
			event: "WaitForFirstConsumer: waiting for first consumer to be created before binding",
		},
		{
			name: "a class that waits, and a pod of another claim", claim: claim("data", "5Gi", claimsClass("x")), have: []kinds.Object{class("x", noMaker, waits), podWith("p", uses("other"))},
			event: "WaitForFirstConsumer: waiting for first consumer to be created before binding",
		},
		{name: "a class that waits, and a volume kept for it", claim: claim("data", "5Gi", claimsClass("x")), have: []kinds.Object{class("x", noMaker, waits), volume("a", "5Gi", keptFor("data"))}, bound: "a"},
		{
			name: "a class that waits, a pod, no volume", claim: claim("data", "5Gi", claimsClass("x")), have: []kinds.Object{class("x", noMaker, waits), podWith("p", uses("data"))},
			event: "FailedBinding: node(s) didn't find available persistent volumes to bind",
		},
		{name: "one that it names", claim: claim("data", "5Gi", names("b")), have: []kinds.Object{volume("a", "5Gi"), volume("b", "5Gi")}, bound: "b"},
		{name: "one that it names, elsewhere", claim: claim("data", "5Gi", names("b")), have: []kinds.Object{theNode(), volume("b", "5Gi", onNodes("slow"))}, bound: "b"},
		{name: "one that it names, that names it", claim: claim("data", "5Gi", names("b")), have: []kinds.Object{volume("b", "1Gi", keptFor("data"))}, bound: "b"},
		{name: "one that is not there", claim: claim("data", "5Gi", names("b")), have: []kinds.Object{volume("a", "5Gi")}, event: `FailedBinding: volume "b" not found: create this PersistentVolume`},
		{
			name: "one that it names, too small", claim: claim("data", "5Gi", names("b")), have: []kinds.Object{volume("b", "1Gi")},
			event: `VolumeMismatch: Cannot bind to requested volume "b": requested PV is too small`,
		},
		{
			name: "one that it names, deleted", claim: claim("data", "5Gi", names("b")), have: []kinds.Object{volume("b", "5Gi", deleted)},
			event: `VolumeMismatch: Cannot bind to requested volume "b": it is being deleted`,
		},
		{
			name: "one that it names, of another class", claim: claim("data", "5Gi", names("b")), have: []kinds.Object{volume("b", "5Gi", volumesClass("x"))},
			event: `VolumeMismatch: Cannot bind to requested volume "b": storageClassName does not match`,
		},
		{
			name: "one that it names, kept for another", claim: claim("data", "5Gi", names("b")), have: []kinds.Object{volume("b", "5Gi", keptFor("other"))},
			event: `FailedBinding: volume "b" already bound to a different claim: it is that of default/other; name another volume, or remove spec.claimRef of this one if that claim is gone`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if c.claim == nil {
					c.claim = claim("data", "5Gi")
				}
				w.put(c.have...)
				w.put(c.claim)
				b, stop := w.start()
				is := find[*v1.PersistentVolumeClaim](w, "data")
				wantPhase := v1.ClaimPending
				if c.bound != "" {
					wantPhase = v1.ClaimBound
					if v := find[*v1.PersistentVolume](w, c.bound); v == nil || v.Status.Phase != v1.VolumeBound || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != is.UID {
						t.Errorf("the volume is %v", v)
					}
				}
				if is.Status.Phase != wantPhase || c.bound != "" && is.Spec.VolumeName != c.bound {
					t.Errorf("the claim is %s with volume %q", is.Status.Phase, is.Spec.VolumeName)
				}
				want := []string{c.event}
				if c.event == "" {
					want = nil
				}
				if got := w.events("data"); !slices.Equal(got, want) {
					t.Errorf("events %q, not %q", got, want)
				}
				if err := b.Health(); err != nil {
					t.Error(err)
				}

				// Who finds it done writes nothing but events.
				stop()
				w.take()
				w.start()
				if calls := slices.DeleteFunc(w.take(), func(call string) bool { return strings.HasPrefix(call, "event ") }); len(calls) > 0 {
					t.Errorf("a binder that starts again writes %q", calls)
				}
			})
		})
	}
}
