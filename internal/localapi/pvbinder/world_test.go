package pvbinder_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/pvbinder"
	"berth/internal/localapi/store"
)

const (
	node    = "n1"
	history = 32 // changes that the store remembers
)

// world is a store of objects, and what writes to it for a binder.
type world struct {
	*testing.T
	store *store.Store

	mu    sync.Mutex
	uids  int                     // guarded by mu
	calls []string                // guarded by mu; of the binder
	fail  func(call string) error // guarded by mu; called before a write of the binder
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s, err := store.Open(store.Config{Path: filepath.Join(t.TempDir(), "objects.db"), MaxHistory: history})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &world{T: t, store: s}
}

// start has a binder run until stop or the end of the test, and waits until it rests.
func (w *world) start() (b *pvbinder.Binder, stop func()) {
	b = pvbinder.New(pvbinder.Config{Store: w.store, Writer: w, NodeName: node, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("Run: %v", err)
		}
	})
	w.Cleanup(stop)
	synctest.Wait()
	return b, stop
}

func keyOf(o kinds.Object) store.Key {
	return store.Key{Resource: kinds.Of(o).Stored, Namespace: o.GetNamespace(), Name: o.GetName()}
}

// called notes a call of the binder, and fails it if the test wants that.
func (w *world) called(verb string, o kinds.Object) error {
	call := verb + " " + keyOf(o).String()
	if e, ok := o.(*v1.Event); ok {
		call = fmt.Sprintf("event %s/%s %s", strings.ToLower(e.InvolvedObject.Kind), e.InvolvedObject.Name, e.Reason)
	}
	w.mu.Lock()
	w.calls = append(w.calls, call)
	fail := w.fail
	w.mu.Unlock()
	if fail != nil {
		return fail(call)
	}
	return nil
}

// take returns the calls of the binder since the last time.
func (w *world) take() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	calls := w.calls
	w.calls = nil
	return calls
}

func (w *world) failing(fail func(call string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = fail
}

func (w *world) Create(_ context.Context, o kinds.Object) error {
	if err := w.called("create", o); err != nil {
		return err
	}
	return w.write(o.DeepCopyObject().(kinds.Object), 0)
}

func (w *world) Update(_ context.Context, o kinds.Object) error {
	if err := w.called("update", o); err != nil {
		return err
	}
	seen, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return fmt.Errorf("an update without a version: %w", err)
	}
	return w.write(o.DeepCopyObject().(kinds.Object), seen)
}

func (w *world) write(o kinds.Object, seen uint64) error {
	w.mu.Lock()
	if o.GetUID() == "" {
		w.uids++
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", w.uids)))
	}
	w.mu.Unlock()
	if o.GetCreationTimestamp().Time.IsZero() {
		o.SetCreationTimestamp(metav1.Now())
	}
	value, err := kinds.Encode(o)
	if err != nil {
		return err
	}
	_, err = w.store.Write(keyOf(o), seen, value)
	resource := kinds.Of(o).Resource()
	switch {
	case errors.Is(err, store.ErrConflict) && seen == 0:
		return apierrors.NewAlreadyExists(resource, o.GetName())
	case errors.Is(err, store.ErrConflict):
		return apierrors.NewConflict(resource, o.GetName(), err)
	case errors.Is(err, store.ErrNotFound):
		return apierrors.NewNotFound(resource, o.GetName())
	}
	return err
}

// put makes objects as clients do.
func (w *world) put(all ...kinds.Object) {
	w.Helper()
	<-time.After(time.Millisecond) // the names of events have the time
	for _, o := range all {
		if err := w.write(o.DeepCopyObject().(kinds.Object), 0); err != nil {
			w.Fatal(err)
		}
	}
	synctest.Wait()
}

// find reads an object; nil if it is not there.
func find[T kinds.Object](w *world, name string) T {
	w.Helper()
	var none T
	k := kinds.Of(reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T))
	key := store.Key{Resource: k.Stored, Name: name}
	if k.Namespaced {
		key.Namespace = "default"
	}
	item, err := w.store.Get(key)
	if errors.Is(err, store.ErrNotFound) {
		return none
	}
	if err != nil {
		w.Fatal(err)
	}
	o, err := kinds.Decode(item.Value, item.Revision)
	if err != nil {
		w.Fatal(err)
	}
	return o.(T)
}

