package pvbinder_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// TestBinding compares all that is written of a claim and its volume.
func TestBinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, _ = w.start()
		w.put(volume("v", "10Gi"))
		w.want("data", "gone", "v", "Available")
		w.put(claim("data", "5Gi"))
		if diff := cmp.Diff([]string{"update persistentvolumes/v", "update persistentvolumes/v", "update persistentvolumeclaims/default/data"}, w.take()); diff != "" {
			t.Error(diff)
		}
		c, v := find[*v1.PersistentVolumeClaim](w, "data"), find[*v1.PersistentVolume](w, "v")
		wantClaim, wantVolume := claim("data", "5Gi", names("v")), volume("v", "10Gi")
		yes := map[string]string{"pv.kubernetes.io/bound-by-controller": "yes"}
		wantClaim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
		wantClaim.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, AccessModes: wantVolume.Spec.AccessModes, Capacity: wantVolume.Spec.Capacity}
		wantVolume.Annotations = yes
		wantVolume.Status = v1.PersistentVolumeStatus{Phase: v1.VolumeBound, LastPhaseTransitionTime: &metav1.Time{Time: time.Now().Truncate(time.Second)}}
		wantVolume.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "default", Name: "data", UID: c.UID}
		ignore := cmp.Options{
			cmpopts.IgnoreTypes(metav1.TypeMeta{}), cmpopts.IgnoreFields(metav1.ObjectMeta{}, "UID", "ResourceVersion", "CreationTimestamp"),
		}
		if diff := cmp.Diff(wantClaim, c, ignore); diff != "" {
			t.Error(diff)
		}
		if v.Spec.ClaimRef.ResourceVersion == "" {
			t.Error("the volume does not say which version of the claim it was bound to")
		}
		v.Spec.ClaimRef.ResourceVersion = ""
		if diff := cmp.Diff(wantVolume, v, ignore); diff != "" {
			t.Error(diff)
		}

		// What a resize has written stays.
		edit(w, "data", func(c *v1.PersistentVolumeClaim) { c.Status.Capacity[v1.ResourceStorage] = resource.MustParse("7Gi") })
		if got := find[*v1.PersistentVolumeClaim](w, "data").Status.Capacity[v1.ResourceStorage]; got.String() != "7Gi" {
			t.Errorf("the claim has %s", &got)
		}

		// What nobody changes is not written again, however long it lasts.
		<-time.After(24 * time.Hour)
		if calls := w.take(); len(calls) > 0 {
			t.Errorf("a binder that rests writes %q", calls)
		}
	})
}

// TestPreBound has no mark that the binder chose what a user has chosen.
func TestPreBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, _ = w.start()
		w.put(volume("v", "5Gi", keptFor("data")))
		w.want("data", "gone", "v", "Available data")
		w.put(claim("data", "5Gi", names("v")))
		w.want("data", "Bound v", "v", "Bound data")
		for _, o := range []kinds.Object{find[*v1.PersistentVolumeClaim](w, "data"), find[*v1.PersistentVolume](w, "v")} {
			if _, ok := o.GetAnnotations()["pv.kubernetes.io/bound-by-controller"]; ok {
				t.Errorf("%T has the mark of the binder", o)
			}
		}
		remove[*v1.PersistentVolumeClaim](w, "data")
		w.want("data", "gone", "v", "Released data")
	})
}

