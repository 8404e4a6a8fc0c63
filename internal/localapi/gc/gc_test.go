package gc_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

var (
	background = metav1.DeletePropagationBackground
	foreground = metav1.DeletePropagationForeground
	orphan     = metav1.DeletePropagationOrphan
)

func key(namespace, name string) store.Key {
	return store.Key{Resource: "configmaps", Namespace: namespace, Name: name}
}

func TestOwners(t *testing.T) {
	for _, c := range []struct {
		name  string
		setUp func(a *api)
		act   func(a *api)
		left  []string
		calls []string
	}{
		{
			name: "an owner that lives",
			setUp: func(a *api) {
				a.put(configMap("x", "d", ownedBy("ConfigMap", "o", a.put(configMap("x", "o")))))
			},
			left: []string{"configmaps/x/d", "configmaps/x/o"},
		},
		{
			name:  "an owner that never was",
			setUp: func(a *api) { a.put(configMap("x", "d", ownedBy("Secret", "o", "none"))) },
			calls: []string{"delete configmaps/x/d Background"},
		},
		{
			name: "another object of the owner's name",
			setUp: func(a *api) {
				a.put(configMap("x", "o"))
				a.put(configMap("x", "d", ownedBy("ConfigMap", "o", "of an older one")))
			},
			left: []string{"configmaps/x/o"}, calls: []string{"delete configmaps/x/d Background"},
		},
		{
			name: "an owner of a kind that is not known",
			setUp: func(a *api) {
				a.put(configMap("x", "d", metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "o", UID: "u"}))
			},
			left: []string{"configmaps/x/d"},
		},
		{
			name: "one of two owners",
			setUp: func(a *api) {
				a.put(configMap("x", "d", ownedBy("ConfigMap", "o", a.put(configMap("x", "o"))), ownedBy("ConfigMap", "gone", "gone")))
			},
			left: []string{"configmaps/x/d", "configmaps/x/o"}, calls: []string{"patch configmaps/x/d"},
		},
		{
			name: "a chain in the background",
			setUp: func(a *api) {
				o := a.put(configMap("x", "o"))
				d := a.put(configMap("x", "d", ownedBy("ConfigMap", "o", o)))
				a.put(configMap("x", "e", ownedBy("ConfigMap", "d", d)))
			},
			act:   func(a *api) { a.remove(key("x", "o"), background) },
			calls: []string{"delete configmaps/x/d Background", "delete configmaps/x/e Background"},
		},
		{
			name: "a chain in the foreground",
			setUp: func(a *api) {
				o := a.put(configMap("x", "o"))
				d := a.put(configMap("x", "d", blocking(ownedBy("ConfigMap", "o", o))))
				a.put(configMap("x", "e", blocking(ownedBy("ConfigMap", "d", d))))
			},
			act: func(a *api) { a.remove(key("x", "o"), foreground) },
			calls: []string{
				"delete configmaps/x/d Foreground", "delete configmaps/x/e Background", "patch configmaps/x/d", "patch configmaps/x/o",
			},
		},
		{
			name: "the foreground, with one that does not block",
			setUp: func(a *api) {
				a.put(configMap("x", "d", ownedBy("ConfigMap", "o", a.put(configMap("x", "o")))))
			},
			act:   func(a *api) { a.remove(key("x", "o"), foreground) },
			calls: []string{"patch configmaps/x/o", "delete configmaps/x/d Background"},
		},
		{
			name: "orphans",
			setUp: func(a *api) {
				o := a.put(configMap("x", "o"))
				for _, name := range []string{"d", "e"} {
					a.put(configMap("x", name, blocking(ownedBy("ConfigMap", "o", o))))
				}
			},
			act:  func(a *api) { a.remove(key("x", "o"), orphan) },
			left: []string{"configmaps/x/d", "configmaps/x/e"}, calls: []string{"patch configmaps/x/d", "patch configmaps/x/e", "patch configmaps/x/o"},
		},
		{
			name: "a dependant that has asked for orphans of its own",
			setUp: func(a *api) {
				o := a.put(configMap("x", "o"))
				d := configMap("x", "d", ownedBy("ConfigMap", "o", o))
				d.Finalizers = []string{metav1.FinalizerOrphanDependents}
				a.put(configMap("x", "e", ownedBy("ConfigMap", "d", a.put(d))))
			},
			act:   func(a *api) { a.remove(key("x", "o"), background) },
			left:  []string{"configmaps/x/e"},
			calls: []string{"delete configmaps/x/d Orphan", "patch configmaps/x/e", "patch configmaps/x/d"},
		},
		{
			name: "a cluster's owner",
			setUp: func(a *api) {
				a.put(configMap("x", "d", ownedBy("Node", "here", a.put(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}}))))
			},
			act:   func(a *api) { a.remove(store.Key{Resource: "nodes", Name: "here"}, background) },
			calls: []string{"delete configmaps/x/d Background"},
		},
		{
			name: "a finalizer of somebody else",
			setUp: func(a *api) {
				d := configMap("x", "d", ownedBy("ConfigMap", "o", "none"))
				d.Finalizers = []string{"example.com/mine"}
				a.put(d)
			},
			left: []string{"configmaps/x/d"}, calls: []string{"delete configmaps/x/d Background"},
		},
		{
			name: "a dependant that comes later than the end of its owner",
			act: func(a *api) {
				o := a.put(configMap("x", "o"))
				a.remove(key("x", "o"), background)
				a.put(configMap("x", "d", ownedBy("ConfigMap", "o", o)))
			},
			calls: []string{"delete configmaps/x/d Background"},
		},
		{
			name: "two that own each other, in the foreground",
			setUp: func(a *api) {
				a.put(withUID(configMap("x", "a", blocking(ownedBy("ConfigMap", "b", "ub"))), "ua"))
				a.put(withUID(configMap("x", "b", blocking(ownedBy("ConfigMap", "a", "ua"))), "ub"))
			},
			act: func(a *api) { a.remove(key("x", "a"), foreground) },
			calls: []string{
				"patch configmaps/x/b", "delete configmaps/x/b Foreground", "patch configmaps/x/a", "patch configmaps/x/b",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPI(t)
				if c.setUp != nil {
					c.setUp(a)
				}
				collector := a.start(nil)
				if c.act != nil {
					if calls := a.take(); len(calls) > 0 {
						t.Errorf("at the start: %q", calls)
					}
					c.act(a)
				}
				<-time.After(10 * time.Minute)
				synctest.Wait()
				if diff := cmp.Diff(c.left, a.there()); diff != "" {
					t.Errorf("left (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(c.calls, a.take()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
				if err := collector.Health(); err != nil {
					t.Errorf("health: %v", err)
				}
			})
		})
	}
}

