package kubetest

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/pod"
)

func now() metav1.Time { return metav1.NewTime(time.Now().Truncate(time.Second)) }

func (e *exchange) create() error {
	o := e.kind.new()
	if err := decode(e.body, o); err != nil {
		return err
	}
	if answered, err := e.review(o); answered || err != nil {
		return err
	}
	if e.kind.namespaced {
		if o.GetNamespace() != "" && o.GetNamespace() != e.request.Namespace {
			return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
		}
		o.SetNamespace(e.request.Namespace)
	}
	if o.GetName() == "" && o.GetGenerateName() != "" {
		o.SetName(o.GetGenerateName() + suffix())
	}
	own := o.GetName()
	if e.kind.signed {
		own = own[strings.LastIndex(own, ":")+1:]
	}
	if messages := validation.IsDNS1123Subdomain(own); len(messages) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: e.kind.version.Group, Kind: e.kind.kind}, o.GetName(),
			field.ErrorList{nameError(o.GetName(), messages[0])})
	}
	if o.GetResourceVersion() != "" {
		return plain(http.StatusInternalServerError, "resourceVersion should not be set on objects to be created")
	}
	e.server.mu.Lock()
	t, key := e.server.tables[e.kind], keyOf(o)
	if old, exists := t.objects[key]; exists {
		e.server.mu.Unlock()
		err := apierrors.NewAlreadyExists(e.kind.resource(), o.GetName())
		if old.GetDeletionTimestamp() != nil {
			err.ErrStatus.Message = "object is being deleted: " + err.ErrStatus.Message
		}
		return err
	}
	o.SetUID(newUID())
	o.SetCreationTimestamp(now())
	o.SetDeletionTimestamp(nil)
	o.SetDeletionGracePeriodSeconds(nil)
	o.SetGeneration(0)
	if e.kind.generation {
		o.SetGeneration(1)
	}
	if e.kind.prepare != nil {
		e.kind.prepare(o)
	}
	e.server.write(t, key, o, false)
	e.server.mu.Unlock()
	return e.response.send(http.StatusCreated, o)
}

func nameError(name, message string) *field.Error {
	path := field.NewPath("metadata", "name")
	if name == "" {
		return field.Required(path, "name or generateName is required")
	}
	return field.Invalid(path, name, message)
}

// plain returns an error without a reason, as the server returns for unexpected errors.
func plain(code int32, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Message: message}}
}

func newUID() types.UID {
	var b [16]byte
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80 // version 4, RFC 9562
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}

// suffix returns a random suffix for generateName.
func suffix() string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	b := make([]byte, 5)
	for i := range b {
		b[i] = letters[rand.IntN(len(letters))]
	}
	return string(b)
}

