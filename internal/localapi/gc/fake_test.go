package gc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/localapi/gc"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// api is a store in memory, and what an API server does over it of what matters here:
// preconditions, policies of deletion, finalizers, JSON merge patches.
type api struct {
	t *testing.T

	mu       sync.Mutex
	revision uint64                   // guarded by mu
	items    map[store.Key]store.Item // guarded by mu
	history  []store.Change           // guarded by mu
	floor    uint64                   // guarded by mu; changes after it are known
	more     chan struct{}            // guarded by mu
	uids     int                      // guarded by mu
	calls    []string                 // guarded by mu; of the collector
	fail     func(call string) error  // guarded by mu
	onDelete func(o kinds.Object)     // guarded by mu; called with mu held
}

func newAPI(t *testing.T) *api {
	return &api{t: t, revision: 1, floor: 1, items: map[store.Key]store.Item{}, more: make(chan struct{})}
}

func (a *api) Get(key store.Key) (store.Item, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	item, ok := a.items[key]
	if !ok {
		return store.Item{}, fmt.Errorf("get %s: %w", key, store.ErrNotFound)
	}
	return item, nil
}

func (a *api) List(r store.Range, yield func(store.Item) bool) (uint64, error) {
	a.mu.Lock()
	all, revision := maps.Clone(a.items), a.revision
	a.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(all), func(x, y store.Key) int { return strings.Compare(x.String(), y.String()) })
	for _, key := range keys {
		if key.Resource != r.Resource || r.Namespace != "" && key.Namespace != r.Namespace {
			continue
		}
		item := all[key]
		lent := slices.Clone(item.Value)
		item.Value = lent
		on := yield(item)
		clear(lent) // it may be read in the call alone
		if !on {
			break
		}
	}
	return revision, nil
}

func (a *api) Revision() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.revision
}

