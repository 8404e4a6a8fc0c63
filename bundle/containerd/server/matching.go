// Package server has the runtime look at those pods and containers alone that a list is asked for. The
// build puts this file into containerd's package of the same name (internal/cri/server), which calls it
// (bundle.mk). Containerd itself copies all that it has, and then leaves out what was not asked for; it
// does so for each event of a container, too.
package server

import "strings"

// mayMatch reports whether a filter can let something through: by its id and that of its pod, which
// may be the beginnings of the ids, and by its labels. The filter itself comes after it.
func mayMatch(id, pod string, labels map[string]string, wantID, wantPod string, want map[string]string) bool {
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return strings.HasPrefix(id, wantID) && strings.HasPrefix(pod, wantPod)
}
