package kinds

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// storedAs encodes objects as kube-apiserver does in etcd: protobuf after "k8s\x00", in the version
// that they have.
var storedAs = sync.OnceValue(func() runtime.Encoder {
	info, _ := runtime.SerializerInfoForMediaType(Codecs().SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	var versions schema.GroupVersions
	for _, k := range All {
		if k.Stored == k.Resource().String() { // else it is stored as another kind
			versions = append(versions, k.GroupVersion())
		}
	}
	return Codecs().EncoderForVersion(info.Serializer, versions)
})

// Encode returns the stored form of an object: without its resourceVersion, which is the revision.
func Encode(o Object) ([]byte, error) {
	version := o.GetResourceVersion()
	o.SetResourceVersion("")
	defer o.SetResourceVersion(version)
	var value bytes.Buffer
	if err := storedAs().Encode(o, &value); err != nil {
		return nil, fmt.Errorf("encode %T %s: %w", o, o.GetName(), err)
	}
	return value.Bytes(), nil
}

// Decode decodes a stored object, and sets its resourceVersion to the revision.
func Decode(value []byte, revision uint64) (Object, error) {
	decoded, kind, err := Codecs().UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decode a stored object: %w", err)
	}
	o, ok := decoded.(Object)
	if !ok {
		return nil, fmt.Errorf("decode a stored object: %v is no kind of objects", kind)
	}
	o.GetObjectKind().SetGroupVersionKind(*kind)
	o.SetResourceVersion(strconv.FormatUint(revision, 10))
	return o, nil
}