func withUID(o *v1.ConfigMap, uid types.UID) *v1.ConfigMap {
	o.UID = uid
	return o
}

// TestOwnersElsewhere tells of owners that are in no place where they can own.
func TestOwnersElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		o := a.put(configMap("x", "o"))
		a.put(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", OwnerReferences: []metav1.OwnerReference{ownedBy("ConfigMap", "o", o)}}})
		a.put(configMap("y", "d", ownedBy("ConfigMap", "o", o)))
		a.start(nil)
		got := strings.Join(a.there(), " ")
		if !strings.Contains(got, "nodes/n") || strings.Contains(got, "configmaps/y/d") {
			t.Errorf("left: %s", got)
		}
		var told []string
		a.mu.Lock()
		for k := range a.items {
			if e, ok := a.get(k).(*v1.Event); ok {
				told = append(told, fmt.Sprintf("%s %s/%s %s: %s", e.Namespace, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message))
			}
		}
		a.mu.Unlock()
		slices.Sort(told)
		want := []string{
			`default Node/n OwnerRefInvalidNamespace: ownerRef [v1/ConfigMap, namespace: , name: o, uid: uid-1] does not exist in namespace ""`,
			`y ConfigMap/d OwnerRefInvalidNamespace: ownerRef [v1/ConfigMap, namespace: y, name: o, uid: uid-1] does not exist in namespace "y"`,
		}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Error(diff)
		}
		// The Node changes: it is told of once.
		a.take()
		a.put(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-2", Labels: map[string]string{"a": "b"}, OwnerReferences: []metav1.OwnerReference{ownedBy("ConfigMap", "o", o)}}})
		synctest.Wait()
		if calls := a.take(); len(calls) > 0 {
			t.Errorf("again: %q", calls)
		}
	})
}

