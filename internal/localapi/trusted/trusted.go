package trusted

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
	"berth/internal/pod/strategicpatch"
)

// maxBody is the maximum size of a request body, in bytes, as in kube-apiserver.
const maxBody = 3 << 20

// Config configures Calls.
type Config struct {
	Store *store.Store
	// Sign fills the status of a token request of a service account. Its errors are API errors.
	Sign func(ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest) error
}

// Calls is an http.Handler for the agent's writes.
type Calls struct{ Config }

// New returns a handler.
func New(c Config) *Calls { return &Calls{c} }

// ServeHTTP executes one write.
func (c *Calls) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := call{cfg: c.Config, Request: kinds.Read(r), context: r.Context()}
	code, o, err := x.do(r)
	if err != nil {
		kinds.Fail(w, r, err)
		return
	}
	kinds.Answer(w, r, code, o)
}

type call struct {
	cfg Config
	kinds.Request
	context context.Context
	kind    *kinds.Kind
	body    []byte
}

func (x *call) do(r *http.Request) (int, runtime.Object, error) {
	if x.kind = x.Kind(); x.kind == nil {
		return 0, nil, apierrors.NewGenericServerResponse(http.StatusNotFound, x.Verb, schema.GroupResource{Group: x.Group, Resource: x.Resource}, x.Name, "", 0, true)
	}
	var err error
	if x.body, err = io.ReadAll(io.LimitReader(r.Body, maxBody+1)); err != nil {
		return 0, nil, fmt.Errorf("read the request: %w", err)
	}
	if len(x.body) > maxBody {
		return 0, nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	switch {
	case x.Verb == "create" && x.Resource == "serviceaccounts" && x.Subresource == "token":
		t, err := x.token()
		return http.StatusCreated, t, err
	case x.Verb == "create" && x.Subresource == "":
		o, err := x.create()
		return http.StatusCreated, o, err
	case x.Verb == "update" && (x.Subresource == "" || x.Subresource == "status"):
		o, err := x.update()
		return http.StatusOK, o, err
	case x.Verb == "patch" && (x.Subresource == "" || x.Subresource == "status"):
		o, err := x.patch(r.Header.Get("Content-Type"))
		return http.StatusOK, o, err
	case x.Verb == "delete" && x.Subresource == "":
		o, err := x.delete()
		return http.StatusOK, o, err
	}
	return 0, nil, apierrors.NewMethodNotSupported(x.kind.Resource(), x.Verb)
}

func (x *call) key() store.Key {
	k := store.Key{Resource: x.kind.Stored, Name: x.Name}
	if x.kind.Namespaced {
		k.Namespace = x.Namespace
	}
	return k
}

// read returns the object of the request, or NotFound.
func (x *call) read() (kinds.Object, uint64, error) {
	item, err := x.cfg.Store.Get(x.key())
	if errors.Is(err, store.ErrNotFound) {
		return nil, 0, apierrors.NewNotFound(x.kind.Resource(), x.Name)
	}
	if err != nil {
		return nil, 0, err
	}
	o, err := kinds.Decode(item.Value, item.Revision)
	return o, item.Revision, err
}

// write stores an object in place of the revision seen, and returns it as stored. A nil object
// removes it.
func (x *call) write(seen uint64, o kinds.Object) (kinds.Object, error) {
	var value []byte
	if o != nil {
		var err error
		if value, err = kinds.Encode(o); err != nil {
			return nil, err
		}
	}
	revision, err := x.cfg.Store.Write(x.key(), seen, value)
	switch {
	case errors.Is(err, store.ErrConflict) && seen == 0:
		return nil, apierrors.NewAlreadyExists(x.kind.Resource(), x.Name)
	case errors.Is(err, store.ErrConflict):
		return nil, apierrors.NewConflict(x.kind.Resource(), x.Name, errModified)
	case errors.Is(err, store.ErrNotFound):
		return nil, apierrors.NewNotFound(x.kind.Resource(), x.Name)
	case errors.Is(err, store.ErrTooLarge):
		return nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	case errors.Is(err, store.ErrFull):
		return nil, apierrors.NewGenericServerResponse(http.StatusInsufficientStorage, x.Verb, x.kind.Resource(), x.Name, err.Error(), 0, true)
	case err != nil:
		return nil, err
	}
	if o != nil {
		o.SetResourceVersion(strconv.FormatUint(revision, 10))
	}
	return o, nil
}

var errModified = errors.New("the object has been modified; please apply your changes to the latest version and try again")

func (x *call) received() (kinds.Object, error) {
	o := x.kind.New()
	decoder := kinds.Codecs().UniversalDeserializer()
	if _, _, err := decoder.Decode(x.body, &x.kind.GroupVersionKind, o); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if x.kind.Namespaced {
		o.SetNamespace(x.Namespace)
	}
	return o, nil
}

func (x *call) create() (kinds.Object, error) {
	o, err := x.received()
	if err != nil {
		return nil, err
	}
	if x.Name = o.GetName(); x.Name == "" {
		return nil, apierrors.NewInvalid(x.kind.GroupVersionKind.GroupKind(), "", field.ErrorList{field.Required(field.NewPath("metadata", "name"), "")})
	}
	if err := x.ensureNamespace(); err != nil {
		return nil, err
	}
	o.SetUID(uuid.NewUUID())
	o.SetCreationTimestamp(now())
	if _, isPod := o.(*v1.Pod); isPod {
		o.SetGeneration(1)
	}
	if o, err = x.write(0, o); err != nil {
		return nil, err
	}
	return o, x.ensureNamespace() // the namespace may have been deleted meanwhile
}

func now() metav1.Time { return metav1.NewTime(time.Now().Truncate(time.Second)) }

// update replaces the object. It fails if the request names another resource version than the
// stored one.
func (x *call) update() (kinds.Object, error) {
	o, err := x.received()
	if err != nil {
		return nil, err
	}
	return x.change(func(kinds.Object) (kinds.Object, error) { return o, nil })
}

// change replaces the object by the result of edit, which may be called more than once and must not
// modify its argument.
func (x *call) change(edit func(old kinds.Object) (kinds.Object, error)) (kinds.Object, error) {
	for {
		old, revision, err := x.read()
		if err != nil {
			return nil, err
		}
		o, err := edit(old)
		if err != nil {
			return nil, err
		}
		given := o.GetResourceVersion()
		if given != "" && given != old.GetResourceVersion() {
			return nil, apierrors.NewConflict(x.kind.Resource(), x.Name, errModified)
		}
		if err := x.keepMetadata(o, old); err != nil {
			return nil, err
		}
		if equality.Semantic.DeepEqual(o, old) {
			return old, nil
		}
		if isFinished(o) {
			_, err = x.write(revision, nil)
		} else {
			_, err = x.write(revision, o)
		}
		if apierrors.IsConflict(err) && given == "" {
			continue // a concurrent write was first; the request names no version
		}
		return o, err
	}
}

// keepMetadata checks the UID of o, and sets the metadata that a write cannot change to that of
// old.
func (x *call) keepMetadata(o, old kinds.Object) error {
	if uid := o.GetUID(); uid != "" && uid != old.GetUID() {
		if x.Verb == "patch" {
			return apierrors.NewInvalid(x.kind.GroupVersionKind.GroupKind(), x.Name,
				field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), uid, "field is immutable")})
		}
		//lint:ignore ST1005 the server's words
		return apierrors.NewConflict(x.kind.Resource(), x.Name, fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, old.GetUID()))
	}
	o.SetName(old.GetName())
	o.SetNamespace(old.GetNamespace())
	o.SetUID(old.GetUID())
	o.SetResourceVersion(old.GetResourceVersion())
	o.SetCreationTimestamp(old.GetCreationTimestamp())
	o.SetDeletionTimestamp(old.GetDeletionTimestamp())
	o.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	o.SetGeneration(old.GetGeneration())
	return nil
}