func (e *exchange) update() error {
	o := e.kind.new()
	if err := decode(e.body, o); err != nil {
		return err
	}
	if o.GetName() != e.request.Name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", o.GetName(), e.request.Name))
	}
	return e.change(func(object) (object, error) {
		if o.GetResourceVersion() == "" && e.kind.versioned {
			return nil, apierrors.NewInvalid(schema.GroupKind{Group: e.kind.version.Group, Kind: e.kind.kind}, o.GetName(),
				field.ErrorList{field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update")})
		}
		return o, nil
	})
}

// change replaces the object of the request with the result of edit, and responds. edit runs under
// the lock.
func (e *exchange) change(edit func(old object) (object, error)) error {
	e.server.mu.Lock()
	old, err := e.find()
	var o object
	if err == nil {
		o, err = edit(old)
	}
	if err == nil {
		o, err = e.replace(old, o)
	}
	e.server.mu.Unlock()
	if err != nil {
		return err
	}
	return e.response.send(http.StatusOK, o)
}

// replace replaces old with o, limited to what the resource of the request may change. Server.mu is
// held.
func (e *exchange) replace(old, o object) (object, error) {
	if v := o.GetResourceVersion(); v != "" && v != old.GetResourceVersion() {
		return nil, apierrors.NewConflict(e.kind.resource(), old.GetName(),
			fmt.Errorf("the object has been modified; please apply your changes to the latest version and try again"))
	}
	if uid := o.GetUID(); uid != "" && uid != old.GetUID() {
		if e.request.Verb == "patch" {
			return nil, apierrors.NewInvalid(schema.GroupKind{Group: e.kind.version.Group, Kind: e.kind.kind}, old.GetName(),
				field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), uid, "field is immutable")})
		}
		//lint:ignore ST1005 the server's words
		return nil, apierrors.NewConflict(e.kind.resource(), old.GetName(), fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, old.GetUID()))
	}
	if name := o.GetName(); name != old.GetName() && name != "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, old.GetName()))
	}
	if err := e.keepsFinalizers(o, old); err != nil {
		return nil, err
	}
	o.SetName(old.GetName())
	o.SetNamespace(old.GetNamespace())
	o.SetUID(old.GetUID())
	o.SetResourceVersion(old.GetResourceVersion())
	o.SetCreationTimestamp(old.GetCreationTimestamp())
	o.SetDeletionTimestamp(old.GetDeletionTimestamp())
	o.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	o.SetGeneration(old.GetGeneration())
	switch e.request.Subresource {
	case "":
		if e.kind.keep != nil {
			if err := e.kind.keep(o, old); err != nil {
				return nil, err
			}
		}
	case "status":
		if e.kind.keepStatus == nil {
			return nil, notFound()
		}
		e.kind.keepStatus(o, old)
	case "resize":
		if err := keepResize(o, old); err != nil {
			return nil, err
		}
	case "approval":
		if err := keepApproval(o, old); err != nil {
			return nil, err
		}
	default:
		return nil, notFound()
	}
	if e.kind.generation && !apiequality.Semantic.DeepEqual(specOf(o), specOf(old)) {
		o.SetGeneration(old.GetGeneration() + 1)
	}
	if apiequality.Semantic.DeepEqual(o, old) {
		return old, nil
	}
	deleting := old.GetDeletionTimestamp() != nil && (old.GetDeletionGracePeriodSeconds() == nil || *old.GetDeletionGracePeriodSeconds() == 0)
	return e.server.write(e.server.tables[e.kind], keyOf(o), o, deleting && len(o.GetFinalizers()) == 0), nil
}

// keepsFinalizers rejects new finalizers on an object that is being deleted.
func (e *exchange) keepsFinalizers(o, old object) error {
	if old.GetDeletionTimestamp() == nil {
		return nil
	}
	var added []string
	for _, f := range o.GetFinalizers() {
		if !slices.Contains(old.GetFinalizers(), f) {
			added = append(added, f)
		}
	}
	if len(added) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: e.kind.version.Group, Kind: e.kind.kind}, old.GetName(), field.ErrorList{field.Forbidden(field.NewPath("metadata", "finalizers"),
		fmt.Sprintf("no new finalizers can be added if the object is being deleted, found new finalizers %#v", added))})
}

func specOf(o object) any {
	if spec := reflect.ValueOf(o).Elem().FieldByName("Spec"); spec.IsValid() {
		return spec.Interface()
	}
	return nil
}

func (e *exchange) delete() error {
	options, err := e.deleteOptions()
	if err != nil {
		return err
	}
	e.server.mu.Lock()
	old, err := e.find()
	var o object
	if err == nil {
		o, err = e.remove(old, options)
	}
	e.server.mu.Unlock()
	if err != nil {
		return err
	}
	if _, isPod := o.(*v1.Pod); isPod || o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) > 0 {
		return e.response.send(http.StatusOK, o)
	}
	status := success(http.StatusOK)
	status.Code = 0
	status.Details = &metav1.StatusDetails{Name: o.GetName(), Group: e.kind.version.Group, Kind: e.kind.plural, UID: o.GetUID()}
	return e.response.send(http.StatusOK, status)
}

