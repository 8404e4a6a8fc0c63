package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// resources are the names of resource limits, indexed by their number.
var resources = strings.Fields(`RLIMIT_CPU RLIMIT_FSIZE RLIMIT_DATA RLIMIT_STACK RLIMIT_CORE RLIMIT_RSS RLIMIT_NPROC RLIMIT_NOFILE RLIMIT_MEMLOCK RLIMIT_AS
	RLIMIT_LOCKS RLIMIT_SIGPENDING RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME`)

// rlimits sets the limits while the process may still raise them.
func (p *Plan) rlimits(process *specs.Process) {
	for _, r := range process.Rlimits {
		p.add(opRlimit, [4]string{}, uint64(slices.Index(resources, r.Type)), r.Soft, r.Hard)
	}
}

func validateRlimits(limits []specs.POSIXRlimit) error {
	seen := map[string]bool{}
	for i, r := range limits {
		field := fmt.Sprintf("process.rlimits[%d]", i)
		switch {
		case !slices.Contains(resources, r.Type):
			return unsupported(field, "%q is not known to the podshim", r.Type)
		case seen[r.Type]:
			return invalid(field, "%s is there twice", r.Type)
		case r.Soft > r.Hard:
			return invalid(field, "%s has a soft limit of %d above the hard one of %d", r.Type, r.Soft, r.Hard)
		}
		seen[r.Type] = true
	}
	return nil
}
