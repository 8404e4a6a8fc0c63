package gc_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

func namespace(name string) *v1.Namespace {
	return &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NamespaceSpec{Finalizers: []v1.FinalizerName{v1.FinalizerKubernetes}}}
}

// defaults are what each namespace has in these tests.
func defaults(ns string) []kinds.Object {
	root := configMap(ns, "kube-root-ca.crt")
	root.Data = map[string]string{"ca.crt": "certificate"}
	return []kinds.Object{&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "default"}}, root}
}

func TestNamespaceHasDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		a.put(namespace("old"))
		a.start(defaults)
		a.put(namespace("new"))
		synctest.Wait()
		want := []string{
			"configmaps/new/kube-root-ca.crt", "configmaps/old/kube-root-ca.crt", "namespaces/new", "namespaces/old", "serviceaccounts/new/default", "serviceaccounts/old/default",
		}
		if diff := cmp.Diff(want, a.there()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		// What is deleted comes again, what is changed is as it was.
		a.remove(store.Key{Resource: "serviceaccounts", Namespace: "new", Name: "default"}, background)
		a.remove(key("old", "kube-root-ca.crt"), background)
		synctest.Wait()
		if diff := cmp.Diff(want, a.there()); diff != "" {
			t.Errorf("after deletions (-want +got):\n%s", diff)
		}
		other := configMap("new", "kube-root-ca.crt")
		other.Data = map[string]string{"ca.crt": "of yesterday", "more": "x"}
		a.put(other)
		changed := namespace("new")
		changed.UID, changed.Labels = "u", map[string]string{"a": "b"}
		a.put(changed)
		synctest.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		if got := a.get(key("new", "kube-root-ca.crt")).(*v1.ConfigMap).Data; !cmp.Equal(got, map[string]string{"ca.crt": "certificate"}) {
			t.Errorf("data %v", got)
		}
	})
}

func TestNamespaceIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		a.put(namespace("x"))
		a.put(namespace("y"))
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p", Finalizers: []string{"example.com/ends"}}}
		a.put(pod)
		a.put(configMap("x", "c"))
		a.put(configMap("y", "c"))
		a.put(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "s"}})
		collector := a.start(defaults)
		a.take()
		ns := store.Key{Resource: "namespaces", Name: "x"}
		a.remove(ns, background)
		synctest.Wait()
		// The pod ends first; what it uses is there until then, and the defaults do not come again.
		if diff := cmp.Diff([]string{"delete pods/x/p Background", "patch namespaces/x status"}, a.take()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		a.mu.Lock()
		o := a.get(ns).(*v1.Namespace)
		a.mu.Unlock()
		var conditions []string
		for _, c := range o.Status.Conditions {
			if c.Status == v1.ConditionTrue {
				conditions = append(conditions, fmt.Sprintf("%s %s: %s", c.Type, c.Reason, c.Message))
			}
		}
		want := []string{
			"NamespaceContentRemaining SomeResourcesRemain: Some resources are remaining: pods. has 1 resource instances",
			"NamespaceFinalizersRemaining SomeFinalizersRemain: Some content in the namespace has finalizers remaining: example.com/ends in 1 resource instances",
		}
		if diff := cmp.Diff(want, conditions); diff != "" || o.Status.Phase != v1.NamespaceTerminating || len(o.Status.Conditions) != 5 {
			t.Errorf("phase %s, conditions (-want +got):\n%s", o.Status.Phase, diff)
		}
		<-time.After(time.Hour)
		if calls := a.take(); len(calls) > 0 || collector.Health() != nil {
			t.Errorf("while it waits: %q, %v", calls, collector.Health())
		}
		a.mu.Lock()
		a.change(store.Key{Resource: "pods", Namespace: "x", Name: "p"}, nil)
		a.mu.Unlock()
		synctest.Wait()
		left := []string{"configmaps/y/c", "configmaps/y/kube-root-ca.crt", "namespaces/y", "serviceaccounts/y/default"}
		if diff := cmp.Diff(left, a.there()); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
	})
}

