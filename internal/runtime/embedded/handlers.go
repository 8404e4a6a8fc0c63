package embedded

// Handlers returns the runtime handlers that the embedded runtime supports on this host.
func Handlers() []string {
	if CheckPodshims() != nil {
		return []string{ShimHandler}
	}
	return []string{ShimHandler, PodshimHandler, DeprecatedPodshimHandler}
}
