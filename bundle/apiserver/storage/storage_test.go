package storage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"berth/internal/localapi/apiserver"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// fixture is the storage of config maps over a store.
type fixture struct {
	*testing.T
	storage.Interface
	client *apiserver.Client
}

// maxHistory is what the store of a fixture remembers.
const maxHistory = 20

func newFixture(t *testing.T) *fixture {
	t.Helper()
	s, err := store.Open(store.Config{Path: filepath.Join(t.TempDir(), "api.db"), MaxHistory: maxHistory})
	if err != nil {
		t.Fatal(err)
	}
	here, there := net.Pipe()
	var served sync.WaitGroup
	served.Go(func() { apiserver.Serve(here, s, func() {}) })
	client := apiserver.NewClient(there)
	t.Cleanup(func() {
		_ = client.Close()
		served.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	protobuf, _ := runtime.SerializerInfoForMediaType(kinds.Codecs().SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	codec := kinds.Codecs().CodecForVersions(protobuf.Serializer, kinds.Codecs().UniversalDeserializer(), v1.SchemeGroupVersion, v1.SchemeGroupVersion)
	config := &storagebackend.ConfigForResource{Config: storagebackend.Config{Codec: codec}}
	of, _, err := Decorator(client, kinds.Find("", "v1", "configmaps"))(config, "/configmaps", nil,
		func() runtime.Object { return &v1.ConfigMap{} }, nil, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{T: t, Interface: of, client: client}
}

func key(namespace, name string) string { return "/configmaps/" + namespace + "/" + name }

func configMap(namespace, name, value string) *v1.ConfigMap {
	return &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid"), Labels: map[string]string{"value": value}},
		Data:       map[string]string{"k": value},
	}
}

func (f *fixture) mustCreate(namespace, name, value string) *v1.ConfigMap {
	f.Helper()
	out := &v1.ConfigMap{}
	if err := f.Create(f.Context(), key(namespace, name), configMap(namespace, name, value), out, 0); err != nil {
		f.Fatal(err)
	}
	return out
}

// mustSet changes an object behind the storage's back, as another process does.
func (f *fixture) mustSet(namespace, name, value string) {
	f.Helper()
	out := &v1.ConfigMap{}
	if err := f.GuaranteedUpdate(f.Context(), key(namespace, name), out, false, nil, setting(value), nil); err != nil {
		f.Fatal(err)
	}
}

func setting(value string) storage.UpdateFunc {
	return storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) {
		m := o.(*v1.ConfigMap)
		m.Data = map[string]string{"k": value}
		m.Labels = map[string]string{"value": value}
		return m, nil
	})
}

// everything selects by label, and by name and namespace.
func everything(label string) storage.SelectionPredicate {
	selector, err := labels.Parse(label)
	if err != nil {
		panic(err)
	}
	return storage.SelectionPredicate{Label: selector, Field: fields.Everything(), GetAttrs: func(o runtime.Object) (labels.Set, fields.Set, error) {
		return o.(*v1.ConfigMap).Labels, nil, nil
	}}
}

func TestObjectsAreStoredInOneForm(t *testing.T) {
	f := newFixture(t)
	given := configMap("n", "a", "v")
	out := &v1.ConfigMap{}
	if err := f.Create(t.Context(), key("n", "a"), given, out, 0); err != nil {
		t.Fatal(err)
	}
	item, err := f.client.Get(t.Context(), store.Key{Resource: "configmaps", Namespace: "n", Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(item.Value), "k8s\x00") || out.ResourceVersion != fmt.Sprint(item.Revision) || out.Data["k"] != "v" {
		t.Errorf("stored %q at %d, answered %+v", item.Value, item.Revision, out)
	}
	err = f.Create(t.Context(), key("n", "a"), configMap("n", "a", "w"), nil, 0)
	if !storage.IsExist(err) {
		t.Errorf("created twice: %v", err)
	}
	if err := f.Create(t.Context(), key("n", "b"), out, nil, 0); err == nil {
		t.Error("an object with a resource version is created")
	}
	if err := f.Create(t.Context(), key("n", ""), configMap("n", "", "v"), nil, 0); err == nil {
		t.Error("an object without a name is created")
	}
	large := configMap("n", "large", strings.Repeat("x", store.MaxValue))
	if err := f.Create(t.Context(), key("n", "large"), large, nil, 0); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("a large object: %v", err)
	}
}

func TestGet(t *testing.T) {
	f := newFixture(t)
	f.mustCreate("n", "a", "v")
	out := &v1.ConfigMap{}
	if err := f.Get(t.Context(), key("n", "a"), storage.GetOptions{ResourceVersion: "1"}, out); err != nil || out.Data["k"] != "v" {
		t.Errorf("%+v, %v", out, err)
	}
	if err := f.Get(t.Context(), key("n", "b"), storage.GetOptions{}, out); !storage.IsNotFound(err) {
		t.Errorf("what is not there: %v", err)
	}
	if err := f.Get(t.Context(), key("n", "b"), storage.GetOptions{IgnoreNotFound: true}, out); err != nil || out.Name != "" {
		t.Errorf("what may not be there: %+v, %v", out, err)
	}
	if err := f.Get(t.Context(), key("n", "a"), storage.GetOptions{ResourceVersion: "1000"}, out); !storage.IsTooLargeResourceVersion(err) {
		t.Errorf("a version to come: %v", err)
	}
	if _, err := f.client.Write(t.Context(), store.Key{Resource: "configmaps", Namespace: "n", Name: "odd"}, 0, []byte("nonsense")); err != nil {
		t.Fatal(err)
	}
	if err := f.Get(t.Context(), key("n", "odd"), storage.GetOptions{}, out); err == nil || !strings.Contains(err.Error(), "read configmaps/n/odd from the store") {
		t.Errorf("what cannot be read: %v", err)
	}
}

func TestUpdateIsTriedAgainAfterAConflict(t *testing.T) {
	f := newFixture(t)
	f.mustCreate("n", "a", "v")
	tries := 0
	out := &v1.ConfigMap{}
	err := f.GuaranteedUpdate(t.Context(), key("n", "a"), out, false, nil, func(o runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
		if tries++; tries == 1 {
			f.mustSet("n", "a", "meanwhile")
		}
		m := o.(*v1.ConfigMap)
		if m.ResourceVersion != fmt.Sprint(meta.ResourceVersion) {
			t.Errorf("version %s, told %d", m.ResourceVersion, meta.ResourceVersion)
		}
		m.Data["k"] += " and more"
		return m, nil, nil
	}, nil)
	if err != nil || tries != 2 || out.Data["k"] != "meanwhile and more" {
		t.Errorf("after %d tries %+v, %v", tries, out.Data, err)
	}
}

func TestUpdate(t *testing.T) {
	f := newFixture(t)
	before := f.mustCreate("n", "a", "v")
	out := &v1.ConfigMap{}
	update := func(name string, ignore bool, pre *storage.Preconditions, value string) error {
		*out = v1.ConfigMap{}
		return f.GuaranteedUpdate(t.Context(), key("n", name), out, ignore, pre, setting(value), nil)
	}
	if err := update("a", false, nil, "v"); err != nil || out.ResourceVersion != before.ResourceVersion {
		t.Errorf("an update without a change: version %s, was %s, %v", out.ResourceVersion, before.ResourceVersion, err)
	}
	if err := update("a", false, &storage.Preconditions{UID: new(types.UID("other"))}, "w"); !storage.IsInvalidObj(err) {
		t.Errorf("an update of another UID: %v", err)
	}
	if err := update("a", false, &storage.Preconditions{UID: &before.UID, ResourceVersion: &before.ResourceVersion}, "w"); err != nil || out.Data["k"] != "w" {
		t.Errorf("an update of this one: %+v, %v", out, err)
	}
	if err := update("a", false, &storage.Preconditions{ResourceVersion: &before.ResourceVersion}, "x"); !storage.IsInvalidObj(err) {
		t.Errorf("an update of an old version: %v", err)
	}
	if err := update("b", false, nil, "w"); !storage.IsNotFound(err) {
		t.Errorf("an update of what is not there: %v", err)
	}
	if err := update("b", true, nil, "w"); err != nil || out.Data["k"] != "w" {
		t.Errorf("an update that creates: %+v, %v", out, err)
	}
	refused := errors.New("refused")
	err := f.GuaranteedUpdate(t.Context(), key("n", "a"), out, false, nil, storage.SimpleUpdate(func(runtime.Object) (runtime.Object, error) { return nil, refused }), nil)
	if !errors.Is(err, refused) {
		t.Errorf("an update that is refused: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.GuaranteedUpdate(ctx, key("n", "a"), out, false, nil, setting("z"), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("an update of somebody who is gone: %v", err)
	}
}

func TestDeleteLooksAgainAfterAConflict(t *testing.T) {
	f := newFixture(t)
	f.mustCreate("n", "a", "v")
	var seen []string
	validate := func(_ context.Context, o runtime.Object) error {
		m := o.(*v1.ConfigMap)
		if seen = append(seen, m.Data["k"]); len(seen) == 1 {
			f.mustSet("n", "a", "w")
		}
		return nil
	}
	out := &v1.ConfigMap{}
	if err := f.Delete(t.Context(), key("n", "a"), out, storage.NewUIDPreconditions("a-uid"), validate, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(seen) != "[v w]" || out.Data["k"] != "w" || out.ResourceVersion != "4" {
		t.Errorf("validated %v, deleted %+v", seen, out)
	}
	if err := f.Delete(t.Context(), key("n", "a"), out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); !storage.IsNotFound(err) {
		t.Errorf("deleted twice: %v", err)
	}
	f.mustCreate("n", "a", "v")
	if err := f.Delete(t.Context(), key("n", "a"), out, storage.NewUIDPreconditions("other"), storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); !storage.IsInvalidObj(err) {
		t.Errorf("deleted by another UID: %v", err)
	}
}

func (f *fixture) list(key string, opts storage.ListOptions) (*v1.ConfigMapList, error) {
	f.Helper()
	if opts.Predicate.Label == nil {
		opts.Predicate = everything("")
	}
	opts.Recursive = true
	var list v1.ConfigMapList
	return &list, f.GetList(f.Context(), key, opts, &list)
}

func names(list *v1.ConfigMapList) string {
	var all []string
	for _, m := range list.Items {
		all = append(all, m.Namespace+"/"+m.Name+"="+m.Data["k"])
	}
	return strings.Join(all, " ")
}

func TestList(t *testing.T) {
	f := newFixture(t)
	if empty, err := f.list("/configmaps", storage.ListOptions{}); err != nil || empty.Items == nil || len(empty.Items) > 0 {
		t.Errorf("no objects: %#v, %v", empty.Items, err)
	}
	for _, o := range []string{"m/a=1", "m/b=2", "n/a=1", "n/b=2", "n/c=1"} {
		namespace, rest, _ := strings.Cut(o, "/")
		name, value, _ := strings.Cut(rest, "=")
		f.mustCreate(namespace, name, value)
	}
	for _, c := range []struct{ key, label, want string }{
		{"/configmaps", "", "m/a=1 m/b=2 n/a=1 n/b=2 n/c=1"},
		{"/configmaps/n", "", "n/a=1 n/b=2 n/c=1"},
		{"/configmaps/n/", "value=1", "n/a=1 n/c=1"},
		{"/configmaps/n/b", "", "n/b=2"},
		{"/configmaps/n/b", "value=1", ""},
		{"/configmaps/none", "", ""},
	} {
		list, err := f.list(c.key, storage.ListOptions{Predicate: everything(c.label)})
		if err != nil || names(list) != c.want {
			t.Errorf("%s by %q: %s, %v, want %s", c.key, c.label, names(list), err, c.want)
		}
	}
	if _, err := f.list("/configmaps", storage.ListOptions{ResourceVersion: "1000", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}); !storage.IsTooLargeResourceVersion(err) {
		t.Errorf("a version to come: %v", err)
	}
	if _, err := f.list("/configmaps", storage.ListOptions{ResourceVersion: "1000", ResourceVersionMatch: metav1.ResourceVersionMatchExact}); !storage.IsTooLargeResourceVersion(err) {
		t.Errorf("exactly a version to come: %v", err)
	}
	old, err := f.list("/configmaps", storage.ListOptions{ResourceVersion: "3", ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if err != nil || names(old) != "m/a=1 m/b=2" {
		t.Errorf("exactly version 3: %s, %v", names(old), err)
	}
}

func TestPagesShowOneRevision(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"a", "b", "c"} {
		f.mustCreate("n", name, "v")
	}
	page := everything("")
	page.Limit = 2
	first, err := f.list("/configmaps/n", storage.ListOptions{Predicate: page})
	if err != nil || names(first) != "n/a=v n/b=v" || first.RemainingItemCount == nil || *first.RemainingItemCount != 1 {
		t.Fatalf("first page: %s, %v, %v", names(first), first.ListMeta, err)
	}
	f.mustSet("n", "c", "w")
	f.mustCreate("n", "d", "v")
	page.Continue = first.Continue
	second, err := f.list("/configmaps/n", storage.ListOptions{Predicate: page})
	if err != nil || names(second) != "n/c=v" || second.Continue != "" || second.ResourceVersion != first.ResourceVersion {
		t.Errorf("second page: %s, %v, %v", names(second), second.ListMeta, err)
	}
	for range maxHistory + 1 {
		f.mustSet("n", "a", "w")
		f.mustSet("n", "a", "v")
	}
	_, err = f.list("/configmaps/n", storage.ListOptions{Predicate: page})
	var status apierrors.APIStatus
	if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) || status.Status().Continue == "" {
		t.Fatalf("a page that is forgotten: %v", err)
	}
	page.Continue = status.Status().Continue
	if rest, err := f.list("/configmaps/n", storage.ListOptions{Predicate: page}); err != nil || names(rest) != "n/c=w n/d=v" {
		t.Errorf("with the token of the error: %s, %v", names(rest), err)
	}
	if _, err := f.list("/configmaps/n", storage.ListOptions{ResourceVersion: "3", ResourceVersionMatch: metav1.ResourceVersionMatchExact}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a version that is forgotten: %v", err)
	}
}

// A token of a list of one namespace names objects without it, be it of these lists or of the
// agent's.
func TestTokensOfANamespace(t *testing.T) {
	f := newFixture(t)
	for _, o := range []string{"m/z", "n/a", "n/b", "n/c"} {
		namespace, name, _ := strings.Cut(o, "/")
		f.mustCreate(namespace, name, "v")
	}
	for _, c := range []struct{ key, start, want string }{
		{"/configmaps/n", "a\x00", "n/b=v n/c=v"},
		{"/configmaps/n/", "/b\x00", "n/c=v"},
		{"/configmaps", "m/z\x00", "n/a=v n/b=v n/c=v"},
	} {
		token, err := storage.EncodeContinue("/"+c.start, "/", -1)
		if err != nil {
			t.Fatal(err)
		}
		page := everything("")
		page.Continue = token
		if list, err := f.list(c.key, storage.ListOptions{Predicate: page}); err != nil || names(list) != c.want {
			t.Errorf("%s after %q: %s, %v, want %s", c.key, c.start, names(list), err, c.want)
		}
	}
	page := everything("")
	page.Limit = 1
	if list, err := f.list("/configmaps/n/b", storage.ListOptions{Predicate: page}); err != nil || names(list) != "n/b=v" || list.Continue != "" {
		t.Errorf("one object: %s, %v, %v", names(list), list.ListMeta, err)
	}
}

// follow begins a watch and returns what it says, one event a call.
func (f *fixture) follow(key string, opts storage.ListOptions) func() string {
	f.Helper()
	opts.Recursive = true
	w, err := f.Watch(f.Context(), key, opts)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		w.Stop()
		for range w.ResultChan() { // closed at the end
		}
	})
	return func() string {
		f.Helper()
		switch e := <-w.ResultChan(); o := e.Object.(type) {
		case *v1.ConfigMap:
			return fmt.Sprintf("%s %s=%s at %s%s", e.Type, o.Name, o.Data["k"], o.ResourceVersion, o.Annotations[metav1.InitialEventsAnnotationKey])
		case *metav1.Status:
			return fmt.Sprintf("%s %d %s", e.Type, o.Code, o.Message)
		default:
			return fmt.Sprintf("%s of %T", e.Type, o)
		}
	}
}

func TestWatchFollowsTheSelector(t *testing.T) {
	f := newFixture(t)
	f.mustCreate("n", "a", "v")
	next := f.follow("/configmaps/n", storage.ListOptions{ResourceVersion: "2", Predicate: everything("value=w")})
	f.mustSet("n", "a", "w")    // 3
	f.mustCreate("m", "b", "w") // 4, of another namespace
	f.mustSet("n", "a", "x")    // 5
	f.mustCreate("n", "c", "w") // 6
	if err := f.Delete(t.Context(), key("n", "c"), &v1.ConfigMap{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ADDED a=w at 3", "DELETED a=w at 5", "ADDED c=w at 6", "DELETED c=w at 7"} {
		if got := next(); got != want {
			t.Errorf("event %q, want %q", got, want)
		}
	}
}

func TestWatchBeginsWithWhatIsThere(t *testing.T) {
	f := newFixture(t)
	f.mustCreate("n", "a", "v")
	f.mustCreate("n", "b", "v")
	bookmarks := everything("")
	bookmarks.AllowWatchBookmarks = true
	for _, c := range []struct {
		name, key string
		opts      storage.ListOptions
		want      []string
	}{
		{"a watch of any version", "/configmaps", storage.ListOptions{ResourceVersion: "0", Predicate: everything("")}, []string{"ADDED a=v at 2", "ADDED b=v at 3"}},
		{"a watch without a version", "/configmaps", storage.ListOptions{Predicate: everything("")}, []string{"ADDED a=v at 2", "ADDED b=v at 3"}},
		{"a watch of one", "/configmaps/n/b", storage.ListOptions{Predicate: everything("")}, []string{"ADDED b=v at 3"}},
		{
			"a list by watching", "/configmaps",
			storage.ListOptions{SendInitialEvents: new(true), Predicate: bookmarks},
			[]string{"ADDED a=v at 2", "ADDED b=v at 3", "BOOKMARK = at 3true"},
		},
		{
			"a list by watching, of a version to come", "/configmaps",
			storage.ListOptions{ResourceVersion: "1000", SendInitialEvents: new(true), Predicate: bookmarks},
			[]string{"ADDED a=v at 2", "ADDED b=v at 3", "ERROR 504 Timeout: Too large resource version: 1000, current: 3"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			next := (&fixture{T: t, Interface: f.Interface, client: f.client}).follow(c.key, c.opts)
			for _, want := range c.want {
				if got := next(); got != want {
					t.Errorf("event %q, want %q", got, want)
				}
			}
		})
	}
}

func TestWatchOfAForgottenVersion(t *testing.T) {
	f := newFixture(t)
	f.mustCreate("n", "a", "v")
	for range maxHistory {
		f.mustSet("n", "a", "w")
		f.mustSet("n", "a", "v")
	}
	next := f.follow("/configmaps", storage.ListOptions{ResourceVersion: "2", Predicate: everything("")})
	if got := next(); got != "ERROR 410 too old resource version: 2" {
		t.Errorf("event %q", got)
	}
}
