package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresource "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/klog/v2"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
)

// Snapshot is the state that decisions are based on.
type Snapshot struct {
	// Node is the node of this machine; nil if it is not registered.
	Node *v1.Node
	// ShuttingDown is when the shutdown of the machine has begun, zero if there is none.
	ShuttingDown time.Time
	// Pods are assigned to the node and have not terminated.
	Pods []*v1.Pod
	// Claim returns a PersistentVolumeClaim, nil if there is none.
	Claim func(namespace, name string) (*v1.PersistentVolumeClaim, error)
	// WaitsForConsumer reports whether a storage class binds volumes on their first use by a pod.
	WaitsForConsumer func(class string) (bool, error)
}

// Decider decides which pods fit. kube-scheduler's framework could replace Filters.
type Decider interface {
	// Begin returns a cycle for a snapshot.
	Begin(s Snapshot) Cycle
}

// Cycle is a series of decisions for one snapshot.
type Cycle interface {
	// Decide returns "" if the pod fits, or else the message of its condition PodScheduled.
	Decide(p *v1.Pod) (unschedulable string, err error)
	// Assume counts a bound pod as assigned.
	Assume(p *v1.Pod)
}

// Filters is a Decider with kube-scheduler's default filters for nodes, taints, ports, resources
// and claims.
type Filters struct{}

// Begin implements Decider.
func (Filters) Begin(s Snapshot) Cycle {
	c := &cycle{Snapshot: s, used: pod.Amounts{}}
	for _, p := range s.Pods {
		c.Assume(p)
	}
	return c
}

// cycle is a Cycle with the usage of assigned pods.
type cycle struct {
	Snapshot
	used  pod.Amounts
	ports []v1.ContainerPort
}

// Assume implements Cycle. The allocated resources of a pod count while a resize is in progress.
func (c *cycle) Assume(p *v1.Pod) {
	for name, amount := range usage(p) {
		c.used[name] += amount
	}
	c.ports = append(c.ports, hostPorts(p)...)
}

const (
	notHelpful = "Preemption is not helpful for scheduling"
	noVictims  = "No preemption victims found for incoming pod"
)

// Decide implements Cycle.
func (c *cycle) Decide(p *v1.Pod) (string, error) {
	if c.Node == nil {
		return "no nodes available to schedule pods", nil
	}
	if r, err := computeClaims(p, c.Snapshot); err != nil || r.message != "" {
		return r.message, err
	}
	if r := computeUnresolvable(p, c.Snapshot); r != "" {
		return message(p, notHelpful, r), nil
	}
	if _, taken := computePortsTaken(p, c.ports); taken {
		return message(p, noVictims, "node(s) didn't have free ports for the requested pod ports"), nil
	}
	insufficient, preemption := computeInsufficient(p, c.Node, c.used)
	if insufficient == nil {
		return "", nil
	}
	return message(p, preemption, insufficient...), nil
}

// message returns kube-scheduler's message for a pod that is filtered out on its only node.
func message(p *v1.Pod, preemption string, reasons ...string) string {
	reasons = slices.Clone(reasons)
	for i := range reasons {
		reasons[i] = "1 " + reasons[i]
	}
	slices.Sort(reasons)
	text := "0/1 nodes are available: " + strings.Join(reasons, ", ") + ". no new claims to deallocate, preemption: "
	if policy := p.Spec.PreemptionPolicy; policy != nil && *policy == v1.PreemptNever {
		return text + "not eligible due to preemptionPolicy=Never."
	}
	return text + "0/1 nodes are available: 1 " + preemption + "."
}

// unfiltered returns kube-scheduler's message for a pod that is rejected before nodes are filtered.
// Its suffix is that of the dynamic resources plugin, which has no state then.
func unfiltered(format string, args ...any) string {
	return "0/1 nodes are available: " + fmt.Sprintf(format, args...) + ". not found"
}

// heldClaim is a claim that prevents the binding of its pod.
type heldClaim struct {
	name    string
	claim   *v1.PersistentVolumeClaim // nil if it does not exist
	message string                    // of the pod's condition; "" if no claim prevents the binding
}

// computeClaims returns the first claim that prevents the binding of a pod. One that waits for its
// first consumer does not: pvbinder binds it, and the agent waits for that.
func computeClaims(p *v1.Pod, s Snapshot) (heldClaim, error) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		var name string
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(p, v)
		default:
			continue
		}
		claim, err := s.Claim(p.Namespace, name)
		if err != nil {
			return heldClaim{}, err
		}
		held := func(format string, args ...any) (heldClaim, error) {
			return heldClaim{name, claim, unfiltered(format, args...)}, nil
		}
		switch {
		case claim == nil && v.Ephemeral != nil:
			return held("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
		case claim == nil:
			return held("persistentvolumeclaim %q not found", name)
		case v.Ephemeral != nil && ephemeral.VolumeIsForPod(p, claim) != nil:
			return held("%v", ephemeral.VolumeIsForPod(p, claim))
		case claim.Status.Phase == v1.ClaimLost:
			return held("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name, claim.Spec.VolumeName)
		case claim.DeletionTimestamp != nil:
			return held("persistentvolumeclaim %q is being deleted", name)
		case claim.Status.Phase == v1.ClaimBound:
			continue
		}
		waits := false
		if class := claim.Spec.StorageClassName; class != nil && *class != "" {
			if waits, err = s.WaitsForConsumer(*class); err != nil {
				return heldClaim{}, err
			}
		}
		if !waits {
			return held("pod has unbound immediate PersistentVolumeClaims")
		}
	}
	return heldClaim{}, nil
}

