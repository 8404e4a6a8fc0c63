package embedded

// Handlers returns the handlers that the embedded runtime offers for pods on this machine.
func Handlers() []string {
	if CheckKeepers() != nil {
		return []string{ShimHandler}
	}
	return []string{ShimHandler, KeeperHandler}
}
