package manifests_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/manifests"
	"berth/internal/localapi/store"
)

var _ manifests.Store = (*store.Store)(nil)

const file = "/etc/pods/web.yaml"

var discard = slog.New(slog.DiscardHandler)

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "web", Name: name, Labels: map[string]string{"app": "web"}}
}

func configMap(value string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: meta("app"), Data: map[string]string{"value": value}}
}

func claim() *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{ObjectMeta: meta("data"), Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, VolumeMode: ptr.To(v1.PersistentVolumeFilesystem),
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
}

func volume(claim string) *v1.PersistentVolume {
	v := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: v1.PersistentVolumeSpec{
		Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/srv/v"}},
	}}
	if claim != "" {
		v.Spec.ClaimRef = &v1.ObjectReference{Namespace: "web", Name: claim}
	}
	return v
}

// defined has all objects be of one file.
func defined(all ...kinds.Object) (d manifests.Defined) {
	for _, o := range all {
		d.Objects = append(d.Objects, manifests.Object{Object: o, Path: file})
	}
	return d
}

func set(t *testing.T, a *manifests.Applier, d manifests.Defined) {
	t.Helper()
	if err := a.Set(t.Context(), d); err != nil {
		t.Error(err)
	}
	synctest.Wait()
}

func wantCalls(w *world, want ...string) {
	w.Helper()
	if diff := cmp.Diff(want, w.take()); diff != "" {
		w.Error(diff)
	}
}

// A manifest replaces an object that the API has from the beginning.
func TestDefaultObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "runc", Annotations: map[string]string{manifests.DefaultAnnotation: "true"}}, Handler: "runc"})
		class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "runc"}, Handler: "crun"}
		set(t, w.applier(), defined(class))
		wantCalls(w, "update runtimeclasses.node.k8s.io/runc")
		if is := find(w, class); is.Handler != "crun" || is.Annotations[manifests.DefaultAnnotation] != "" || is.Annotations["berth.dev/manifest"] != file {
			t.Errorf("class = %+v", is)
		}
	})
}

// TestAllKinds has an object of each kind come, stay, and go with its file.
func TestAllKinds(t *testing.T) {
	all := []kinds.Object{
		configMap("a"),
		&v1.Secret{ObjectMeta: meta("key"), Type: v1.SecretTypeOpaque, Data: map[string][]byte{"key": []byte("secret")}},
		claim(), volume("data"),
		&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata"}, Handler: "kata"},
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "csi.example.com"}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}},
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "there"}})
		a := w.applier()
		d := defined(all...)
		d.Namespaces = []string{"there", "pods"}
		set(t, a, d)
		wantCalls(w, "create namespaces/pods", "create namespaces/web", "create configmaps/web/app", "create secrets/web/key", "create persistentvolumeclaims/web/data",
			"create persistentvolumes/v", "create runtimeclasses.node.k8s.io/kata", "create csidrivers.storage.k8s.io/csi.example.com")
		for _, o := range all {
			if is := find(w, o); is.GetAnnotations()["berth.dev/manifest"] != file {
				t.Errorf("%T has the annotations %v", o, is.GetAnnotations())
			}
		}
		ns := find(w, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
		if ns.Labels["kubernetes.io/metadata.name"] != "web" || len(ns.Spec.Finalizers) != 1 || ns.Status.Phase != v1.NamespaceActive {
			t.Errorf("the namespace is %v", ns)
		}

		// Again, and after a restart, nothing is written.
		set(t, a, d)
		set(t, w.applier(), d)
		wantCalls(w)

		// After a restart without the file, all are gone but the namespaces. What pods may use is
		// only asked to go.
		a = w.applier()
		wantCalls(w)
		set(t, a, manifests.Defined{Incomplete: true}) // its file may not have been read yet
		wantCalls(w)
		set(t, a, manifests.Defined{})
		wantCalls(w, "delete configmaps/web/app", "delete secrets/web/key", "delete persistentvolumeclaims/web/data",
			"delete persistentvolumes/v", "delete runtimeclasses.node.k8s.io/kata", "delete csidrivers.storage.k8s.io/csi.example.com")
		set(t, a, manifests.Defined{})
		wantCalls(w)
		if find(w, claim()).DeletionTimestamp == nil {
			t.Error("the claim is not deleted")
		}
		if there := w.there(); len(there) != 5 || !there["namespaces/web"] {
			t.Errorf("there are %v", there)
		}
	})
}