// isFinished reports whether an object is being deleted and nothing delays its removal.
func isFinished(o kinds.Object) bool {
	grace := o.GetDeletionGracePeriodSeconds()
	return o.GetDeletionTimestamp() != nil && (grace == nil || *grace == 0) && len(o.GetFinalizers()) == 0
}

type applier func(object map[string]any, p strategicpatch.Patch, t reflect.Type) (map[string]any, error)

var appliers = map[types.PatchType]applier{
	types.StrategicMergePatchType: strategicpatch.Apply,
	types.MergePatchType: func(object map[string]any, p strategicpatch.Patch, _ reflect.Type) (map[string]any, error) {
		return strategicpatch.Merge(object, p), nil
	},
}

// patch applies a strategic or JSON merge patch to the status, or to everything else.
func (x *call) patch(contentType string) (kinds.Object, error) {
	media, _, err := mime.ParseMediaType(contentType)
	apply := appliers[types.PatchType(media)]
	if err != nil || apply == nil {
		return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, x.Verb, x.kind.Resource(), x.Name,
			fmt.Sprintf("the agent patches by %s or %s, not by %q", types.StrategicMergePatchType, types.MergePatchType, contentType), 0, true)
	}
	var p strategicpatch.Patch
	if err := utiljson.Unmarshal(x.body, (*map[string]any)(&p)); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return x.change(func(old kinds.Object) (kinds.Object, error) {
		if x.Subresource == "status" {
			return patchStatus(old, p, apply)
		}
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
		if err != nil {
			return nil, err
		}
		delete(fields["metadata"].(map[string]any), "resourceVersion") // only the patch's own counts
		patched, err := apply(fields, p, reflect.TypeOf(old))
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if status := fields["status"]; status != nil {
			patched["status"] = status
		} else {
			delete(patched, "status")
		}
		o := x.kind.New()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(patched, o); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return o, nil
	})
}