// computeUnresolvable returns why the node does not fit the pod, whatever other pods it has. A
// shutdown rules out pods with any tolerations: the agent rejects them all.
func computeUnresolvable(p *v1.Pod, s Snapshot) string {
	n, cordon := s.Node, v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}
	switch match, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n); {
	case namesOtherNodes(p, n.Name):
		return "node(s) didn't satisfy plugin(s) [NodeAffinity]"
	case n.Spec.Unschedulable && !tolerates(p, cordon):
		return "node(s) were unschedulable"
	case !s.ShuttingDown.IsZero() || !tolerates(p, n.Spec.Taints...) || hasPressureFor(p, pressure(n)):
		return "node(s) had untolerated taint(s)"
	case !match || err != nil:
		return "node(s) didn't match Pod's node affinity/selector"
	}
	return ""
}

// namesOtherNodes reports whether each term of the node affinity selects nodes by name, and none of
// them selects this node.
func namesOtherNodes(p *v1.Pod, node string) bool {
	terms := requiredTerms(p)
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(t v1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchFields, func(r v1.NodeSelectorRequirement) bool {
			return r.Key == metav1.ObjectNameField && r.Operator == v1.NodeSelectorOpIn && !slices.Contains(r.Values, node)
		})
	})
}

// pressure returns the conditions of a node for which the agent's admission rejects pods.
func pressure(n *v1.Node) (out []v1.NodeConditionType) {
	for _, c := range n.Status.Conditions {
		switch c.Type {
		case v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure:
			if c.Status == v1.ConditionTrue {
				out = append(out, c.Type)
			}
		}
	}
	return out
}

// hasPressureFor reports whether the agent's admission rejects the pod for a condition of the node.
// kube-controller-manager would taint the node for it.
func hasPressureFor(p *v1.Pod, conditions []v1.NodeConditionType) bool {
	switch {
	case len(conditions) == 0 || pod.HasCriticalPriority(p):
		return false
	case slices.Equal(conditions, []v1.NodeConditionType{v1.NodeMemoryPressure}):
		return cgroups.QOSClass(p) == v1.PodQOSBestEffort && !tolerates(p, v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule})
	}
	return true
}

// tolerates reports whether the pod tolerates all taints. PreferNoSchedule is ignored.
func tolerates(p *v1.Pod, taints ...v1.Taint) bool {
	_, untolerated := findUntolerated(p, taints)
	return !untolerated
}

// findUntolerated returns the first taint that the pod does not tolerate, and false if there is
// none.
func findUntolerated(p *v1.Pod, taints []v1.Taint) (v1.Taint, bool) {
	holds := func(t *v1.Taint) bool { return t.Effect != v1.TaintEffectPreferNoSchedule }
	// The last argument is the gate TaintTolerationComparisonOperators, off as in admission.
	return corev1.FindMatchingUntoleratedTaint(klog.Background(), taints, p.Spec.Tolerations, holds, false)
}

func hostPorts(p *v1.Pod) (out []v1.ContainerPort) {
	for c := range pod.Containers(&p.Spec) {
		for _, port := range c.Ports {
			if port.HostPort != 0 {
				out = append(out, port)
			}
		}
	}
	return out
}

// computePortsTaken returns the first requested host port that is in use, and false if there is
// none. A port on all addresses conflicts with the same port on any.
func computePortsTaken(p *v1.Pod, inUse []v1.ContainerPort) (v1.ContainerPort, bool) {
	all := func(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }
	for _, a := range hostPorts(p) {
		if slices.ContainsFunc(inUse, func(b v1.ContainerPort) bool {
			return a.HostPort == b.HostPort && cmp.Or(a.Protocol, v1.ProtocolTCP) == cmp.Or(b.Protocol, v1.ProtocolTCP) &&
				(a.HostIP == b.HostIP || all(a.HostIP) || all(b.HostIP))
		}) {
			return a, true
		}
	}
	return v1.ContainerPort{}, false
}

// computeInsufficient returns the resources that the node lacks, as reasons, and the effect of
// preemption: none if the node would be too small without other pods too. A node that reports no
// allocatable resources lacks none, as in the agent's admission.
func computeInsufficient(p *v1.Pod, n *v1.Node, used pod.Amounts) (reasons []string, preemption string) {
	if n.Status.Allocatable == nil {
		return nil, ""
	}
	allocatable := pod.AmountsOf(n.Status.Allocatable)
	preemption = noVictims
	for name, amount := range pod.ComputeRequests(p, podresource.PodResourcesOptions{}) {
		if amount == 0 || amount <= allocatable[name]-used[name] {
			continue
		}
		if amount > allocatable[name] {
			preemption = notHelpful
		}
		if name == v1.ResourcePods {
			reasons = append(reasons, "Too many pods")
		} else {
			reasons = append(reasons, "Insufficient "+string(name))
		}
	}
	return reasons, preemption
}
