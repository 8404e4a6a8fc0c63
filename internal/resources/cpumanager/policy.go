package cpumanager

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"berth/internal/pod"
	"berth/internal/resources/topologymanager"
)

// policy decides which CPUs containers get. It is immutable.
type policy struct {
	static   bool // otherwise none, and the fields below but layout are zero
	options  options
	gates    Gates
	layout   *layout
	reserved cpuset.CPUSet
}

func newPolicy(cfg *Config, l *layout) (*policy, error) {
	p := &policy{static: cfg.Policy == Static, gates: cfg.Gates, layout: l}
	switch {
	case cfg.Policy == None && len(cfg.Options) > 0:
		//lint:ignore ST1005 the words are the kubelet's
		return nil, fmt.Errorf("None policy: received unsupported options=%v", cfg.Options)
	case cfg.Policy == None:
		return p, nil
	case cfg.Policy != Static:
		return nil, fmt.Errorf("unknown policy: %q; cpuManagerPolicy must be %s or %s", cfg.Policy, None, Static)
	}
	var err error
	if p.options, err = parseOptions(cfg.Options, cfg.Gates); err != nil {
		return nil, err
	}
	if p.options[alignBySocket] {
		if cfg.TopologyPolicy == "single-numa-node" {
			return nil, errors.New("cpuManagerPolicyOptions: align-by-socket is incompatible with topologyManagerPolicy single-numa-node; change one of them")
		}
		if l.sockets > len(l.nodes) {
			return nil, fmt.Errorf("cpuManagerPolicyOptions: align-by-socket is incompatible with this machine, which has more sockets (%d) than NUMA nodes (%d); turn it off",
				l.sockets, len(l.nodes))
		}
	}
	p.reserved, err = reservedCPUs(cfg, l)
	return p, err
}

func reservedCPUs(cfg *Config, l *layout) (cpuset.CPUSet, error) {
	if configured := cfg.ReservedCPUs; !configured.IsEmpty() {
		if missing := configured.Difference(l.online); !missing.IsEmpty() {
			return configured, fmt.Errorf("reservedSystemCPUs: %s are not online; the CPUs of this machine are %s", missing, l.online)
		}
		return configured, nil
	}
	if cfg.ReservedMilliCPU <= 0 {
		return cpuset.New(), errors.New("the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero")
	}
	n := int((cfg.ReservedMilliCPU + 999) / 1000)
	cpus, err := takeCPUs(l.machine, l.online, n, TakeOptions{GroupSize: 1})
	if err != nil {
		return cpus, fmt.Errorf("systemReserved and kubeReserved: cpu: %w", err)
	}
	return cpus, nil
}

// cpusOf returns the CPUs that the container must run on.
//
// Differs from the kubelet: if no shared CPUs are left (strict-cpu-reservation), the other
// containers run on the reserved CPUs. An empty set would let them run on all CPUs.
func (p *policy) cpusOf(now pools, uid pod.UID, container string) string {
	switch assigned := now.owned[uid][container]; {
	case !assigned.IsEmpty():
		return assigned.String()
	case now.shared.IsEmpty():
		return p.reserved.String()
	default:
		return now.shared.String()
	}
}

func (p *policy) hints(d demand) topologymanager.Hints {
	return topologymanager.Hints{v1.ResourceCPU: computeHints(p.layout, p.options, d)}
}

func (p *policy) exclusive(of *v1.Pod, c *v1.Container) int {
	if !p.static {
		return 0
	}
	return exclusiveCPUs(of, c, p.gates)
}

// demand returns a request for n CPUs with the available ones. With full-pcpus-only those are cores
// without a thread that another container uses.
//
// Differs from the kubelet: threads whose sibling is allocated do not count; they can be left from
// a time without the option.
func (p *policy) demand(now pools, n int, held cpuset.CPUSet) demand {
	free := now.shared.Difference(p.reserved)
	if p.options[fullPhysicalCPUs] {
		whole := p.layout.wholeCores(free.Union(held))
		free, held = free.Intersection(whole), held.Intersection(whole)
	}
	return demand{cpus: n, held: held, free: free.Difference(held)}
}

// pick chooses the CPUs, and enforces full-pcpus-only.
func (p *policy) pick(d demand, near topologymanager.Hint) (cpuset.CPUSet, error) {
	if !p.options[fullPhysicalCPUs] {
		return choose(p.layout, p.options, d, near)
	}
	available := d.free.Size() + d.held.Size()
	refusal := &topologymanager.Refusal{Reason: "SMTAlignmentError"}
	if d.cpus%p.layout.threads != 0 {
		refusal.Message = fmt.Sprintf("SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", d.cpus, p.layout.threads)
	} else if d.cpus <= available {
		if cpus := p.pickCores(d, near); !cpus.IsEmpty() {
			return cpus, nil
		}
	}
	if refusal.Message == "" {
		refusal.Message = fmt.Sprintf("SMT Alignment Error: not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, CPUs per core = %d",
			available, d.cpus, p.layout.threads)
	}
	return cpuset.New(), refusal
}

// pickCores chooses whole cores. If cores have different numbers of threads, a choice can end
// within a core: then it is made from the cores whose size divides the request.
func (p *policy) pickCores(d demand, near topologymanager.Hint) cpuset.CPUSet {
	even := p.layout.ofThreads(p.layout.threads)
	for _, d := range []demand{d, {d.cpus, d.held.Intersection(even), d.free.Intersection(even)}} {
		cpus, err := choose(p.layout, p.options, d, near)
		if err == nil && p.layout.wholeCores(cpus).Equals(cpus) {
			return cpus
		}
	}
	return cpuset.New()
}

// explain describes the input of a choice and the remaining shared CPUs.
func (p *policy) explain(d demand, near topologymanager.Hint, left pools) string {
	free := d.free.Union(d.held)
	parts := []string{fmt.Sprintf("it asks for %d of the %d free CPUs %s", d.cpus, free.Size(), orNone(free))}
	if !d.held.IsEmpty() {
		parts = append(parts, fmt.Sprintf("%s are those of init containers before it", d.held))
	}
	if near.Nodes != 0 {
		wanted := "NUMA nodes wanted: "
		if near.Preferred {
			wanted = "NUMA nodes preferred: "
		}
		parts = append(parts, wanted+nodesText(near.Nodes))
	}
	if len(p.options) > 0 {
		parts = append(parts, "options: "+p.options.String())
	}
	parts = append(parts, fmt.Sprintf("shared CPUs are %s", orNone(left.shared)))
	return strings.Join(parts, "; ")
}

func nodesText(nodes topologymanager.Nodes) string {
	var ids []int
	for id := range maxNode + 1 {
		if nodes&(1<<id) != 0 {
			ids = append(ids, id)
		}
	}
	return cpuset.New(ids...).String()
}

func orNone(cpus cpuset.CPUSet) string {
	if cpus.IsEmpty() {
		return "none"
	}
	return cpus.String()
}