// TestPhases follows a claim and a volume that are bound, after something happens to one of them.
func TestPhases(t *testing.T) {
	removeClaim := func(w *world) { remove[*v1.PersistentVolumeClaim](w, "data") }
	made := func(by string) func(*v1.PersistentVolume) {
		return func(v *v1.PersistentVolume) { v.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": by} }
	}
	for _, c := range []struct {
		name         string
		volume       *v1.PersistentVolume
		act          func(w *world)
		claim, state string
		event        string // about the claim or the volume, its first words
		message      string // of the volume's status
	}{
		{name: "the claim goes", act: removeClaim, claim: "gone", state: "Released data"},
		{
			name: "the claim goes, Delete without a provisioner", volume: volume("v", "5Gi", reclaimed(v1.PersistentVolumeReclaimDelete)), act: removeClaim,
			claim: "gone", state: "Failed data", event: "VolumeFailedDelete: ", message: "none did: empty it, then remove its spec.claimRef",
		},
		{
			name: "the claim goes, Delete with a provisioner", volume: volume("v", "5Gi", reclaimed(v1.PersistentVolumeReclaimDelete), made("csi.example.com")), act: removeClaim,
			claim: "gone", state: "Released data",
		},
		{
			name: "the claim goes, Recycle", volume: volume("v", "5Gi", reclaimed(v1.PersistentVolumeReclaimRecycle)), act: removeClaim,
			claim: "gone", state: "Failed data", event: "VolumeFailedRecycle: ", message: "deprecated",
		},
		{
			name: "the claim goes, and another of its name comes",
			act: func(w *world) {
				removeClaim(w)
				w.put(claim("data", "5Gi"))
			},
			claim: "Pending", state: "Released data", event: "FailedBinding: no persistent volumes",
		},
		{
			name: "the claim goes, and its volume is freed by hand",
			act: func(w *world) {
				removeClaim(w)
				w.put(claim("data", "5Gi", names("v")))
				edit(w, "v", func(v *v1.PersistentVolume) { v.Spec.ClaimRef = nil })
			},
			claim: "Bound v", state: "Bound data", event: `FailedBinding: volume "v" already bound to a different claim: it is that of default/data; `,
		},
		{
			name: "the volume goes", act: func(w *world) { remove[*v1.PersistentVolume](w, "v") },
			claim: "Lost v", state: "gone", event: "ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!",
		},
		{
			name: "the volume goes and comes back",
			act: func(w *world) {
				remove[*v1.PersistentVolume](w, "v")
				w.put(volume("v", "5Gi"))
			},
			claim: "Bound v", state: "Bound data", event: "ClaimLost: ",
		},
		{
			name: "the claim forgets its volume", act: func(w *world) {
				edit(w, "data", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "" })
			},
			claim: "Lost", state: "Bound data", event: "ClaimLost: Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
		},
		{
			name: "the volume forgets its claim", act: func(w *world) { edit(w, "v", func(v *v1.PersistentVolume) { v.Spec.ClaimRef = nil }) },
			claim: "Bound v", state: "Bound data",
		},
		{
			name: "the volume gets another claim", act: func(w *world) {
				w.put(claim("other", "5Gi", claimsClass("x")))
				edit(w, "v", func(v *v1.PersistentVolume) {
					v.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: "other", UID: find[*v1.PersistentVolumeClaim](w, "other").UID}
				})
			},
			claim: "Lost v", state: "Bound other", event: "ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly",
		},
		{
			name: "the claim gets another volume", act: func(w *world) {
				w.put(volume("w", "5Gi"))
				edit(w, "data", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "w" })
			},
			claim: "Bound w", state: "Available",
		},
		{
			name: "the claim gets another volume than was made for it", volume: volume("v", "5Gi", reclaimed(v1.PersistentVolumeReclaimDelete), made("csi.example.com")),
			act: func(w *world) {
				w.put(volume("w", "5Gi"))
				edit(w, "data", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "w" })
			},
			claim: "Bound w", state: "Released data",
		},
		{
			name: "the claim goes, Delete with a provisioner that is none", act: removeClaim,
			volume: volume("v", "5Gi", reclaimed(v1.PersistentVolumeReclaimDelete), made("kubernetes.io/host-path")),
			claim:  "gone", state: "Failed data", event: "VolumeFailedDelete: ",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				_, stop := w.start()
				if c.volume == nil {
					c.volume = volume("v", "5Gi")
				}
				w.put(c.volume, claim("data", "5Gi"))
				w.want("data", "Bound v", "v", "Bound data")
				c.act(w)
				w.want("data", c.claim, "v", c.state)
				if all := append(w.events("data"), w.events("v")...); len(all) > 1 || (c.event == "") != (len(all) == 0) || len(all) == 1 && !strings.HasPrefix(all[0], c.event) {
					t.Errorf("events %q, not one of %q", all, c.event)
				}
				if c.message != "" {
					if m := find[*v1.PersistentVolume](w, "v").Status.Message; !strings.Contains(m, c.message) {
						t.Errorf("the volume says %q, not %q", m, c.message)
					}
				}

				// Who starts again finds it done, and says nothing more of the volume.
				stop()
				before := len(w.events("v"))
				w.take()
				<-time.After(time.Second)
				w.start()
				if calls := slices.DeleteFunc(w.take(), func(call string) bool { return strings.HasPrefix(call, "event persistentvolumeclaim/") }); len(calls) > 0 || len(w.events("v")) != before {
					t.Errorf("a binder that starts again calls %q", calls)
				}
			})
		})
	}
}

