package topologymanager

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"berth/internal/resources/machine"
)

// Policies for pods whose resources cannot be aligned (Kubernetes documentation, "Control Topology
// Management Policies on a node").
const (
	None           = "none"             // no alignment
	BestEffort     = "best-effort"      // admit the pod anyway
	Restricted     = "restricted"       // reject the pod
	SingleNUMANode = "single-numa-node" // reject the pod, and any that needs several nodes
)

// Scopes of alignment.
const (
	ContainerScope = "container" // align the resources of each container
	PodScope       = "pod"       // align the resources of the whole pod
)

// Policy options. All of them are generally available and need no feature gate.
const (
	preferClosest = "prefer-closest-numa-nodes"
	maxNodes      = "max-allowable-numa-nodes"
)

// defaultMaxNodes is the default and the minimum of max-allowable-numa-nodes: the number of hints
// doubles with each node.
const defaultMaxNodes = 8

// newMerging validates policy, scope and options against the machine, and returns the parameters of
// the merge. Errors name the configuration field; the error of too many nodes is the kubelet's.
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

// parseOptions returns whether closer nodes are preferred, and the maximum number of nodes.
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

// distances returns a function that sums up the distances between the nodes of a set. Of sets of
// equal size, the one with the lower sum has the lower average.
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

// admits reports whether the policy admits a pod with the merged hint h.
func admits(policy string, h Hint) bool {
	return h.Preferred || policy == None || policy == BestEffort
}
