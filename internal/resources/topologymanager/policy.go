package topologymanager

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"berth/internal/resources/machine"
)

// The policies: what becomes of a pod that cannot have everything close together (Kubernetes
// documentation, "Control Topology Management Policies on a node").
const (
	None           = "none"             // nobody is asked
	BestEffort     = "best-effort"      // it starts all the same
	Restricted     = "restricted"       // it is refused
	SingleNUMANode = "single-numa-node" // it is refused, and so is what no single node can hold
)

// The scopes: what is brought close together.
const (
	ContainerScope = "container" // what each container asks for
	PodScope       = "pod"       // what all containers of a pod ask for
)

// The options of policies. All of them are generally available: no feature gate is asked.
const (
	preferClosest = "prefer-closest-numa-nodes"
	maxNodes      = "max-allowable-numa-nodes"
)

// defaultMaxNodes is how many nodes a machine may have unless an option says otherwise, and the
// least that the option may say: the number of hints doubles with each node.
const defaultMaxNodes = 8

// newMerging checks policy, scope and options against the machine, and returns what they make of a
// merge. The errors name the field of the configuration; those of too many nodes are the kubelet's.
func newMerging(cfg *Config) (merging, error) {
	switch cfg.Policy {
	case None, BestEffort, Restricted, SingleNUMANode:
	default:
		return merging{}, fmt.Errorf("topologyManagerPolicy: unknown policy %q: set %s, %s, %s or %s", cfg.Policy, None, BestEffort, Restricted, SingleNUMANode)
	}
	if cfg.Scope != ContainerScope && cfg.Scope != PodScope {
		return merging{}, fmt.Errorf("topologyManagerScope: unknown scope %q: set %s or %s", cfg.Scope, ContainerScope, PodScope)
	}
	if cfg.Policy == None {
		return merging{}, nil
	}
	closest, limit, err := parseOptions(cfg.Options)
	if err != nil {
		return merging{}, err
	}
	if len(cfg.Machine.Nodes) > limit {
		return merging{}, fmt.Errorf("unsupported on machines with more than %d NUMA Nodes", limit)
	}
	m := merging{single: cfg.Policy == SingleNUMANode}
	for _, n := range cfg.Machine.Nodes {
		if n.ID < 0 || n.ID >= MaxNodes {
			return merging{}, fmt.Errorf("NUMA node %d: topologyManagerPolicy %s can be used with nodes 0 to %d only: set it to %s", n.ID, cfg.Policy, MaxNodes-1, None)
		}
		m.all |= NodesOf(n.ID)
	}
	if closest {
		m.distance, err = distances(cfg.Machine)
	}
	return m, err
}

// parseOptions returns what the options say: whether near nodes are to be preferred, and how many
// nodes there may be.
func parseOptions(options map[string]string) (closest bool, limit int, err error) {
	limit = defaultMaxNodes
	for _, name := range slices.Sorted(maps.Keys(options)) {
		value := options[name]
		switch name {
		case preferClosest:
			if closest, err = strconv.ParseBool(value); err != nil {
				return false, 0, fmt.Errorf("topologyManagerPolicyOptions[%s]: %q is neither true nor false", name, value)
			}
		case maxNodes:
			if limit, err = strconv.Atoi(value); err != nil || limit < defaultMaxNodes {
				return false, 0, fmt.Errorf("topologyManagerPolicyOptions[%s]: %q is no number from %d", name, value, defaultMaxNodes)
			}
		default:
			return false, 0, fmt.Errorf("topologyManagerPolicyOptions[%s]: unknown option: %s and %s are known", name, preferClosest, maxNodes)
		}
	}
	return closest, limit, nil
}

// distances returns the func that adds up the distances between the nodes of a set. Of sets of one
// size, the one with the lower sum has the lower average.
func distances(m *machine.Machine) (func(Nodes) int, error) {
	between := map[[2]int]int{}
	for _, from := range m.Nodes {
		for _, to := range m.Nodes {
			d, ok := from.Distances[to.ID]
			if !ok {
				return nil, errors.New("topologyManagerPolicyOptions[" + preferClosest + "]: the machine does not tell the distances of its NUMA nodes: remove the option")
			}
			between[[2]int{from.ID, to.ID}] = d
		}
	}
	return func(n Nodes) int {
		sum, ids := 0, n.List()
		for _, from := range ids {
			for _, to := range ids {
				sum += between[[2]int{from, to}]
			}
		}
		return sum
	}, nil
}

// admits reports whether a pod may start whose hints came to h.
func admits(policy string, h Hint) bool {
	return h.Preferred || policy == None || policy == BestEffort
}