// TestTwoClaims has two claims look for the one volume, which one of them gets.
func TestTwoClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(volume("v", "5Gi"), claim("a", "5Gi", names("v")), claim("b", "5Gi", names("v")), claim("c", "5Gi"))
		_, _ = w.start()
		w.want("a", "Bound v", "v", "Bound a")
		w.want("b", "Pending v", "v", "Bound a")
		w.want("c", "Pending", "v", "Bound a")
		remove[*v1.PersistentVolumeClaim](w, "a")
		w.want("b", "Pending v", "v", "Released a")
		edit(w, "v", func(v *v1.PersistentVolume) { v.Spec.ClaimRef = nil })
		w.want("b", "Bound v", "v", "Bound b")
		w.want("c", "Pending", "v", "Bound b")
	})
}

// TestChanges has what a claim waits for come later, one by one.
func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, _ = w.start()
		w.put(claim("data", "5Gi"), volume("v", "5Gi", volumesClass("slow"), onNodes("fast")))
		w.want("data", "Pending", "v", "Available")
		w.put(volume("other", "5Gi", volumesClass("other")))
		w.put(isDefault(class("slow", "kubernetes.io/no-provisioner", storagev1.VolumeBindingWaitForFirstConsumer)))
		w.want("data", "Pending", "v", "Available")
		w.put(podWith("p", uses("data")))
		w.want("data", "Pending", "v", "Available")
		w.put(theNode())
		w.want("data", "Bound v", "v", "Bound data")
		if diff := cmp.Diff([]string{
			"FailedBinding: no persistent volumes available for this claim and no storage class is set",
			"WaitForFirstConsumer: waiting for first consumer to be created before binding",
			"FailedBinding: node(s) didn't find available persistent volumes to bind",
		}, w.events("data")); diff != "" {
			t.Error(diff)
		}
		if got := find[*v1.PersistentVolumeClaim](w, "data").Annotations["volume.kubernetes.io/selected-node"]; got != "" {
			t.Errorf("a claim that nobody has to make a volume for has the node %q", got)
		}
	})
}

