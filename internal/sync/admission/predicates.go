package admission

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"berth/internal/pod"
)

// predicates rejects pods that the scheduler would not have assigned to this node, or that were not
// scheduled. It collects all failures and reports the first. Preemption can resolve shortages of a
// critical pod, so its other failures are reported instead.
func predicates(a Attributes) *Rejection {
	if a.Node == nil {
		return &Rejection{Reason: "InvalidNodeInfo", Message: "The Node of this machine is not known."}
	}
	if r := operatingSystem(a); r != nil {
		return r
	}
	if r := supplementalGroups(a); r != nil {
		return r
	}
	shortages := computeShortages(a)
	var others []*Rejection
	for _, h := range []Handler{nodeAffinity, nodeName, hostPorts, taints} {
		if r := h(a); r != nil {
			others = append(others, r)
		}
	}
	switch {
	case len(others) == 0 && len(shortages) == 0:
		return nil
	case len(others) == 0:
		r := shortages[0].rejection()
		r.shortages = shortages
		return r
	case len(shortages) > 0 && !pod.IsCritical(a.Pod):
		return shortages[0].rejection()
	}
	first := *others[0]
	first.stale = first.stale && len(others) == 1 && len(shortages) == 0
	return &first
}

func operatingSystem(a Attributes) *Rejection {
	if os := a.Pod.Labels[v1.LabelOSStable]; os != "" && os != runtime.GOOS {
		return &Rejection{Reason: "PodOSSelectorNodeLabelDoesNotMatch", Message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	if os := a.Pod.Spec.OS; os != nil && string(os.Name) != runtime.GOOS {
		return &Rejection{Reason: "PodOSNotSupported", Message: "Failed to admit pod as the OS field doesn't match node OS"}
	}
	return nil
}

// supplementalGroups rejects pods whose groups the runtime would extend (KEP-3619).
func supplementalGroups(a Attributes) *Rejection {
	sc := a.Pod.Spec.SecurityContext
	if a.Facts.SupplementalGroupsPolicy || sc == nil || sc.SupplementalGroupsPolicy == nil || *sc.SupplementalGroupsPolicy != v1.SupplementalGroupsPolicyStrict {
		return nil
	}
	return &Rejection{
		Reason:  "SupplementalGroupsPolicyNotSupported",
		Message: "The container runtime does not support supplementalGroupsPolicy Strict: use Merge, or a runtime that has the feature.",
	}
}

// failed returns the rejection of a predicate, in the scheduler's wording.
func failed(predicate, text string) *Rejection {
	return &Rejection{Reason: predicate, Message: fmt.Sprintf("Predicate %s failed: %s", predicate, text)}
}

// nodeAffinity rejects pods that select nodes with other labels. An invalid selector matches no
// node.
func nodeAffinity(a Attributes) *Rejection {
	if match, err := nodeaffinity.GetRequiredNodeAffinity(a.Pod).Match(a.Node); match && err == nil {
		return nil
	}
	r := failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	r.Detail, r.stale = unmatched(a.Pod, a.Node), true
	return r
}

func nodeName(a Attributes) *Rejection {
	if name := a.Pod.Spec.NodeName; name == "" || a.Node.Name == "" || name == a.Node.Name {
		return nil
	}
	return failed("NodeName", "node(s) didn't match the requested node name")
}

type hostPort struct {
	protocol v1.Protocol
	port     int32
}

// hostPorts rejects pods that request a host port of another pod. A port on all addresses conflicts
// with the same port on any address.
func hostPorts(a Attributes) *Rejection {
	wanted := map[hostPort][]string{}
	eachHostPort(a.Pod, func(k hostPort, ip, _ string) { wanted[k] = append(wanted[k], ip) })
	if len(wanted) == 0 {
		return nil // the common case: skip the other pods
	}
	var taken []string
	for _, o := range a.OtherPods() {
		eachHostPort(o, func(k hostPort, other, container string) {
			for _, ip := range wanted[k] {
				if ip == other || ip == "" || other == "" {
					taken = append(taken, fmt.Sprintf("host port %d/%s is that of container %q of pod %s/%s", k.port, k.protocol, container, o.Namespace, o.Name))
				}
			}
		})
	}
	if taken == nil {
		return nil
	}
	r := failed("NodePorts", "node(s) didn't have free ports for the requested pod ports")
	r.Detail = strings.Join(taken, "; ")
	return r
}

func eachHostPort(p *v1.Pod, f func(k hostPort, ip, container string)) {
	for c := range pod.Containers(&p.Spec) {
		for _, port := range c.Ports {
			if port.HostPort == 0 {
				continue
			}
			ip := port.HostIP
			if ip == "0.0.0.0" || ip == "::" {
				ip = ""
			}
			f(hostPort{port.Protocol, port.HostPort}, ip, c.Name)
		}
	}
}

// taints rejects pods that a NoExecute taint would evict at once. Static pods ignore taints.
func taints(a Attributes) *Rejection {
	noExecute := slices.DeleteFunc(slices.Clone(a.Node.Spec.Taints), func(t v1.Taint) bool { return t.Effect != v1.TaintEffectNoExecute })
	if pod.IsStatic(a.Pod) || tolerates(a.Pod, noExecute...) {
		return nil
	}
	r := failed("TaintToleration", "node(s) had taints that the pod didn't tolerate")
	var left []string
	for _, t := range noExecute {
		if !tolerates(a.Pod, t) {
			left = append(left, t.ToString())
		}
	}
	r.Detail = "the node has the taint " + strings.Join(left, " and ") + ", which the pod does not tolerate"
	return r
}