// TestChanged has a file change, and somebody else change its objects.
func TestChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.applier()
		set(t, a, defined(configMap("a")))
		uid := find(w, configMap("")).UID
		w.take()
		set(t, a, defined(configMap("b")))
		wantCalls(w, "update configmaps/web/app")
		edit(w, configMap(""), func(m *v1.ConfigMap) {
			m.Data, m.Labels, m.Annotations["example.com/by"] = map[string]string{"more": "x"}, nil, "me"
		})
		wantCalls(w)
		set(t, a, defined(configMap("b")))
		is := find(w, configMap(""))
		if diff := cmp.Diff(configMap("b").Data, is.Data); diff != "" || is.Labels["app"] != "web" || is.Annotations["example.com/by"] != "" || is.UID != uid {
			t.Errorf("it is %v", is)
		}

		// One that was deleted comes back with the next change.
		drop(w, configMap(""))
		w.take()
		set(t, a, defined(configMap("b")))
		wantCalls(w, "create configmaps/web/app")

		// A file that gets another name has the same objects.
		d := defined(configMap("b"))
		d.Objects[0].Path = "/etc/pods/shop.yaml"
		set(t, a, d)
		wantCalls(w, "update configmaps/web/app")
		if got := find(w, configMap("")).Annotations["berth.dev/manifest"]; got != "/etc/pods/shop.yaml" {
			t.Errorf("it is marked as that of %s", got)
		}
	})
}

// TestBound keeps what others write on claims and volumes.
func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.applier()
		for _, v := range []*v1.PersistentVolume{volume(""), volume("data")} {
			d := defined(claim(), v)
			set(t, a, d)
			c := find(w, claim())
			edit(w, claim(), func(c *v1.PersistentVolumeClaim) {
				c.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
				c.Spec.VolumeName, c.Spec.StorageClassName, c.Status.Phase = "v", ptr.To("standard"), v1.ClaimBound
			})
			edit(w, v, func(v *v1.PersistentVolume) {
				v.Annotations["pv.kubernetes.io/bound-by-controller"] = "yes"
				v.Spec.ClaimRef = &v1.ObjectReference{Namespace: "web", Name: "data", UID: c.UID}
				v.Status.Phase = v1.VolumeBound
			})
			w.take()
			set(t, a, d)
			wantCalls(w)
		}

		// A volume that its file gives to a claim is given to the next claim of that name; one that
		// the file gives to nobody stays with the claim that is gone.
		released := func(v *v1.PersistentVolume) { v.Status.Phase = v1.VolumeReleased }
		edit(w, volume(""), released)
		set(t, a, defined(claim(), volume("")))
		wantCalls(w)
		set(t, a, defined(claim(), volume("data")))
		wantCalls(w, "update persistentvolumes/v")
		if got := find(w, volume("")).Spec.ClaimRef; got == nil || got.Name != "data" || got.UID != "" {
			t.Errorf("the volume is kept for %v", got)
		}
	})
}

// TestForeign has objects of others be in the way, or look like those of files.
func TestForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.applier()
		theirs := configMap("theirs")
		w.put(theirs)
		err := a.Set(t.Context(), defined(configMap("ours"), volume("")))
		const want = "/etc/pods/web.yaml: ConfigMap web/app: it exists already, and was not created from a manifest: delete it (kubectl delete configmaps app -n web), or rename the object in the file"
		if err == nil || err.Error() != want || a.Health() == nil || a.Health().Error() != want {
			t.Errorf("set: %v; health: %v", err, a.Health())
		}
		if find(w, theirs).Data["value"] != "theirs" || find(w, volume("")) == nil {
			t.Error("an object of others was changed, or the rest was not written")
		}
		w.take()
		reads := w.reads.Load()
		<-time.After(time.Hour)
		if n := w.reads.Load() - reads; n > 0 {
			t.Errorf("what only others can change was looked at %d times", n)
		}
		wantCalls(w)

		// When it goes, that of the file comes.
		drop(w, theirs)
		wantCalls(w, "create configmaps/web/app")
		if err := a.Health(); err != nil {
			t.Error(err)
		}

		// A copy of it with its annotations is not that of the file, and stays; so does one whose
		// mark was taken away.
		other := find(w, theirs)
		other.Name, other.UID, other.ResourceVersion = "other", "", ""
		w.put(other)
		edit(w, volume(""), func(v *v1.PersistentVolume) { delete(v.Annotations, "berth.dev/manifest") })
		w.take()
		set(t, a, manifests.Defined{})
		wantCalls(w, "delete configmaps/web/app")
	})
}

// TestWaits has what is in the way go by and by.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.applier()
		wants := func(part string) {
			t.Helper()
			synctest.Wait()
			if err := a.Health(); err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("health %v lacks %q", err, part)
			}
		}
		set(t, a, defined(claim()))
		set(t, a, manifests.Defined{})
		if err := a.Set(t.Context(), defined(claim())); err == nil {
			t.Error("a claim that is being deleted was made")
		}
		wants("PersistentVolumeClaim web/data: it is being deleted")
		edit(w, claim(), func(c *v1.PersistentVolumeClaim) { c.Finalizers = nil })
		drop(w, claim())
		if err := a.Health(); err != nil || find(w, claim()) == nil {
			t.Errorf("after it was gone: %v", err)
		}

		ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
		now := metav1.Now()
		edit(w, ns, func(n *v1.Namespace) { n.DeletionTimestamp = &now })
		if err := a.Set(t.Context(), defined(claim(), configMap("a"))); err == nil {
			t.Error("an object was made in a namespace that is being deleted")
		}
		wants("ConfigMap web/app: namespace web: it is being deleted")
		drop(w, ns)
		if err := a.Health(); err != nil || find(w, configMap("")) == nil || find(w, ns) == nil {
			t.Errorf("after it was gone: %v", err)
		}

		immutable := configMap("a")
		immutable.Immutable = ptr.To(true)
		set(t, a, defined(immutable))
		if err := a.Set(t.Context(), defined(configMap("b"))); err == nil {
			t.Error("an immutable object was changed")
		}
		wants("ConfigMap web/app: it is immutable: delete it (kubectl delete configmaps app -n web), or give the new values another name")
		drop(w, immutable)
		if err := a.Health(); err != nil || find(w, configMap("")).Data["value"] != "b" {
			t.Errorf("after it was gone: %v", err)
		}
	})
}