// TestProvisioner has a claim be served by a program of others.
func TestProvisioner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, _ = w.start()
		w.put(class("now", "csi.example.com", storagev1.VolumeBindingImmediate), class("later", "csi.example.com", storagev1.VolumeBindingWaitForFirstConsumer))
		asked := func(name string) string {
			a := find[*v1.PersistentVolumeClaim](w, name).Annotations
			return fmt.Sprintf("%s %s %s", a["volume.kubernetes.io/storage-provisioner"], a["volume.beta.kubernetes.io/storage-provisioner"], a["volume.kubernetes.io/selected-node"])
		}
		wantAsked := func(name, want string) {
			t.Helper()
			if got := asked(name); got != want {
				t.Errorf("claim %s asks for %q, not %q", name, got, want)
			}
		}
		w.put(claim("a", "5Gi", claimsClass("now")), claim("b", "5Gi", claimsClass("later")))
		wantAsked("a", "csi.example.com csi.example.com ")
		wantAsked("b", "  ")
		w.put(podWith("p", uses("b")))
		wantAsked("b", "csi.example.com csi.example.com n1")
		if got := w.events("a"); len(got) != 1 || !strings.HasPrefix(got[0], "ExternalProvisioning: Waiting for a volume to be created either by the external provisioner 'csi.example.com' or manually") {
			t.Errorf("events %q", got)
		}

		// A provisioner that takes the node away, each time at once, is given it later and later.
		var waited time.Duration
		for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			edit(w, "b", func(c *v1.PersistentVolumeClaim) { delete(c.Annotations, "volume.kubernetes.io/selected-node") })
			begin := time.Now()
			for wantNone := "csi.example.com csi.example.com "; asked("b") == wantNone; synctest.Wait() {
				<-time.After(100 * time.Millisecond)
			}
			if waited = time.Since(begin).Round(time.Second); waited != want {
				t.Errorf("the node came back after %v, not %v", waited, want)
			}
		}

		// The volume that it makes is the claim's.
		w.put(volume("v", "5Gi", volumesClass("later"), reclaimed(v1.PersistentVolumeReclaimDelete), func(v *v1.PersistentVolume) {
			v.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "csi.example.com"}
			v.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: "b", UID: find[*v1.PersistentVolumeClaim](w, "b").UID}
		}))
		w.want("b", "Bound v", "v", "Bound b")
		remove[*v1.PersistentVolumeClaim](w, "b")
		w.want("b", "gone", "v", "Released b")
	})
}

func TestEphemeral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, _ = w.start()
		w.put(volume("v", "5Gi"), podWith("p", scratch("x", "1Gi"), v1.Volume{Name: "none"}))
		w.want("p-x", "Bound v", "v", "Bound p-x")
		c, p := find[*v1.PersistentVolumeClaim](w, "p-x"), find[*v1.Pod](w, "p")
		if !metav1.IsControlledBy(c, p) || c.Labels["of"] != "x" || len(c.Finalizers) != 1 || c.Finalizers[0] != "kubernetes.io/pvc-protection" || *c.Spec.VolumeMode != v1.PersistentVolumeFilesystem {
			t.Errorf("the claim is %v", c)
		}

		// One that is taken away while its pod lives is made again; with the pod, it is not.
		remove[*v1.PersistentVolumeClaim](w, "p-x")
		w.want("p-x", "Pending", "v", "Released p-x")
		remove[*v1.Pod](w, "p")
		remove[*v1.PersistentVolumeClaim](w, "p-x")
		w.want("p-x", "gone", "v", "Released p-x")

		// That of somebody else is not taken over.
		w.put(claim("q-x", "1Gi"), podWith("q", scratch("x", "1Gi")))
		if got := find[*v1.PersistentVolumeClaim](w, "q-x"); len(got.OwnerReferences) > 0 {
			t.Errorf("a claim of others has the owner %v", got.OwnerReferences)
		}
		if diff := cmp.Diff([]string{
			"FailedBinding: ephemeral volume x: PVC default/q-x was not created for pod default/q (pod is not owner): delete that claim, or rename the pod or the volume",
		}, w.events("q")); diff != "" {
			t.Error(diff)
		}
		remove[*v1.PersistentVolumeClaim](w, "q-x")
		if got := find[*v1.PersistentVolumeClaim](w, "q-x"); got == nil || !metav1.IsControlledBy(got, find[*v1.Pod](w, "q")) {
			t.Errorf("after the other claim has gone there is %v", got)
		}

		// The claim of an older pod of its name is waited for, without a word.
		remove[*v1.Pod](w, "q")
		w.put(podWith("q", scratch("x", "1Gi")))
		w.take()
		remove[*v1.PersistentVolumeClaim](w, "q-x")
		if got := find[*v1.PersistentVolumeClaim](w, "q-x"); got == nil || !metav1.IsControlledBy(got, find[*v1.Pod](w, "q")) {
			t.Errorf("after the claim of the older pod has gone there is %v", got)
		}
		if got := w.events("q"); len(got) != 1 {
			t.Errorf("events %q", got)
		}
	})
}