// patchStatus returns the object with its status patched, and with the UID and version that the
// patch names. The rest of the object, which is most of it, is only copied: statuses are the
// agent's most frequent writes.
func patchStatus(old kinds.Object, p strategicpatch.Patch, apply applier) (kinds.Object, error) {
	o := old.DeepCopyObject().(kinds.Object)
	status := reflect.ValueOf(o).Elem().FieldByName("Status")
	if !status.IsValid() {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%T has no status", o))
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status.Addr().Interface())
	if err != nil {
		return nil, err
	}
	patched, err := apply(map[string]any{"status": fields}, p, reflect.TypeOf(old))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	given, _ := patched["metadata"].(map[string]any)
	version, _ := given["resourceVersion"].(string) // only the patch's own counts
	o.SetResourceVersion(version)
	if uid, ok := given["uid"].(string); ok {
		o.SetUID(types.UID(uid))
	}
	status.SetZero()
	if fields, ok := patched["status"].(map[string]any); ok {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, status.Addr().Interface()); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	} else if patched["status"] != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("status: %T is no object", patched["status"]))
	}
	return o, nil
}

// delete removes the object immediately, without a grace period: the agent knows that nothing of it
// runs any more. An object with finalizers stays until they are removed.
func (x *call) delete() (kinds.Object, error) {
	options := &metav1.DeleteOptions{}
	if len(x.body) > 0 {
		if _, _, err := kinds.Codecs().UniversalDeserializer().Decode(x.body, nil, options); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	for {
		old, revision, err := x.read()
		if err != nil {
			return nil, err
		}
		if p := options.Preconditions; p != nil && p.UID != nil && *p.UID != old.GetUID() {
			return nil, apierrors.NewConflict(x.kind.Resource(), x.Name,
				fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, old.GetUID()))
		}
		if p := options.Preconditions; p != nil && p.ResourceVersion != nil && *p.ResourceVersion != old.GetResourceVersion() {
			return nil, apierrors.NewConflict(x.kind.Resource(), x.Name, errModified)
		}
		if len(old.GetFinalizers()) == 0 {
			_, err = x.write(revision, nil)
		} else {
			at := cmp.Or(old.GetDeletionTimestamp(), new(now()))
			old.SetDeletionTimestamp(at)
			old.SetDeletionGracePeriodSeconds(new(int64(0)))
			_, err = x.write(revision, old)
		}
		if !apierrors.IsConflict(err) {
			return old, err
		}
	}
}

func (x *call) token() (runtime.Object, error) {
	t := &authenticationv1.TokenRequest{}
	if _, _, err := kinds.Codecs().UniversalDeserializer().Decode(x.body, new(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")), t); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	t.APIVersion, t.Kind = authenticationv1.SchemeGroupVersion.String(), "TokenRequest"
	return t, x.cfg.Sign(x.context, x.Namespace, x.Name, t)
}
