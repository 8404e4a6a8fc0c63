package gc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// object is the metadata and the encoded value of a stored object.
type object struct {
	key      store.Key
	revision uint64
	meta     metav1.ObjectMeta
	value    []byte
	written  time.Time // by a change that was seen; zero if it existed at the start
}

// protobufPrefix starts a stored object (kubernetes.io/docs/reference/using-api/api-concepts).
var protobufPrefix = []byte("k8s\x00")

// decode decodes the metadata of a stored object; nil for no object. It is the first field of each
// kind, so the rest of the protobuf is not decoded.
func decode(item store.Item) (*object, error) {
	if item.Value == nil {
		return nil, nil
	}
	o := &object{key: item.Key, revision: item.Revision, value: item.Value}
	raw, ok := bytes.CutPrefix(item.Value, protobufPrefix)
	if !ok {
		return nil, fmt.Errorf("%s: what is stored is not in the form of protobuf", item.Key)
	}
	var envelope runtime.Unknown
	var partial metav1.PartialObjectMetadata
	err := envelope.Unmarshal(raw)
	if err == nil {
		err = partial.Unmarshal(envelope.Raw)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", item.Key, err)
	}
	o.meta = partial.ObjectMeta
	return o, nil
}

func whole[T kinds.Object](o *object) (T, error) {
	var none T
	decoded, _, err := kinds.Codecs().UniversalDeserializer().Decode(o.value, nil, nil)
	if err != nil {
		return none, fmt.Errorf("%s: %w", o.key, err)
	}
	typed, ok := decoded.(T)
	if !ok {
		return none, fmt.Errorf("%s: it is a %T", o.key, decoded)
	}
	typed.SetResourceVersion(o.version())
	return typed, nil
}

func (o *object) uid() types.UID  { return o.meta.UID }
func (o *object) version() string { return strconv.FormatUint(o.revision, 10) }
func (o *object) deleting() bool  { return o.meta.DeletionTimestamp != nil }

func (o *object) has(finalizer string) bool { return slices.Contains(o.meta.Finalizers, finalizer) }

// waitsForDependants reports whether an object is being deleted in the foreground.
func (o *object) waitsForDependants() bool {
	return o.deleting() && o.has(metav1.FinalizerDeleteDependents)
}

func (o *object) ref() Ref { return refTo(o.key) }

// refTo returns the object of a key. Events are those of core/v1.
func refTo(key store.Key) Ref {
	i := slices.IndexFunc(kinds.All, func(k kinds.Kind) bool { return k.Stored == key.Resource })
	return Ref{Kind: &kinds.All[i], Namespace: key.Namespace, Name: key.Name}
}

// stored returns the resources of the store without duplicates, in the order of kinds.All.
func stored() []string {
	var list []string
	for _, k := range kinds.All {
		if !slices.Contains(list, k.Stored) {
			list = append(list, k.Stored)
		}
	}
	return list
}

// changed returns when an event was last written, as far as that is known.
func (o *object) changed() time.Time {
	if !o.written.IsZero() {
		return o.written
	}
	times := []time.Time{o.meta.CreationTimestamp.Time}
	if e, err := whole[*v1.Event](o); err == nil {
		times = append(times, e.LastTimestamp.Time, e.EventTime.Time)
		if e.Series != nil {
			times = append(times, e.Series.LastObservedTime.Time)
		}
	}
	return slices.MaxFunc(times, time.Time.Compare)
}

// merge returns a patch of the metadata of exactly this version of an object.
func (o *object) merge(field string, value any) ([]byte, error) {
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.uid(), "resourceVersion": o.version(), field: value}})
}

// without returns a list without one value; never nil, as it is used in a patch.
func without(list []string, value string) []string {
	return append([]string{}, slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == value })...)
}

func compareKeys(a, b store.Key) int {
	return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
