// Package server makes the runtime read only the pods and containers that a list request selects.
// The build puts this file into containerd's package of the same name (internal/cri/server), which
// calls it (bundle/patches). Upstream containerd copies all objects before it applies the filter,
// also for each container event.
package server

import "strings"

// mayMatch reports whether an object may pass a filter by its ID and its pod's ID, which may be
// given as prefixes, and by its labels. The filter itself is applied afterwards.
func mayMatch(id, pod string, labels map[string]string, wantID, wantPod string, want map[string]string) bool {
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return strings.HasPrefix(id, wantID) && strings.HasPrefix(pod, wantPod)
}
