package kubetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (e *exchange) patch() error {
	mediaType, _, _ := mime.ParseMediaType(e.request.ContentType)
	return e.change(func(old object) (object, error) {
		before, err := json.Marshal(old)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		var after []byte
		switch types.PatchType(mediaType) {
		case types.StrategicMergePatchType:
			after, err = strategicpatch.StrategicMergePatch(before, e.body, old)
		case types.MergePatchType:
			after, err = applyMergePatch(before, e.body)
		case types.JSONPatchType:
			after, err = applyJSONPatch(before, e.body)
		default:
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
				Message: fmt.Sprintf("the body of the request was in an unknown format: %q", mediaType),
			}}
		}
		if errors.Is(err, errOperation) {
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: "the server rejected our request due to an error in our request",
			}}
		}
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		o := e.kind.new()
		if err := json.Unmarshal(after, o); err != nil {
			return nil, apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), string(e.body), err.Error())})
		}
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		return o, nil
	})
}

// applyMergePatch implements RFC 7396.
func applyMergePatch(before, patch []byte) ([]byte, error) {
	var b, p map[string]any
	if err := json.Unmarshal(before, &b); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, err
	}
	return json.Marshal(mergeJSON(b, p))
}

func mergeJSON(into, patch map[string]any) map[string]any {
	into = maps.Clone(into)
	if into == nil {
		into = map[string]any{}
	}
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(into, k)
		case map[string]any:
			inner, _ := into[k].(map[string]any)
			into[k] = mergeJSON(inner, v)
		default:
			into[k] = v
		}
	}
	return into
}

// errOperation means that an operation of a JSON patch is not applicable.
var errOperation = errors.New("json patch")

// applyJSONPatch implements RFC 6902 without move and copy.
func applyJSONPatch(before, patch []byte) ([]byte, error) {
	var document any
	if err := json.Unmarshal(before, &document); err != nil {
		return nil, err
	}
	var operations []struct {
		Op, Path string
		Value    any
	}
	if err := json.Unmarshal(patch, &operations); err != nil {
		return nil, err
	}
	for _, o := range operations {
		if !strings.HasPrefix(o.Path, "/") {
			return nil, fmt.Errorf("json patch: path %q does not begin with a slash", o.Path)
		}
		segments := strings.Split(o.Path[1:], "/")
		for i, s := range segments {
			segments[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(s)
		}
		var err error
		if document, err = applyOperation(document, o.Op, segments, o.Value); err != nil {
			return nil, fmt.Errorf("%w: %s %s: %w", errOperation, o.Op, o.Path, err)
		}
	}
	return json.Marshal(document)
}

// applyOperation returns the document after one operation below path.
func applyOperation(at any, op string, path []string, value any) (any, error) {
	name, last := path[0], len(path) == 1
	switch at := at.(type) {
	case map[string]any:
		child, exists := at[name]
		if !exists && (!last || op != "add") {
			return nil, fmt.Errorf("there is no %q", name)
		}
		if !last {
			changed, err := applyOperation(child, op, path[1:], value)
			at[name] = changed
			return at, err
		}
		switch op {
		case "add", "replace":
			at[name] = value
		case "remove":
			delete(at, name)
		case "test":
			if !reflect.DeepEqual(child, value) {
				return nil, fmt.Errorf("the value is another")
			}
		default:
			return nil, fmt.Errorf("this operation is not known here")
		}
		return at, nil
	case []any:
		if last && op == "add" && name == "-" {
			return append(at, value), nil
		}
		i, err := strconv.Atoi(name)
		if err != nil || i < 0 || i > len(at) || i == len(at) && (!last || op != "add") {
			return nil, fmt.Errorf("there is no element %q", name)
		}
		if !last {
			at[i], err = applyOperation(at[i], op, path[1:], value)
			return at, err
		}
		switch op {
		case "add":
			return slices.Insert(at, i, value), nil
		case "replace":
			at[i] = value
		case "remove":
			return slices.Delete(at, i, i+1), nil
		case "test":
			if !reflect.DeepEqual(at[i], value) {
				return nil, fmt.Errorf("the value is another")
			}
		default:
			return nil, fmt.Errorf("this operation is not known here")
		}
		return at, nil
	}
	return nil, fmt.Errorf("%q is below a value", name)
}