// TestFails has writes fail: they are tried again, less and less often.
func TestFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.applier()
		w.failing(func(string) error { return errors.New("the disk is full") })
		if err := a.Set(t.Context(), defined(volume(""))); err == nil || err.Error() != "/etc/pods/web.yaml: PersistentVolume v: the disk is full" {
			t.Error(err)
		}
		<-time.After(10 * time.Minute)
		if n := len(w.take()); n < 10 || n > 20 {
			t.Errorf("it was tried %d times in ten minutes", n)
		}
		w.failing(nil)
		<-time.After(time.Minute)
		wantCalls(w, "create persistentvolumes/v")
		if err := a.Health(); err != nil {
			t.Error(err)
		}
	})
}

// TestConflict has somebody write an object at the same time.
func TestConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.applier()
		set(t, a, defined(configMap("a")))
		times := 0
		w.failing(func(string) error {
			if times++; times < 3 {
				o := find(w, configMap(""))
				o.Data["other"] = strings.Repeat("x", times)
				return w.write(o, version(w, o))
			}
			return nil
		})
		set(t, a, defined(configMap("b")))
		if diff := cmp.Diff(configMap("b").Data, find(w, configMap("")).Data); diff != "" || times != 3 {
			t.Errorf("after %d times: %s", times, diff)
		}
	})
}

// TestConflictOfARemoval has somebody write an object, or delete it, when its manifest has gone.
func TestConflictOfARemoval(t *testing.T) {
	for name, meanwhile := range map[string]func(w *world, o *v1.ConfigMap) error{
		"written": func(w *world, o *v1.ConfigMap) error {
			o.Labels = map[string]string{"of": "somebody"}
			return w.write(o, version(w, o))
		},
		"deleted": func(w *world, o *v1.ConfigMap) error { return w.remove(o) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				a := w.applier()
				set(t, a, defined(configMap("a")))
				done := false
				w.failing(func(call string) error {
					if done || !strings.HasPrefix(call, "delete") {
						return nil
					}
					done = true
					return meanwhile(w, find(w, configMap("")))
				})
				set(t, a, defined())
				if !done || w.there()[keyOf(configMap("")).String()] {
					t.Errorf("it is left: %v", w.there())
				}
			})
		})
	}
}

// TestKilled stops the Applier before each of its writes; another one completes the rest.
func TestKilled(t *testing.T) {
	writes := 0
	for done := false; !done; writes++ {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			old := configMap("old")
			old.Name = "old"
			set(t, w.applier(), defined(old, configMap("a")))
			n := 0
			w.failing(func(string) error {
				if n++; n > writes {
					return errors.New("killed")
				}
				return nil
			})
			d := defined(configMap("b"), claim(), volume("data"))
			d.Namespaces = []string{"pods"}
			a := manifests.New(manifests.Config{Store: w.store, Writer: w, Log: discard})
			if done = a.Set(t.Context(), d) == nil; done != (n <= writes) {
				t.Errorf("killed before write %d of %d", writes, n)
			}
			w.failing(nil)
			set(t, w.applier(), d)
			if diff := cmp.Diff(map[string]bool{
				"namespaces/web": true, "namespaces/pods": true, "configmaps/web/app": true, "persistentvolumeclaims/web/data": true, "persistentvolumes/v": true,
			}, w.there()); diff != "" || find(w, configMap("")).Data["value"] != "b" {
				t.Errorf("killed before write %d: %s", writes, diff)
			}
		})
	}
	if writes != 6 {
		t.Errorf("there were %d writes", writes)
	}
}

func TestUnknownKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.applier()
		err := a.Set(t.Context(), defined(&certificatesv1beta1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "roots"}}, &v1.ServiceAccount{ObjectMeta: meta("p")}, volume("")))
		const why = ": manifests define no objects of this kind for the local API: only pods, configmaps, secrets, persistentvolumeclaims, persistentvolumes, runtimeclasses.node.k8s.io, csidrivers.storage.k8s.io"
		if want := file + ": *v1.ServiceAccount web/p" + why + "\n" + file + ": *v1beta1.ClusterTrustBundle roots" + why; err == nil || err.Error() != want {
			t.Error(err)
		}
		wantCalls(w, "create persistentvolumes/v")
	})
}
