package pod

// ProbeVerdict is the current result of a probe of one container.
type ProbeVerdict int

// The results. A probe that has not reached its threshold on this incarnation of the container, or
// that does not exist, is unknown.
const (
	ProbeUnknown ProbeVerdict = iota
	ProbeSuccess
	ProbeFailure
)

func (v ProbeVerdict) String() string { return [...]string{"unknown", "success", "failure"}[v] }

// ProbeVerdicts are the results of a pod's probes at one moment, by incarnation. The maps are
// immutable; a nil map has no results.
type ProbeVerdicts struct {
	Liveness, Readiness, Startup map[ContainerID]ProbeVerdict
}
