package pod

// ProbeVerdict is what a probe of one container says now.
type ProbeVerdict int

// The verdicts. A probe that has not reached its threshold on this incarnation of the container,
// and one that does not exist, is unknown.
const (
	ProbeUnknown ProbeVerdict = iota
	ProbeSuccess
	ProbeFailure
)

func (v ProbeVerdict) String() string { return [...]string{"unknown", "success", "failure"}[v] }

// ProbeVerdicts are the verdicts of a pod's probes at one moment, by incarnation. The maps are not
// changed after they were handed out; a nil map has no verdict.
type ProbeVerdicts struct {
	Liveness, Readiness, Startup map[ContainerID]ProbeVerdict
}
