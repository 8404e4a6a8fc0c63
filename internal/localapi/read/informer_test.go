package read_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// client returns a client of the core API over a socket.
func (m *machine) client(contentType string) rest.Interface {
	m.Helper()
	server := httptest.NewServer(m.handler)
	m.Cleanup(server.Close)
	c, err := rest.RESTClientFor(&rest.Config{
		Host: server.URL, APIPath: "/api", QPS: -1,
		ContentConfig: rest.ContentConfig{GroupVersion: &v1.SchemeGroupVersion, NegotiatedSerializer: kinds.Codecs().WithoutConversion(), AcceptContentTypes: contentType, ContentType: contentType},
	})
	if err != nil {
		m.Fatal(err)
	}
	return c
}

// noGoroutineLeft checks so when the test has ended and its servers are closed.
func noGoroutineLeft(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// mirror follows a store through an informer, and knows each change that its objects went through.
type mirror struct {
	t    *testing.T
	pace time.Duration // how long it takes for every 500th event

	mu    sync.Mutex
	seen  map[string]uint64 // guarded by mu; the newest revision by name
	count int               // guarded by mu
}

func (r *mirror) see(o any, kind string) {
	m, ok := o.(*v1.ConfigMap)
	if gone, isGone := o.(cache.DeletedFinalStateUnknown); isGone {
		m, ok = gone.Obj.(*v1.ConfigMap)
	}
	if !ok {
		r.t.Errorf("%T came", o)
		return
	}
	revision, err := strconv.ParseUint(m.ResourceVersion, 10, 64)
	if err != nil {
		r.t.Error(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen[m.Name] >= revision && kind != "delete" {
		r.t.Errorf("%s of %s at revision %d came after %d", kind, m.Name, revision, r.seen[m.Name])
	}
	r.seen[m.Name] = revision
	if r.count++; r.pace > 0 && r.count%500 == 0 {
		<-time.After(r.pace)
	}
}

// TestInformers has client-go's informers, some slow, follow 10,000 changes. In the end each has
// what the store has, and it has seen no object go back.
func TestInformers(t *testing.T) {
	const changes = 10000
	noGoroutineLeft(t)
	m := newMachine(t, store.Config{MaxHistory: 1000})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var informers []cache.SharedIndexInformer
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		client := m.client(contentType)
		for _, listing := range []bool{true, false} {
			for _, pace := range []time.Duration{0, 50 * time.Millisecond} {
				lw := cache.NewListWatchFromClient(client, "configmaps", "default", fields.Everything())
				var source cache.ListerWatcher = lw
				if listing {
					source = listOnly{lw}
				}
				informer := cache.NewSharedIndexInformer(source, &v1.ConfigMap{}, 0, cache.Indexers{})
				r := &mirror{t: t, pace: pace, seen: map[string]uint64{}}
				if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
					AddFunc:    func(o any) { r.see(o, "add") },
					UpdateFunc: func(_, o any) { r.see(o, "update") },
					DeleteFunc: func(o any) { r.see(o, "delete") },
				}); err != nil {
					t.Fatal(err)
				}
				informers = append(informers, informer)
				running.Go(func() { informer.RunWithContext(ctx) })
			}
		}
	}
	want := m.churn(changes)
	for i, informer := range informers {
		for !equals(informer, want) {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-t.Context().Done():
				t.Fatalf("informer %d: %v", i, t.Context().Err())
			}
		}
	}
	cancel()
	running.Wait()
}

// listOnly is a source that lists and then watches, as clients before WatchList do.
type listOnly struct{ *cache.ListWatch }

func (l listOnly) IsWatchListSemanticsUnSupported() bool { return true }

func equals(i cache.SharedIndexInformer, want map[string]string) bool {
	items := i.GetStore().List()
	if len(items) != len(want) {
		return false
	}
	for _, o := range items {
		if m := o.(*v1.ConfigMap); want[m.Name] != m.ResourceVersion {
			return false
		}
	}
	return true
}

// TestEachChangeIsSeenOnce has watchers over sockets that read at their own pace.
func TestEachChangeIsSeenOnce(t *testing.T) {
	const changes = 10000
	noGoroutineLeft(t)
	m := newMachine(t, store.Config{MaxHistory: changes})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var readers sync.WaitGroup
	for i, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf, runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		w, err := m.client(contentType).Get().Namespace("default").Resource("configmaps").Param("watch", "1").Param("resourceVersion", "1").Watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		readers.Go(func() {
			defer w.Stop()
			if i >= 2 { // it begins when all is over
				for m.store.Revision() <= changes {
					if _, err := m.store.Since(ctx, m.store.Revision()); err != nil {
						t.Error(err)
						return
					}
				}
			}
			for next := 2; next < changes+2; next++ {
				e := <-w.ResultChan()
				o, ok := e.Object.(metav1.Object)
				if !ok || e.Type == watch.Error || o.GetResourceVersion() != fmt.Sprint(next) {
					t.Errorf("%s: %s %v instead of revision %d", contentType, e.Type, e.Object, next)
					return
				}
			}
		})
	}
	m.churn(changes)
	readers.Wait()
	cancel()
}

// churn makes, changes and removes objects side by side, and returns the revisions of those that
// are there in the end, by name.
func (m *machine) churn(changes int) map[string]string {
	m.Helper()
	const objects = 50
	var mu sync.Mutex
	left := map[string]string{}
	var writers sync.WaitGroup
	for n := range objects {
		name := fmt.Sprint("m", n)
		writers.Go(func() {
			revision := uint64(0)
			for i := range changes / objects {
				var value []byte
				var err error
				if removed := revision != 0 && i%7 == 6; !removed {
					value, err = encode(configMap(name, fmt.Sprint(i)))
				}
				if err == nil {
					revision, err = m.store.Write(store.Key{Resource: "configmaps", Namespace: "default", Name: name}, revision, value)
				}
				if err != nil {
					m.Error(err)
					return
				}
				if value == nil {
					revision = 0
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if revision != 0 {
				left[name] = fmt.Sprint(revision)
			}
		})
	}
	writers.Wait()
	return left
}
