package config

// KeepObjects says what the agent keeps on disk of the API server's objects, to bring the pods of
// its node back while that is away.
type KeepObjects string

// What is kept: the pods and the objects that they refer to, without Secrets and tokens; these too,
// encrypted; nothing.
const (
	KeepPods    KeepObjects = "pods"
	KeepAll     KeepObjects = "all"
	KeepNothing KeepObjects = "none"
)

// IsValid reports whether it is one of these.
func (k KeepObjects) IsValid() bool { return k == KeepPods || k == KeepAll || k == KeepNothing }
