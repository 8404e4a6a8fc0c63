package kuberuntime

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"
)

// A resolv.conf of the machine with more than a resolver reads, or that cannot be read, is told
// once by the node, at the start.
func TestCheckResolvConf(t *testing.T) {
	for path, want := range map[string]string{
		*writeTemp(t, "nameserver 192.0.2.1\n"):                         "",
		*writeTemp(t, "search"+strings.Repeat(" a.example", 40)+"\n"):   "Warning CheckLimitsForResolvConf: ",
		*writeTemp(t, "search "+strings.Repeat("a", 2100)+".example\n"): "Warning CheckLimitsForResolvConf: ",
		"/nonexistent": "Warning CheckLimitsForResolvConf: resolver of the node: open /nonexistent",
	} {
		events := &recorder{}
		r := &resolver{path: ptr.To(path), node: &nodeWarner{events: events}}
		r.check()
		if got := strings.Join(events.node, "; "); want == "" && got != "" || len(events.node) > 1 || !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}
