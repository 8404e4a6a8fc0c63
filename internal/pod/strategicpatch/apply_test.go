package strategicpatch

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// randomNode is a node with lists of each kind of merge: by key, of values, and none.
func randomNode(r *rand.Rand) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	for _, k := range r.Perm(5)[:r.IntN(5)] {
		n.Status.Conditions = append(n.Status.Conditions, condition(v1.NodeConditionType(fmt.Sprint("C", k)), "True", fmt.Sprint(r.IntN(3))))
	}
	for _, k := range r.Perm(5)[:r.IntN(5)] {
		n.Finalizers = append(n.Finalizers, fmt.Sprint("f", k))
	}
	for _, k := range r.Perm(4)[:r.IntN(4)] {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeAddressType(fmt.Sprint("T", k)), Address: fmt.Sprint(r.IntN(3))})
		n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, fmt.Sprint(k))
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: fmt.Sprint(k), Value: fmt.Sprint(r.IntN(2))})
	}
	if r.IntN(2) == 0 {
		n.Labels = map[string]string{"a": fmt.Sprint(r.IntN(2)), fmt.Sprint("l", r.IntN(3)): "x"}
	}
	if r.IntN(2) == 0 {
		n.Status.Capacity = nil
		n.Status.Images = []v1.ContainerImage{{Names: []string{"x"}, SizeBytes: r.Int64N(3) << 40}}
	}
	return n
}

// unordered sorts the lists of a node that are merged.
func unordered(n *v1.Node) {
	slices.SortFunc(n.Status.Conditions, func(a, b v1.NodeCondition) int { return strings.Compare(string(a.Type), string(b.Type)) })
	slices.Sort(n.Finalizers)
	slices.Sort(n.Spec.PodCIDRs)
}

func toJSON(t *testing.T, o any) map[string]any {
	t.Helper()
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A patch from one object to another, applied to the first or to one that others have changed
// meanwhile, gives what the library of the API server makes of it. Where others have added elements
// to a list meanwhile, the order may be another.
func TestApplyIsWhatTheServerMakesOfIt(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 1000 {
		old, changed, stored := randomNode(r), randomNode(r), randomNode(r)
		if i%2 == 0 {
			stored = old
		}
		p, err := Generate(old, changed, All, "addresses")
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		before, err := json.Marshal(stored)
		if err != nil {
			t.Fatal(err)
		}
		merged, err := strategicpatch.StrategicMergePatch(before, text, &v1.Node{})
		if err != nil {
			t.Fatal(err)
		}
		want := &v1.Node{}
		if err := json.Unmarshal(merged, want); err != nil {
			t.Fatal(err)
		}
		var received Patch
		if err := utiljson.Unmarshal(text, (*map[string]any)(&received)); err != nil {
			t.Fatal(err)
		}
		fields, err := Apply(toJSON(t, stored), received, reflect.TypeFor[*v1.Node]())
		if err != nil {
			t.Fatalf("patch %s: %v", text, err)
		}
		got := &v1.Node{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, got); err != nil {
			t.Fatal(err)
		}
		if i%2 != 0 {
			unordered(want)
			unordered(got)
		}
		if diff := cmp.Diff(toJSON(t, want), toJSON(t, got)); diff != "" {
			t.Fatalf("round %d: stored %s\npatch %s\n(-library +here):\n%s", i, before, text, diff)
		}
	}
}

func TestApplyRefusesWhatIsNeverGenerated(t *testing.T) {
	object := toJSON(t, &v1.Node{Status: v1.NodeStatus{Conditions: []v1.NodeCondition{condition("A", "True", "")}}})
	for _, text := range []string{
		`{"$patch":"delete"}`, `{"spec":{"$retainKeys":["taints"]}}`, `{"status":{"conditions":["x"]}}`,
		`{"status":{"conditions":[{"status":"True"}]}}`, `{"status":{"conditions":[{"$patch":"merge","type":"A"}]}}`,
		`{"status":{"$setElementOrder/conditions":{}}}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":"x"}}`,
	} {
		var p Patch
		if err := utiljson.Unmarshal([]byte(text), (*map[string]any)(&p)); err != nil {
			t.Fatal(err)
		}
		if out, err := Apply(object, p, reflect.TypeFor[*v1.Node]()); err == nil {
			t.Errorf("%s gives %v", text, out)
		}
	}
}

// The examples of RFC 7386 whose documents are objects.
func TestMerge(t *testing.T) {
	for _, c := range []struct{ object, patch, want string }{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	} {
		read := func(text string) (o map[string]any) {
			if err := json.Unmarshal([]byte(text), &o); err != nil {
				t.Fatal(err)
			}
			return o
		}
		object := read(c.object)
		if diff := cmp.Diff(read(c.want), Merge(object, read(c.patch))); diff != "" {
			t.Errorf("%s by %s (-want +got):\n%s", c.object, c.patch, diff)
		}
		if diff := cmp.Diff(read(c.object), object); diff != "" {
			t.Errorf("%s was changed (-want +got):\n%s", c.object, diff)
		}
	}
}
