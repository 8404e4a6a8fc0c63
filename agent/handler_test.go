package agent

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"berth/internal/runtime/embedded"
)

// Pods with devices are not for pod shims; whoever runs pods over a runtime of its own knows best.
func TestHandlerFor(t *testing.T) {
	devices, none := func(*v1.Pod) bool { return true }, func(*v1.Pod) bool { return false }
	inside := new(embedded.Runtime)
	for _, tt := range []struct {
		name       string
		runtime    containerRuntime
		hasDevices func(*v1.Pod) bool
		want, why  string
	}{
		{"a podshim", containerRuntime{embedded: inside, handler: "podshim"}, none, "podshim", ""},
		{"a shim for devices", containerRuntime{embedded: inside, handler: "podshim"}, devices, "runc", "as it has devices"},
		{"shims for all", containerRuntime{embedded: inside, handler: "runc"}, devices, "runc", ""},
		{"the runtime's own", containerRuntime{embedded: inside}, devices, "", ""},
		{"a handler of another runtime", containerRuntime{handler: "podshim"}, devices, "podshim", ""},
	} {
		if got, why := tt.runtime.handlerFor(&v1.Pod{}, tt.hasDevices); got != tt.want || why != tt.why {
			t.Errorf("%s: handler %q, %q; want %q, %q", tt.name, got, why, tt.want, tt.why)
		}
	}
}
