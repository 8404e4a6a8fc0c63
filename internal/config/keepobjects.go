package config

// KeepObjects selects which objects of the API server the agent caches on disk, to restart its pods
// while the server is unavailable.
type KeepObjects string

// Which objects are cached: pods and the objects that they refer to, without Secrets and tokens;
// also these, encrypted; none.
const (
	KeepPods    KeepObjects = "pods"
	KeepAll     KeepObjects = "all"
	KeepNothing KeepObjects = "none"
)

// IsValid reports whether k is one of the constants.
func (k KeepObjects) IsValid() bool { return k == KeepPods || k == KeepAll || k == KeepNothing }