// deleteOptions parses the options of a delete, from the body or, without one, from the query.
func (e *exchange) deleteOptions() (*metav1.DeleteOptions, error) {
	options := &metav1.DeleteOptions{}
	if len(e.body) > 0 {
		return options, decode(e.body, options)
	}
	if seconds := e.request.Query.Get("gracePeriodSeconds"); seconds != "" {
		grace, err := strconv.ParseInt(seconds, 10, 64)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		options.GracePeriodSeconds = &grace
	}
	return options, nil
}

// deleteCollection deletes the selected objects, and responds with them.
func (e *exchange) deleteCollection() error {
	s, err := e.selection()
	if err != nil {
		return err
	}
	options, err := e.deleteOptions()
	if err != nil {
		return err
	}
	e.server.mu.Lock()
	objects := e.server.tables[e.kind].selected(s)
	version := e.server.version
	for _, o := range objects {
		if _, err := e.remove(o, options); err != nil {
			e.server.mu.Unlock()
			return err
		}
	}
	e.server.mu.Unlock()
	return e.answerList(objects, func(m metav1.ListInterface) { m.SetResourceVersion(strconv.FormatInt(version, 10)) })
}

// remove deletes an object as far as grace period and finalizers allow. Server.mu is held.
func (e *exchange) remove(old object, options *metav1.DeleteOptions) (object, error) {
	if p := options.Preconditions; p != nil {
		if p.UID != nil && *p.UID != old.GetUID() {
			return nil, apierrors.NewConflict(schema.GroupResource{Group: e.kind.version.Group, Resource: e.kind.kind}, old.GetName(),
				fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, old.GetUID()))
		}
		if p.ResourceVersion != nil && *p.ResourceVersion != old.GetResourceVersion() {
			return nil, apierrors.NewConflict(schema.GroupResource{Group: e.kind.version.Group, Resource: e.kind.kind}, old.GetName(),
				fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *p.ResourceVersion, old.GetResourceVersion()))
		}
	}
	t, key := e.server.tables[e.kind], keyOf(old)
	grace := graceOf(old, options)
	o := old.DeepCopyObject().(object)
	if before := old.GetDeletionTimestamp(); before != nil {
		had := int64(0)
		if g := old.GetDeletionGracePeriodSeconds(); g != nil {
			had = *g
		}
		if grace >= had && !(grace == 0 && len(o.GetFinalizers()) == 0) {
			return old, nil // the grace period can only be shortened
		}
		at := metav1.NewTime(before.Add(time.Duration(grace-had) * time.Second))
		o.SetDeletionTimestamp(&at)
	} else {
		at := metav1.NewTime(now().Add(time.Duration(grace) * time.Second))
		o.SetDeletionTimestamp(&at)
		if o.GetGeneration() > 0 {
			o.SetGeneration(o.GetGeneration() + 1)
		}
	}
	o.SetDeletionGracePeriodSeconds(&grace)
	return e.server.write(t, key, o, grace == 0 && len(o.GetFinalizers()) == 0), nil
}

// graceOf returns the grace period in seconds. It is zero except for pods that are bound to a node
// and not terminal.
func graceOf(o object, options *metav1.DeleteOptions) int64 {
	p, ok := o.(*v1.Pod)
	if !ok || p.Spec.NodeName == "" || pod.IsTerminal(p.Status.Phase) {
		return 0
	}
	grace := int64(v1.DefaultTerminationGracePeriodSeconds)
	switch {
	case options.GracePeriodSeconds != nil:
		grace = *options.GracePeriodSeconds
	case p.Spec.TerminationGracePeriodSeconds != nil:
		grace = *p.Spec.TerminationGracePeriodSeconds
	}
	if grace < 0 {
		return 1
	}
	return grace
}