// TestFailures tries again what has failed, later each time, and says so until it is done.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		broken := errors.New("the registry is away")
		a.fail = func(string) error { return broken }
		a.put(configMap("x", "d", ownedBy("ConfigMap", "o", "none")))
		c := a.start(nil)
		if err := c.Health(); !errors.Is(err, broken) || !strings.Contains(err.Error(), "configmaps/x/d") {
			t.Errorf("health: %v", err)
		}
		<-time.After(5 * time.Minute)
		if n := len(a.take()); n < 8 || n > 12 { // after 1, 2, 4, … 60 s
			t.Errorf("%d calls in five minutes", n)
		}
		a.mu.Lock()
		a.fail = nil
		a.mu.Unlock()
		<-time.After(time.Minute)
		synctest.Wait()
		if err := c.Health(); err != nil || len(a.there()) > 0 {
			t.Errorf("health: %v; left %q", err, a.there())
		}
	})
}

// TestConflict decides anew when an object has changed in between.
func TestConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		o := a.put(configMap("x", "o"))
		once := false
		a.fail = func(string) error {
			if once {
				return nil
			}
			once = true
			// Somebody gives it an owner that lives, just before it is deleted.
			now := configMap("x", "d", ownedBy("ConfigMap", "o", o))
			now.UID = "d"
			a.change(key("x", "d"), now)
			return nil
		}
		a.put(withUID(configMap("x", "d", ownedBy("ConfigMap", "gone", "gone")), "d"))
		c := a.start(nil)
		<-time.After(time.Hour)
		synctest.Wait()
		if diff := cmp.Diff([]string{"configmaps/x/d", "configmaps/x/o"}, a.there()); diff != "" || c.Health() != nil {
			t.Errorf("%s; %v", diff, c.Health())
		}
		if got := a.take(); len(got) != 1 {
			t.Errorf("calls %q", got)
		}
	})
}

// TestCompacted misses changes, and looks at everything again.
func TestCompacted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t)
		o := a.put(configMap("x", "o"))
		a.put(configMap("x", "d", ownedBy("ConfigMap", "o", o)))
		a.start(nil)
		a.mu.Lock()
		a.change(key("x", "o"), nil)
		a.compact()
		a.mu.Unlock()
		synctest.Wait()
		if left := a.there(); len(left) > 0 {
			t.Errorf("left %q", left)
		}
	})
}

// TestUnreadable has an owner that cannot be read, from the start or from some time on: nobody is
// deleted for it, others are collected.
func TestUnreadable(t *testing.T) {
	for _, from := range []string{"the start", "later"} {
		synctest.Test(t, func(t *testing.T) {
			a := newAPI(t)
			a.put(configMap("x", "d", ownedBy("ConfigMap", "o", a.put(configMap("x", "o")))))
			spoil := func() {
				a.mu.Lock()
				defer a.mu.Unlock()
				a.change(key("x", "o"), configMap("x", "o"))
				for _, broken := range [][]byte{[]byte("{}"), []byte("k8s\x00\xff")} {
					item := a.items[key("x", "o")]
					item.Value = broken
					a.items[item.Key] = item
					a.history[len(a.history)-1].Now.Value = broken
				}
			}
			if from == "the start" {
				spoil()
			}
			c := a.start(nil)
			if from == "later" {
				spoil()
			}
			a.put(configMap("x", "e", ownedBy("Secret", "s", "none")))
			synctest.Wait()
			if diff := cmp.Diff([]string{"configmaps/x/d", "configmaps/x/o"}, a.there()); diff != "" {
				t.Errorf("from %s (-want +got):\n%s", from, diff)
			}
			if err := c.Health(); err == nil || !strings.Contains(err.Error(), "configmaps/x/o") {
				t.Errorf("from %s: health %v", from, err)
			}
		})
	}
}

// TestRandomGraphs deletes objects of random graphs in each way. What a collector deletes has no
// owner that lives; in the end there is what a model has, which knows no order.
func TestRandomGraphs(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			a := newAPI(t)
			m := newModel(a, r)
			a.onDelete = m.mayGo
			a.start(nil)
			m.check(t, fmt.Sprintf("seed %d, at the start", seed))
			for step := range 12 {
				what := m.step(r)
				synctest.Wait()
				m.check(t, fmt.Sprintf("seed %d, step %d, %s", seed, step, what))
			}
		})
	}
}

// model is which objects there are to be, and whose they are.
type model struct {
	a      *api
	owners map[string][]types.UID // by name of those that are to be there
	uid    map[string]types.UID
}