// TestKilled ends the binder at each of its writes, and has another one go on.
func TestKilled(t *testing.T) {
	writes := 0
	for at, done := 0, false; !done; at++ {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.put(volume("v", "5Gi"), volume("w", "5Gi"), claim("data", "5Gi"), podWith("p", scratch("x", "1Gi")))
			n, killed := 0, errors.New("killed")
			w.failing(func(string) error {
				if n++; n > at {
					return killed
				}
				return nil
			})
			b, stop := w.start()
			if done = n <= at; !done && b.Health() == nil {
				t.Errorf("killed at call %d of %q: it is healthy", at, w.take())
			}
			stop()
			w.failing(nil)
			b, _ = w.start()
			w.want("data", "Bound v", "v", "Bound data")
			w.want("p-x", "Bound w", "w", "Bound p-x")
			if err := b.Health(); err != nil {
				t.Errorf("killed at call %d: %v", at, err)
			}
			writes = at
		})
	}
	if writes < 7 { // the claim, and for each pair Available, Bound, Bound
		t.Errorf("there were %d writes", writes)
	}
}

// TestRefused has a write fail: it is tried again after a while, and not before.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.failing(func(call string) error {
			if call == "update persistentvolumeclaims/default/data" {
				return errors.New("the disk is full")
			}
			return nil
		})
		w.put(volume("v", "5Gi"), claim("data", "5Gi"))
		b, _ := w.start()
		if err := b.Health(); err == nil || err.Error() != "binder of volumes: persistentvolumeclaims/default/data: the disk is full" {
			t.Errorf("health %v", err)
		}
		w.take()
		<-time.After(10 * time.Minute)
		if n := len(w.take()); n < 10 || n > 20 {
			t.Errorf("in ten minutes it tried %d times", n)
		}
		w.failing(nil)
		<-time.After(time.Minute)
		w.want("data", "Bound v", "v", "Bound data")
		if err := b.Health(); err != nil {
			t.Error(err)
		}
	})
}

// TestConflict has somebody change what the binder writes: it looks again when it sees the change.
func TestConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b, _ := w.start()
		conflict := apierrors.NewConflict(schema.GroupResource{Resource: "persistentvolumeclaims"}, "data", errors.New("it has changed"))
		w.failing(func(call string) error {
			if call == "update persistentvolumeclaims/default/data" {
				return conflict
			}
			return nil
		})
		w.put(volume("v", "5Gi"), claim("data", "5Gi"))
		calls := w.take()
		<-time.After(time.Hour)
		if more := w.take(); len(more) > 0 || len(calls) > 8 {
			t.Errorf("after a conflict it writes %q and later %q", calls, more)
		}
		if err := b.Health(); err != nil {
			t.Errorf("a conflict is no fault: %v", err)
		}
		w.failing(nil)
		edit(w, "data", func(c *v1.PersistentVolumeClaim) { c.Labels = map[string]string{"changed": "yes"} })
		w.want("data", "Bound v", "v", "Bound data")
	})
}

// TestEventIsOver has an event be taken away that tells of what lasts.
func TestEventIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, _ = w.start()
		w.put(claim("data", "5Gi"))
		for range 3 {
			if got := w.events("data"); len(got) != 1 {
				t.Fatalf("events %q", got)
			}
			var event string
			if _, err := w.store.List(store.Range{Resource: "events"}, func(i store.Item) bool { event = i.Key.Name; return true }); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Hour)
			remove[*v1.Event](w, event)
		}
	})
}

// TestCompacted has more happen during one write of the binder than the store remembers.
func TestCompacted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, _ = w.start()
		busy := sync.OnceFunc(func() {
			for i := range 2 * history {
				if err := w.write(claim(fmt.Sprintf("x%02d", i), "5Gi"), 0); err != nil {
					t.Error(err)
				}
			}
		})
		w.failing(func(string) error {
			busy()
			return nil
		})
		w.put(volume("v", "5Gi"))
		w.want("x00", "Bound v", "v", "Bound x00")
	})
}
