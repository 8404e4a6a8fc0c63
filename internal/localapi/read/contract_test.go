package read_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/kube/kubetest"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// TestWatchContract runs the clauses about lists and watches of the contract that the fake API
// server and a real one keep.
func TestWatchContract(t *testing.T) {
	kubetest.RunWatchContract(t, func(t *testing.T) kubetest.Target {
		m := newMachine(t, store.Config{MaxHistory: 20})
		server := httptest.NewServer(writer{m})
		t.Cleanup(server.Close)
		return kubetest.Target{Config: &rest.Config{Host: server.URL}, Forgotten: func() string {
			for i, revision := 0, uint64(0); i < 30; i++ {
				other := configMap("other", "v")
				other.Namespace = "elsewhere"
				revision = m.put(revision, other)
			}
			return "2"
		}}
	})
}

// writer takes the writes of the contract, without a judgement, and hands the reads on. It creates,
// patches what a strategic merge patch can say, and deletes at once.
type writer struct{ *machine }

func (h writer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := kinds.Read(r)
	write := map[string]func(*http.Request, kinds.Request) (kinds.Object, error){"create": h.create, "patch": h.patch, "delete": h.delete}[q.Verb]
	if write == nil {
		h.handler.ServeHTTP(w, r)
		return
	}
	o, err := write(r, q)
	switch {
	case errors.Is(err, store.ErrNotFound):
		h.handler.ServeHTTP(w, httptest.NewRequestWithContext(r.Context(), http.MethodGet, r.URL.Path, http.NoBody)) // which says so
		return
	case err != nil:
		h.Errorf("%s %s: %v", r.Method, r.URL, err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	accept := r.Header.Get("Accept")
	info, ok := runtime.SerializerInfoForMediaType(kinds.Codecs().SupportedMediaTypes(), accept)
	if !ok {
		info, accept = kinds.Codecs().SupportedMediaTypes()[0], runtime.ContentTypeJSON
	}
	w.Header().Set("Content-Type", accept)
	if err := kinds.Codecs().EncoderForVersion(info.Serializer, v1.SchemeGroupVersion).Encode(o, w); err != nil {
		h.Error(err)
	}
}

func keyOf(q kinds.Request) store.Key {
	return store.Key{Resource: q.Kind().Stored, Namespace: q.Namespace, Name: q.Name}
}

// save writes an object and returns it with its revision.
func (h writer) save(key store.Key, seen uint64, o kinds.Object) (kinds.Object, error) {
	o.SetResourceVersion("")
	value, err := encode(o)
	if err != nil {
		return nil, err
	}
	revision, err := h.store.Write(key, seen, value)
	o.SetResourceVersion(strconv.FormatUint(revision, 10))
	return o, err
}

func (h writer) create(r *http.Request, q kinds.Request) (kinds.Object, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	decoded, err := runtime.Decode(kinds.Codecs().UniversalDeserializer(), body)
	if err != nil {
		return nil, err
	}
	o := decoded.(kinds.Object)
	o.SetUID(types.UID("uid-" + o.GetName()))
	o.SetCreationTimestamp(metav1.NewTime(time.Now()))
	if p, ok := o.(*v1.Pod); ok {
		p.Status.Phase = v1.PodPending
	}
	q.Name = o.GetName()
	return h.save(keyOf(q), 0, o)
}

func (h writer) stored(q kinds.Request) (kinds.Object, uint64, error) {
	item, err := h.store.Get(keyOf(q))
	if err != nil {
		return nil, 0, err
	}
	o, err := runtime.Decode(kinds.Codecs().UniversalDeserializer(), item.Value)
	if err != nil {
		return nil, 0, err
	}
	return o.(kinds.Object), item.Revision, nil
}

func (h writer) patch(r *http.Request, q kinds.Request) (kinds.Object, error) {
	patch, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	old, seen, err := h.stored(q)
	if err != nil {
		return nil, err
	}
	before, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	after, err := strategicpatch.StrategicMergePatch(before, patch, old)
	if err != nil {
		return nil, err
	}
	o := q.Kind().New()
	if err := json.Unmarshal(after, o); err != nil {
		return nil, err
	}
	return h.save(keyOf(q), seen, o)
}

func (h writer) delete(_ *http.Request, q kinds.Request) (kinds.Object, error) {
	o, seen, err := h.stored(q)
	if err != nil {
		return nil, err
	}
	revision, err := h.store.Write(keyOf(q), seen, nil)
	o.SetResourceVersion(strconv.FormatUint(revision, 10))
	return o, err
}
