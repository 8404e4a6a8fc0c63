package kinds

import (
	"maps"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestField(t *testing.T) {
	for _, c := range []struct{ group, plural, label, want, err string }{
		{"", "pods", "spec.nodeName", "spec.nodeName", ""},
		{"", "pods", "spec.host", "spec.nodeName", ""},
		{"", "pods", "spec.volumes", "", "field label not supported: spec.volumes"},
		{"", "configmaps", "metadata.name", "metadata.name", ""},
		{"", "configmaps", "data", "", `"data" is not a known field selector: only "metadata.name", "metadata.namespace"`},
		{"", "nodes", "metadata.namespace", "", "field label not supported: metadata.namespace"},
		{"", "events", "involvedObject.uid", "involvedObject.uid", ""},
		{"events.k8s.io", "events", "regarding.uid", "involvedObject.uid", ""},
		{"events.k8s.io", "events", "reportingController", "reportingComponent", ""},
		{"events.k8s.io", "events", "source", "", "field label not supported: source"},
	} {
		got, err := Find(c.group, "v1", c.plural).Field(c.label)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s of %s.%s: %q, %v", c.label, c.plural, c.group, got, err)
		}
	}
}

// TestValuesHaveFields holds what can be asked for against what is known of an object.
func TestValuesHaveFields(t *testing.T) {
	unknown := []string{NameField, NamespaceField, "status.podIPs"} // of the key, and as kube-apiserver
	for _, k := range All {
		if (k.fields == nil) != (k.Values == nil) {
			t.Errorf("%s has fields without values, or values without fields", k.GroupVersionKind)
		}
		if k.fields == nil {
			continue
		}
		values := k.Values(k.NewStored())
		for _, name := range slices.Sorted(maps.Values(k.fields)) {
			if _, ok := values[name]; !ok && !slices.Contains(unknown, name) {
				t.Errorf("%s can be selected by %s, of which objects have no value", k.GroupVersionKind, name)
			}
		}
	}
	got := Find("", "v1", "pods").Values(&v1.Pod{Spec: v1.PodSpec{NodeName: "n"}, Status: v1.PodStatus{PodIP: "a", PodIPs: []v1.PodIP{{IP: "b"}}}})
	if got["spec.nodeName"] != "n" || got["status.podIP"] != "b" || got["spec.hostNetwork"] != "false" {
		t.Errorf("values of a pod: %v", got)
	}
}