func (a *api) Since(ctx context.Context, revision uint64) ([]store.Change, error) {
	for {
		a.mu.Lock()
		var found []store.Change
		for _, c := range a.history {
			if c.Now.Revision > revision {
				found = append(found, c)
			}
		}
		more, compacted := a.more, revision < a.floor
		a.mu.Unlock()
		switch {
		case compacted:
			return nil, store.ErrCompacted
		case len(found) > 0:
			return found, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// compact forgets all changes. mu is held.
func (a *api) compact() { a.floor, a.history = a.revision, nil }

// change writes what is now of a key; nil removes it. mu is held.
func (a *api) change(key store.Key, o kinds.Object) {
	a.revision++
	c := store.Change{Now: store.Item{Key: key, Revision: a.revision}, Before: a.items[key]}
	c.Before.Key = key
	delete(a.items, key)
	if o != nil {
		o.SetResourceVersion("")
		c.Now.Value = encode(a.t, o)
		a.items[key] = c.Now
	}
	a.history = append(a.history, c)
	close(a.more)
	a.more = make(chan struct{})
}

func encode(t *testing.T, o kinds.Object) []byte {
	info, _ := runtime.SerializerInfoForMediaType(kinds.Codecs().SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	b, err := runtime.Encode(kinds.Codecs().EncoderForVersion(info.Serializer, kindOf(o).GroupVersion()), o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func kindOf(o kinds.Object) *kinds.Kind {
	gvks, _, err := kinds.Scheme().ObjectKinds(o)
	if err != nil {
		panic(err)
	}
	i := slices.IndexFunc(kinds.All, func(k kinds.Kind) bool { return slices.Contains(gvks, k.GroupVersionKind) })
	return &kinds.All[i]
}

func keyOf(o kinds.Object) store.Key {
	return store.Key{Resource: kindOf(o).Stored, Namespace: o.GetNamespace(), Name: o.GetName()}
}

// get is a whole object; nil if it is not there. mu is held.
func (a *api) get(key store.Key) kinds.Object {
	item, ok := a.items[key]
	if !ok {
		return nil
	}
	decoded, _, err := kinds.Codecs().UniversalDeserializer().Decode(item.Value, nil, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	o := decoded.(kinds.Object)
	o.SetResourceVersion(strconv.FormatUint(item.Revision, 10))
	return o
}

// put makes or replaces an object, as a client does, and returns its uid.
func (a *api) put(o kinds.Object) types.UID {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o.GetUID() == "" {
		a.uids++
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", a.uids)))
	}
	if o.GetCreationTimestamp().Time.IsZero() {
		o.SetCreationTimestamp(metav1.Now())
	}
	a.change(keyOf(o), o)
	return o.GetUID()
}

func (a *api) called(call string) error {
	a.calls = append(a.calls, call)
	if a.fail != nil {
		return a.fail(call)
	}
	return nil
}

func (a *api) Create(_ context.Context, o kinds.Object) error {
	a.mu.Lock()
	err := a.called("create " + keyOf(o).String())
	_, there := a.items[keyOf(o)]
	a.mu.Unlock()
	if err != nil {
		return err
	}
	if there {
		return apierrors.NewAlreadyExists(kindOf(o).Resource(), o.GetName())
	}
	a.put(o)
	return nil
}

func keyTo(r gc.Ref) store.Key {
	return store.Key{Resource: r.Kind.Stored, Namespace: r.Namespace, Name: r.Name}
}

func (a *api) Delete(_ context.Context, r gc.Ref, how metav1.DeleteOptions) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.called("delete " + keyTo(r).String() + " " + string(*how.PropagationPolicy)); err != nil {
		return err
	}
	o := a.get(keyTo(r))
	if o == nil {
		return apierrors.NewNotFound(r.Kind.Resource(), r.Name)
	}
	if *how.Preconditions.UID != o.GetUID() || *how.Preconditions.ResourceVersion != o.GetResourceVersion() {
		return apierrors.NewConflict(r.Kind.Resource(), r.Name, errors.New("preconditions"))
	}
	if a.onDelete != nil {
		a.onDelete(o)
	}
	a.deleteBy(keyTo(r), *how.PropagationPolicy)
	return nil
}

// remove deletes an object as a client does.
func (a *api) remove(key store.Key, policy metav1.DeletionPropagation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deleteBy(key, policy)
}

func (a *api) deleteBy(key store.Key, policy metav1.DeletionPropagation) {
	o := a.get(key)
	if o == nil {
		return
	}
	finalizers := slices.DeleteFunc(o.GetFinalizers(), func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	})
	switch policy {
	case metav1.DeletePropagationForeground:
		finalizers = append(finalizers, metav1.FinalizerDeleteDependents)
	case metav1.DeletePropagationOrphan:
		finalizers = append(finalizers, metav1.FinalizerOrphanDependents)
	}
	o.SetFinalizers(finalizers)
	if o.GetDeletionTimestamp() == nil {
		now := metav1.Now()
		o.SetDeletionTimestamp(&now)
	}
	a.settle(key, o)
}

// settle writes an object, or removes it if its deletion has nothing to wait for.
func (a *api) settle(key store.Key, o kinds.Object) {
	ns, isNamespace := o.(*v1.Namespace)
	if o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 && (!isNamespace || len(ns.Spec.Finalizers) == 0) {
		o = nil
	} else if isNamespace && o.GetDeletionTimestamp() != nil {
		ns.Status.Phase = v1.NamespaceTerminating
	}
	a.change(key, o)
}

func (a *api) Patch(_ context.Context, r gc.Ref, subresource string, patch []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := keyTo(r)
	if err := a.called(strings.TrimSpace("patch " + key.String() + " " + subresource)); err != nil {
		return err
	}
	o := a.get(key)
	if o == nil {
		return apierrors.NewNotFound(r.Kind.Resource(), r.Name)
	}
	before, err := json.Marshal(o)
	var doc, change map[string]any
	if err := errors.Join(err, json.Unmarshal(before, &doc), json.Unmarshal(patch, &change)); err != nil {
		a.t.Fatal(err)
	}
	merge(doc, change)
	after, err := json.Marshal(doc)
	if err != nil {
		a.t.Fatal(err)
	}
	patched := r.Kind.New()
	if err := json.Unmarshal(after, patched); err != nil {
		a.t.Fatalf("%s: %v", patch, err)
	}
	if patched.GetUID() != o.GetUID() || patched.GetResourceVersion() != o.GetResourceVersion() {
		return apierrors.NewConflict(r.Kind.Resource(), r.Name, errors.New("preconditions"))
	}
	a.settle(key, patched)
	return nil
}

func (a *api) Finalize(_ context.Context, ns *v1.Namespace) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := store.Key{Resource: "namespaces", Name: ns.Name}
	if err := a.called("finalize " + key.String()); err != nil {
		return err
	}
	o, _ := a.get(key).(*v1.Namespace)
	if o == nil || o.ResourceVersion != ns.ResourceVersion {
		return apierrors.NewConflict(kindOf(ns).Resource(), ns.Name, errors.New("it has changed"))
	}
	o.Spec.Finalizers = ns.Spec.Finalizers
	a.settle(key, o)
	return nil
}

// merge is RFC 7386.
func merge(into, patch map[string]any) {
	for key, value := range patch {
		below, isMap := value.(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case isMap:
			if _, ok := into[key].(map[string]any); !ok {
				into[key] = map[string]any{}
			}
			merge(into[key].(map[string]any), below)
		default:
			into[key] = value
		}
	}
}

// there are the keys of all objects.
func (a *api) there() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []string
	for key := range a.items {
		list = append(list, key.String())
	}
	slices.Sort(list)
	return list
}

// take returns what the collector has called since the last time.
func (a *api) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	calls := a.calls
	a.calls = nil
	return calls
}

// start has a collector run in the bubble until the test ends, and waits until it rests.
func (a *api) start(defaults func(string) []kinds.Object) *gc.Collector {
	c := gc.New(gc.Config{Store: a, Writer: a, Defaults: defaults, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	a.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			a.t.Errorf("Run: %v", err)
		}
	})
	synctest.Wait()
	return c
}

func configMap(namespace, name string, owners ...metav1.OwnerReference) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, OwnerReferences: owners}}
}

func ownedBy(kind, name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: kind, Name: name, UID: uid}
}

func blocking(r metav1.OwnerReference) metav1.OwnerReference {
	yes := true
	r.BlockOwnerDeletion = &yes
	return r
}