// TestNamespaceThatCannotEnd says what does not go, and goes on with the rest.
func TestNamespaceThatCannotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		a.put(namespace("x"))
		a.put(configMap("x", "a"))
		a.put(configMap("x", "b"))
		broken := errors.New("it does not go")
		a.fail = func(call string) error {
			if strings.HasPrefix(call, "delete configmaps/x/a") {
				return broken
			}
			return nil
		}
		c := a.start(nil)
		a.remove(store.Key{Resource: "namespaces", Name: "x"}, background)
		synctest.Wait()
		if diff := cmp.Diff([]string{"configmaps/x/a", "namespaces/x"}, a.there()); diff != "" || !errors.Is(c.Health(), broken) {
			t.Errorf("left %s; health %v", diff, c.Health())
		}
		a.mu.Lock()
		conditions := a.get(store.Key{Resource: "namespaces", Name: "x"}).(*v1.Namespace).Status.Conditions
		a.fail = nil
		a.mu.Unlock()
		if got := conditions[2]; got.Type != v1.NamespaceDeletionContentFailure || got.Status != v1.ConditionTrue || !strings.Contains(got.Message, "delete configmaps/x/a: it does not go") {
			t.Errorf("condition %+v", got)
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if left := a.there(); len(left) > 0 || c.Health() != nil {
			t.Errorf("left %q; health %v", left, c.Health())
		}
	})
}

func TestProtection(t *testing.T) {
	claim := func(name string) *v1.PersistentVolumeClaim {
		return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, Finalizers: []string{"kubernetes.io/pvc-protection"}}}
	}
	user := func(name, claim, node string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}, Spec: v1.PodSpec{NodeName: node, Volumes: []v1.Volume{
			{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}},
		}}}
	}
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		a.put(claim("used"))
		a.put(claim("free"))
		a.put(claim("p-own"))
		a.put(user("p", "used", "here"))
		a.put(user("waits", "free", ""))
		own := user("q", "another", "here")
		own.Name, own.Spec.Volumes[0] = "p", v1.Volume{Name: "own", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}
		own.Spec.Volumes = append(own.Spec.Volumes, user("p", "used", "here").Spec.Volumes...)
		a.put(own)
		volume := &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "bound", Finalizers: []string{"kubernetes.io/pv-protection"}}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
		}
		a.put(volume)
		free := volume.DeepCopy()
		free.Name, free.UID, free.Status.Phase = "free", "", v1.VolumeReleased
		a.put(free)
		a.start(nil)
		for _, name := range []string{"used", "free", "p-own"} {
			a.remove(store.Key{Resource: "persistentvolumeclaims", Namespace: "x", Name: name}, background)
		}
		for _, name := range []string{"bound", "free"} {
			a.remove(store.Key{Resource: "persistentvolumes", Name: name}, background)
		}
		synctest.Wait()
		want := []string{"persistentvolumeclaims/x/p-own", "persistentvolumeclaims/x/used", "persistentvolumes/bound", "pods/x/p", "pods/x/waits"}
		if diff := cmp.Diff(want, a.there()); diff != "" {
			t.Errorf("while they are used (-want +got):\n%s", diff)
		}
		a.remove(store.Key{Resource: "pods", Namespace: "x", Name: "p"}, background)
		a.mu.Lock()
		released := a.get(store.Key{Resource: "persistentvolumes", Name: "bound"}).(*v1.PersistentVolume)
		a.mu.Unlock()
		released.Status.Phase = v1.VolumeReleased
		a.put(released)
		synctest.Wait()
		if diff := cmp.Diff([]string{"pods/x/waits"}, a.there()); diff != "" {
			t.Errorf("in the end (-want +got):\n%s", diff)
		}
	})
}

// TestOldEvents counts from the last change of an event, also of one that was there at the start.
func TestOldEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		event := func(name string, last time.Duration) *v1.Event {
			return &v1.Event{
				ObjectMeta:    metav1.ObjectMeta{Namespace: "x", Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-3 * time.Hour))},
				LastTimestamp: metav1.NewTime(time.Now().Add(-last)),
			}
		}
		a.put(event("old", 2*time.Hour))
		a.put(event("repeated", 50*time.Minute))
		series := event("series", 2*time.Hour)
		series.Series = &v1.EventSeries{LastObservedTime: metav1.NewMicroTime(time.Now().Add(-10 * time.Minute))}
		a.put(series)
		a.start(nil)
		a.put(&eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "new"}})
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(want, a.there()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		<-time.After(time.Minute)
		expect("after a minute", "events/x/new", "events/x/repeated", "events/x/series")
		<-time.After(11 * time.Minute)
		expect("after 12", "events/x/new", "events/x/series")
		<-time.After(40 * time.Minute)
		expect("after 52", "events/x/new")
		a.put(&eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "new", UID: "again"}})
		<-time.After(58 * time.Minute)
		expect("58 minutes after its last change", "events/x/new")
		<-time.After(3 * time.Minute)
		expect("in the end")
		calls := len(a.take())
		<-time.After(24 * time.Hour)
		if more := a.take(); calls != 4 || len(more) > 0 {
			t.Errorf("%d calls, and %q afterwards", calls, more)
		}
	})
}
