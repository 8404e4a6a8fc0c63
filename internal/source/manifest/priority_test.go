package manifest

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"berth/internal/source/manifest/manifesttest"
)

// The priority of a class that each cluster has is known; that of another has to be said.
func TestPriorityClass(t *testing.T) {
	for _, tt := range []struct {
		fields, refused string
		run, kubelet    int32 // -1: none
	}{
		{"priorityClassName: system-node-critical", "", 2000001000, -1},
		{"priorityClassName: system-cluster-critical", "", 2000000000, -1},
		{"priorityClassName: system-node-critical, priority: 2000001000", "", 2000001000, 2000001000},
		{"priorityClassName: mine, priority: 5", "", 5, 5},
		{"priority: 7", "", 7, 7},
		{"priorityClassName: mine", "spec.priorityClassName: Forbidden: needs the class mine of a cluster: set priority to its value", -1, -1},
		{
			"priorityClassName: system-node-critical, priority: 3",
			"spec.priority: Invalid value: 3: is not that of the class system-node-critical, 2000001000: remove one of them", -1, 3,
		},
	} {
		content := manifesttest.Pod("a", "i") + "  " + strings.ReplaceAll(tt.fields, ", ", "\n  ") + "\n"
		for rule, want := range map[NameRule]int32{KeepNames: tt.run, MangleNames: tt.kubelet} {
			pods, problems := Decoder{Node: node, Names: rule}.decodeFile("/m/a.yaml", []byte(content))
			refused := ""
			if tt.refused != "" && rule == KeepNames {
				refused = "a.yaml error: " + tt.refused
			}
			if got := messages(problems); got != refused {
				t.Errorf("%s, %s: got %q, want %q", rule, tt.fields, got, refused)
			}
			if refused == "" && ptr.Deref(pods[0].Spec.Priority, -1) != want {
				t.Errorf("%s, %s: priority %d, want %d", rule, tt.fields, ptr.Deref(pods[0].Spec.Priority, -1), want)
			}
		}
	}
}
