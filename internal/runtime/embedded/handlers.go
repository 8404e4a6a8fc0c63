package embedded

import (
	"berth/internal/host/preflight"
)

// Handlers returns the runtime handlers that the embedded runtime supports on this host.
func Handlers() []string {
	if preflight.CheckPodshims() != nil {
		return []string{ShimHandler}
	}
	return []string{ShimHandler, PodshimHandler, DeprecatedPodshimHandler}
}
