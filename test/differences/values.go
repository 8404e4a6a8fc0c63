package differences

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// texts are words that some field of the API takes, or nearly takes.
var texts = []string{
	"", "a", "A", "x-y", "-x", "x-", "a.b", "a..b", "a_b", " a ", "a b", "a/b", "/", "/a", "../a", "a/../b", "/a:b", "0", "-1", "1.5", "1Gi", "100m", "10%", "80",
	"example.com/a", "Example.com/A", "kubernetes.io/a", "a.example.com", "127.0.0.1", "::1", "192.0.2.1/24", "999.1.1.1", "true",
	"Always", "Never", "OnFailure", "IfNotPresent", "File", "Default", "None", "ClusterFirst", "TCP", "UDP", "Exists", "Equal", "In", "NotIn", "NoSchedule", "NoExecute",
	"Memory", "Directory", "Block", "Filesystem", "ReadWriteOnce", "ReadWriteOncePod", "Retain", "Delete", "Immediate", "WaitForFirstConsumer", "PreemptLowerPriority", "Opaque", "Normal",
	"Running", "Failed", "True", "Unknown", "metadata.name", "status.podIP", "limits.cpu", "spec.nodeName", "cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "example.com/device",
	"default", "c", "v", "@name@", "@uid@", "ü", "日本語", "a\u0000b", "a\u202eb", "👩‍🚀", "a\nb",
}

var quantities = []string{"0", "1", "100m", "1Gi", "-1", "1e3", "0.0001", "9223372036854775808", "1.5Gi", "", "one", "1 Gi"}

var numbers = []any{0, 1, -1, 2, 80, 65536, 2147483647, 2147483648, -2147483649, int64(9223372036854775807), 1.5, 1e30}

func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

// fieldOf is one field of a struct as JSON has it.
type fieldOf struct {
	name string
	kind reflect.Type
}

// fieldsOf are the fields of a struct, those of embedded ones too.
func fieldsOf(t reflect.Type) []fieldOf {
	var out []fieldOf
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "" && f.Type.Kind() == reflect.Struct:
			out = append(out, fieldsOf(f.Type)...)
		case name != "":
			out = append(out, fieldOf{name, f.Type})
		}
	}
	return out
}

var (
	quantityType = reflect.TypeFor[resource.Quantity]()
	timeType     = reflect.TypeFor[metav1.Time]()
	microType    = reflect.TypeFor[metav1.MicroTime]()
	intOrString  = reflect.TypeFor[intstr.IntOrString]()
	fieldsV1     = reflect.TypeFor[metav1.FieldsV1]()
)

// value makes some value of a type, most of which are wrong in a small way.
func value(r *rand.Rand, t reflect.Type, depth int) any {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case quantityType:
		return pick(r, quantities)
	case timeType, microType:
		return pick(r, []string{"2020-01-02T03:04:05Z", "2020-01-02T03:04:05.123456Z", "yesterday"})
	case intOrString:
		return pick(r, []any{80, "http", "10%", -1, 70000, ""})
	case fieldsV1:
		return map[string]any{}
	}
	switch t.Kind() {
	case reflect.String:
		return pick(r, texts)
	case reflect.Bool:
		return r.IntN(2) == 0
	case reflect.Int32, reflect.Int64, reflect.Int, reflect.Uint32, reflect.Uint8:
		if r.IntN(2) == 0 {
			return r.IntN(100)
		}
		return pick(r, numbers)
	case reflect.Float64:
		return 1.5
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return pick(r, []string{"YQ==", "", "no base64", "YQ"})
		}
		out := make([]any, 1+r.IntN(2))
		for i := range out {
			out[i] = value(r, t.Elem(), depth-1)
		}
		return out
	case reflect.Map:
		return map[string]any{pick(r, texts): value(r, t.Elem(), depth-1)}
	case reflect.Struct:
		return structOf(r, t, depth)
	}
	return nil
}

// structOf makes an object that has a few of its fields.
func structOf(r *rand.Rand, t reflect.Type, depth int) any {
	out := map[string]any{}
	all := fieldsOf(t)
	if depth <= 0 || len(all) == 0 {
		return out
	}
	for range 1 + r.IntN(4) {
		f := pick(r, all)
		out[f.name] = value(r, f.kind, depth-1)
	}
	// What identifies an element of a list is there, most of the time.
	for _, name := range []string{"name", "image", "key"} {
		if i := slices.IndexFunc(all, func(f fieldOf) bool { return f.name == name && f.kind.Kind() == reflect.String }); i >= 0 && r.IntN(4) > 0 {
			out[name] = pick(r, []string{"c", "v", "w", "x"})
		}
	}
	return out
}