func newModel(a *api, r *rand.Rand) *model {
	m := &model{a: a, owners: map[string][]types.UID{}, uid: map[string]types.UID{}}
	n := 2 + r.IntN(14)
	for i := range n {
		m.uid[fmt.Sprint("o", i)] = types.UID(fmt.Sprint("uid-of-", i))
	}
	for i := range n {
		m.add(fmt.Sprint("o", i), n, r)
	}
	m.settle()
	return m
}

// add makes an object with owners of any kind: before it, after it, in a circle, or none that is.
func (m *model) add(name string, n int, r *rand.Rand) {
	o := configMap("x", name)
	o.UID = m.uid[name]
	seen := map[types.UID]bool{}
	for range r.IntN(4) {
		owner := fmt.Sprint("o", r.IntN(n+1)) // the last is not there
		uid := m.uid[owner]
		if r.IntN(8) == 0 {
			uid = "of another time"
		}
		if uid == "" {
			uid = "never was"
		}
		if seen[uid] || owner == name {
			continue
		}
		seen[uid] = true
		ref := ownedBy("ConfigMap", owner, uid)
		if r.IntN(2) == 0 {
			ref = blocking(ref)
		}
		o.OwnerReferences = append(o.OwnerReferences, ref)
	}
	m.owners[name] = nil
	for _, ref := range o.OwnerReferences {
		m.owners[name] = append(m.owners[name], ref.UID)
	}
	m.a.put(o)
}

// settle takes away what has owners, and none that is there, until nothing changes. References to
// what is gone go too.
func (m *model) settle() {
	for changed := true; changed; {
		changed = false
		there := map[types.UID]bool{}
		for name := range m.owners {
			there[m.uid[name]] = true
		}
		for name, owners := range m.owners {
			if len(owners) > 0 && !slices.ContainsFunc(owners, func(u types.UID) bool { return there[u] }) {
				delete(m.owners, name)
				changed = true
				break
			}
		}
	}
	there := map[types.UID]bool{}
	for name := range m.owners {
		there[m.uid[name]] = true
	}
	for name, owners := range m.owners {
		m.owners[name] = slices.DeleteFunc(owners, func(u types.UID) bool { return !there[u] })
	}
}

// step deletes an object, or makes one anew.
func (m *model) step(r *rand.Rand) string {
	name := fmt.Sprint("o", r.IntN(len(m.uid)))
	if _, ok := m.owners[name]; !ok {
		m.uid[name] = types.UID(fmt.Sprint("uid-", r.Uint64()))
		m.add(name, len(m.uid), r)
		m.settle()
		return "make " + name
	}
	policy := []metav1.DeletionPropagation{background, foreground, orphan}[r.IntN(3)]
	delete(m.owners, name)
	if policy == orphan {
		for other, owners := range m.owners {
			m.owners[other] = slices.DeleteFunc(owners, func(u types.UID) bool { return u == m.uid[name] })
		}
	}
	m.settle()
	m.a.remove(key("x", name), policy)
	return "delete " + name + " " + string(policy)
}

// mayGo is called before a collector deletes an object. mu of the api is held.
func (m *model) mayGo(o kinds.Object) {
	for _, r := range o.GetOwnerReferences() {
		owner := m.a.get(key("x", r.Name))
		if owner == nil || owner.GetUID() != r.UID || owner.GetDeletionTimestamp() != nil {
			continue
		}
		m.a.t.Errorf("%s is deleted, and its owner %s lives", o.GetName(), r.Name)
	}
}

func (m *model) check(t *testing.T, when string) {
	t.Helper()
	var want []string
	for name := range m.owners {
		want = append(want, "configmaps/x/"+name)
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, m.a.there()); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", when, diff)
	}
	m.a.mu.Lock()
	defer m.a.mu.Unlock()
	for name, owners := range m.owners {
		o := m.a.get(key("x", name))
		var have []types.UID
		for _, r := range o.GetOwnerReferences() {
			have = append(have, r.UID)
		}
		slices.Sort(have)
		slices.Sort(owners)
		if !slices.Equal(have, owners) || len(o.GetFinalizers()) > 0 || o.GetDeletionTimestamp() != nil {
			t.Fatalf("%s: %s has the owners %q, want %q; finalizers %q", when, name, have, owners, o.GetFinalizers())
		}
	}
}
