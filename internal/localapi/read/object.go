package read

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// prefix starts Kubernetes' protobuf encoding.
var prefix = []byte("k8s\x00")

// Field numbers in protobuf (generated.proto of apimachinery).
const (
	unknownRaw      protowire.Number = 2  // Unknown
	objectMetadata  protowire.Number = 1  // every object
	metadataVersion protowire.Number = 6  // ObjectMeta
	metadataLabels  protowire.Number = 11 // ObjectMeta
)

// object is an object as stored.
type object struct {
	kind     *kinds.Kind
	key      store.Key
	revision uint64
	raw      []byte // its message, without the revision
}

// parse finds the message of an object in an item's value, and shares its memory.
func parse(k *kinds.Kind, i store.Item) (object, error) {
	o := object{kind: k, key: i.Key, revision: i.Revision}
	rest, ok := bytes.CutPrefix(i.Value, prefix)
	if !ok {
		return o, undecodable{i.Key, errors.New("it is not protobuf of Kubernetes")}
	}
	raw, _, err := find(rest, unknownRaw)
	if err != nil {
		return o, undecodable{i.Key, err}
	}
	o.raw = raw
	return o, nil
}

var errMessage = errors.New("its protobuf is damaged")

// undecodable is the error of a corrupt object. Lists omit it.
type undecodable struct {
	key   store.Key
	cause error
}

func (u undecodable) Error() string { return fmt.Sprintf("%s in the store: %v", u.key, u.cause) }
func (u undecodable) Unwrap() error { return u.cause }

// find returns the bytes of a field of a message, and its position. If the field does not exist,
// the position is empty, where it would be inserted.
func find(message []byte, want protowire.Number) (value []byte, at span, err error) {
	for pos := 0; pos < len(message); {
		number, kind, n := protowire.ConsumeTag(message[pos:])
		if n < 0 {
			return nil, at, errMessage
		}
		size := protowire.ConsumeFieldValue(number, kind, message[pos+n:])
		if size < 0 {
			return nil, at, errMessage
		}
		end := pos + n + size
		if number == want && kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(message[pos+n : end])
			return value, span{pos, end}, nil
		}
		if number > want {
			return nil, span{pos, pos}, nil
		}
		pos = end
	}
	return nil, span{len(message), len(message)}, nil
}

// span is a byte range of a message.
type span struct{ from, to int }

// replaced returns a message with a field in place of a span.
func replaced(message []byte, at span, number protowire.Number, value []byte) []byte {
	b := make([]byte, 0, len(message)+len(value)+12)
	b = append(b, message[:at.from]...)
	b = protowire.AppendTag(b, number, protowire.BytesType)
	b = protowire.AppendBytes(b, value)
	return append(b, message[at.to:]...)
}

func (o object) version() string { return strconv.FormatUint(o.revision, 10) }

// metadata returns the metadata with the revision, and the span of the stored metadata.
func (o object) metadata() (message []byte, at span, err error) {
	old, at, err := find(o.raw, objectMetadata)
	if err != nil {
		return nil, at, undecodable{o.key, err}
	}
	_, version, err := find(old, metadataVersion)
	if err != nil {
		return nil, at, undecodable{o.key, fmt.Errorf("metadata: %w", err)}
	}
	return replaced(old, version, metadataVersion, []byte(o.version())), at, nil
}

func (o object) message() ([]byte, error) {
	if o.kind.Stored != o.kind.Resource().String() {
		out, err := o.decode()
		if err != nil {
			return nil, err
		}
		return out.(marshaler).Marshal()
	}
	metadata, at, err := o.metadata()
	if err != nil {
		return nil, err
	}
	return replaced(o.raw, at, objectMetadata, metadata), nil
}

func (o object) objectMeta() (metav1.ObjectMeta, error) {
	var m metav1.ObjectMeta
	message, _, err := o.metadata()
	if err == nil {
		if err = m.Unmarshal(message); err != nil {
			err = undecodable{o.key, fmt.Errorf("metadata: %w", err)}
		}
	}
	return m, err
}

// labels decodes only the labels.
func (o object) labels() (labels.Set, error) {
	metadata, _, err := find(o.raw, objectMetadata)
	set := labels.Set{}
	for err == nil {
		var entry, key, value []byte
		var at span
		if entry, at, err = find(metadata, metadataLabels); err != nil || at.from == at.to {
			break
		}
		if key, _, err = find(entry, 1); err == nil {
			value, _, err = find(entry, 2)
		}
		set[string(key)] = string(value)
		metadata = metadata[at.to:]
	}
	if err != nil {
		return nil, undecodable{o.key, fmt.Errorf("labels: %w", err)}
	}
	return set, nil
}

type marshaler interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// stored decodes the object as stored, with the revision.
func (o object) stored() (kinds.Object, error) {
	s := o.kind.NewStored()
	if err := s.(marshaler).Unmarshal(o.raw); err != nil {
		return nil, undecodable{o.key, err}
	}
	s.SetResourceVersion(o.version())
	return s, nil
}

// decode decodes the object as its kind. TypeMeta is not set.
func (o object) decode() (kinds.Object, error) {
	s, err := o.stored()
	if err != nil {
		return nil, err
	}
	return toKind(o.kind, s), nil
}

func toKind(k *kinds.Kind, stored kinds.Object) kinds.Object {
	if e, ok := stored.(*v1.Event); ok && k.Group != "" {
		return newEvent(e)
	}
	return stored
}

// bookmark returns an object that has only a revision and annotations.
func bookmark(k *kinds.Kind, revision uint64, annotations map[string]string) (object, error) {
	empty := k.NewStored()
	empty.SetAnnotations(annotations)
	raw, err := empty.(marshaler).Marshal()
	return object{kind: k, revision: revision, raw: raw}, err
}

// unknown encodes a message with its kind, as clients receive it.
func unknown(kind schema.GroupVersionKind, message []byte) ([]byte, error) {
	apiVersion, name := kind.ToAPIVersionAndKind()
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: name}, Raw: message}
	b := make([]byte, len(prefix)+u.Size())
	copy(b, prefix)
	_, err := u.MarshalTo(b[len(prefix):])
	return b, err
}