// edit changes an object as a client does.
func edit[T kinds.Object](w *world, name string, how func(T)) {
	w.Helper()
	o := find[T](w, name)
	seen, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		w.Fatal(err)
	}
	how(o)
	if err := w.write(o, seen); err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
}

// remove takes an object away at once, as a client and the garbage collector do.
func remove[T kinds.Object](w *world, name string) {
	w.Helper()
	o := find[T](w, name)
	seen, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		w.Fatal(err)
	}
	if _, err := w.store.Write(keyOf(o), seen, nil); err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
}

// events are what was written about an object, in order: reason and message.
func (w *world) events(name string) (all []string) {
	w.Helper()
	var found []*v1.Event
	if _, err := w.store.List(store.Range{Resource: "events"}, func(item store.Item) bool {
		o, err := kinds.Decode(item.Value, item.Revision)
		if err != nil {
			w.Fatal(err)
		}
		found = append(found, o.(*v1.Event))
		return true
	}); err != nil {
		w.Fatal(err)
	}
	slices.SortFunc(found, func(a, b *v1.Event) int {
		return cmp.Or(len(a.ResourceVersion)-len(b.ResourceVersion), strings.Compare(a.ResourceVersion, b.ResourceVersion))
	})
	for _, e := range found {
		if e.InvolvedObject.Name == name {
			all = append(all, e.Reason+": "+e.Message)
		}
	}
	return all
}

// state is where a claim or a volume has come to, in one line.
func (w *world) state(o kinds.Object) string {
	w.Helper()
	switch o := o.(type) {
	case *v1.PersistentVolumeClaim:
		if o == nil {
			return "gone"
		}
		return strings.TrimSpace(fmt.Sprintf("%s %s", o.Status.Phase, o.Spec.VolumeName))
	case *v1.PersistentVolume:
		if o == nil {
			return "gone"
		}
		if o.Spec.ClaimRef == nil {
			return string(o.Status.Phase)
		}
		return fmt.Sprintf("%s %s", o.Status.Phase, o.Spec.ClaimRef.Name)
	}
	w.Fatalf("a %T has no state", o)
	return ""
}

// want compares the states of a claim and of a volume.
func (w *world) want(claim, claimState, volume, volumeState string) {
	w.Helper()
	synctest.Wait()
	if is := w.state(find[*v1.PersistentVolumeClaim](w, claim)); is != claimState {
		w.Errorf("claim %s is %q, not %q; events: %q", claim, is, claimState, w.events(claim))
	}
	if is := w.state(find[*v1.PersistentVolume](w, volume)); is != volumeState {
		w.Errorf("volume %s is %q, not %q; events: %q", volume, is, volumeState, w.events(volume))
	}
}

func volume(name, size string, edits ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	v := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}},
		Spec: v1.PersistentVolumeSpec{
			Capacity:                      v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)},
			AccessModes:                   []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany},
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/srv/" + name}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumePending},
	}
	for _, e := range edits {
		e(v)
	}
	return v
}

func claim(name, size string, edits ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	for _, e := range edits {
		e(c)
	}
	return c
}

func claimsClass(name string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func names(volume string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = volume }
}

func volumesClass(name string) func(*v1.PersistentVolume) {
	return func(v *v1.PersistentVolume) { v.Spec.StorageClassName = name }
}

func keptFor(claim string) func(*v1.PersistentVolume) {
	return func(v *v1.PersistentVolume) {
		v.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: claim}
	}
}

func reclaimed(p v1.PersistentVolumeReclaimPolicy) func(*v1.PersistentVolume) {
	return func(v *v1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = p }
}

func onNodes(value string) func(*v1.PersistentVolume) {
	return func(v *v1.PersistentVolume) {
		v.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: "disk", Operator: v1.NodeSelectorOpIn, Values: []string{value}}},
		}}}}
	}
}

func class(name, provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode}
}

func isDefault(c *storagev1.StorageClass) *storagev1.StorageClass {
	c.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
	return c
}

func theNode() *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"disk": "fast"}}}
}

func podWith(name string, volumes ...v1.Volume) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.PodSpec{NodeName: node, Volumes: volumes}}
}

func uses(claim string) v1.Volume {
	return v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
}

func scratch(name, size string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"of": name}}, Spec: claim("", size).Spec,
	}}}}
}
