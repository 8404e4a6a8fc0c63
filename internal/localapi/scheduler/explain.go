package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1"

	"berth/internal/explain"
	"berth/internal/localapi/controller"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
	"berth/internal/pod"
)

// Explain returns why a pod of the store is unbound; nil if there is no such pod, or it has a node
// or has terminated. It is safe for concurrent use.
func (s *Scheduler) Explain(namespace, name string) (*explain.Unbound, error) {
	p, err := controller.Get[*v1.Pod](s.cfg.Store, store.Key{Resource: podsResource, Namespace: namespace, Name: name})
	if err != nil || p == nil || !isUnbound(p) {
		return nil, err
	}
	u := &explain.Unbound{Pod: p, UID: p.UID}
	node, err := controller.Get[*v1.Node](s.cfg.Store, store.Key{Resource: nodesResource, Name: s.cfg.NodeName})
	if err != nil {
		return nil, err
	}
	snapshot := Snapshot{Node: node, ShuttingDown: s.shutdownBegan(), Claim: s.claim, WaitsForConsumer: s.waitsForConsumer}
	if err := each(s.cfg.Store, podsResource, func(other *v1.Pod) {
		switch {
		case s.isAssigned(other):
			snapshot.Pods = append(snapshot.Pods, other)
		case isWaiting(other) && isAhead(other, p):
			u.Ahead = append(u.Ahead, other.Namespace+"/"+other.Name)
		}
	}); err != nil {
		return nil, err
	}
	u.Reasons, err = Filters{}.Explain(snapshot, p)
	return u, err
}

func isUnbound(p *v1.Pod) bool {
	return p.Spec.NodeName == "" && len(p.Spec.Containers) > 0 && !pod.IsTerminal(p.Status.Phase)
}

// Unbound returns the pods of the store that have no node and have not terminated. It is safe for
// concurrent use.
func (s *Scheduler) Unbound() (pods []*v1.Pod, err error) {
	err = each(s.cfg.Store, podsResource, func(p *v1.Pod) {
		if isUnbound(p) {
			pods = append(pods, p)
		}
	})
	return pods, err
}

// each calls yield with the objects of a resource that can be decoded.
func each[T kinds.Object](s controller.Store, resource string, yield func(T)) error {
	_, err := s.List(store.Range{Resource: resource}, func(item store.Item) bool {
		if o, err := controller.Decode[T](item); err == nil {
			yield(o)
		}
		return true
	})
	return err
}

// isAhead reports whether a is scheduled before b.
func isAhead(a, b *v1.Pod) bool {
	return cmp.Or(cmp.Compare(corev1.PodPriority(b), corev1.PodPriority(a)), a.CreationTimestamp.Time.Compare(b.CreationTimestamp.Time)) < 0
}

// Explain returns the values of the first filter that a pod does not pass.
func (f Filters) Explain(s Snapshot, p *v1.Pod) ([]explain.SchedulingReason, error) {
	c := f.Begin(s).(*cycle)
	switch {
	case p.DeletionTimestamp != nil:
		return one("Deletion", fmt.Sprintf("it is deleted, and its finalizers keep it: %s", strings.Join(p.Finalizers, ", ")), ""), nil
	case len(p.Spec.SchedulingGates) > 0:
		var names []string
		for _, g := range p.Spec.SchedulingGates {
			names = append(names, g.Name)
		}
		gates := strings.Join(names, ", ")
		return one(explain.RuleSchedulingGates, "it has the scheduling gates "+gates, "its scheduling gates are removed ("+gates+"), which their controllers do"), nil
	case !isWaiting(p):
		return one(explain.RuleSchedulerName, fmt.Sprintf("its schedulerName is %q, and this node has %q alone", p.Spec.SchedulerName, v1.DefaultSchedulerName),
			fmt.Sprintf("scheduler %q binds it", p.Spec.SchedulerName)), nil
	case c.Node == nil:
		return one("Node", "the Node of this machine is not registered", "the Node is registered"), nil
	}
	if held, err := computeClaims(p, s); err != nil || held.message != "" {
		return []explain.SchedulingReason{claimReason(held)}, err
	}
	if r, held := computeNodeReason(p, s); held {
		return []explain.SchedulingReason{r}, nil
	}
	if port, taken := computePortsTaken(p, c.ports); taken {
		return []explain.SchedulingReason{portReason(port, c.Pods)}, nil
	}
	insufficient, _ := computeInsufficient(p, c.Node, c.used)
	if insufficient == nil {
		return nil, nil
	}
	return computeShortages(p, c), nil
}

func one(rule, detail, awaited string) []explain.SchedulingReason {
	return []explain.SchedulingReason{{Rule: rule, Detail: detail, Awaited: awaited}}
}

// claimReason describes the claim that prevents the binding of its pod.
func claimReason(held heldClaim) explain.SchedulingReason {
	r := explain.SchedulingReason{Rule: "VolumeBinding"}
	claim := held.claim
	switch {
	case claim == nil:
		r.Detail = fmt.Sprintf("PersistentVolumeClaim %q does not exist", held.name)
		r.Awaited = fmt.Sprintf("the PersistentVolumeClaim %q exists", held.name)
		return r
	case claim.Status.Phase == v1.ClaimLost:
		r.Detail = fmt.Sprintf("PersistentVolumeClaim %q is Lost: PersistentVolume %q is gone", held.name, claim.Spec.VolumeName)
		r.Awaited = fmt.Sprintf("the PersistentVolumeClaim %q is deleted, created again and bound", held.name)
		return r
	case claim.DeletionTimestamp != nil:
		r.Detail = fmt.Sprintf("PersistentVolumeClaim %q is being deleted", held.name)
		r.Awaited = "it is gone, created again and bound"
		return r
	case claim.Status.Phase == v1.ClaimBound:
		r.Detail = "the claim is not its own: " + held.message
		r.Awaited = fmt.Sprintf("the PersistentVolumeClaim %q is deleted: a claim of the pod's own is created then", held.name)
		return r
	}
	size, class := claim.Spec.Resources.Requests[v1.ResourceStorage], "no StorageClass"
	if name := claim.Spec.StorageClassName; name != nil && *name != "" {
		class = fmt.Sprintf("StorageClass %q (volumeBindingMode Immediate)", *name)
	}
	var modes []string
	for _, m := range claim.Spec.AccessModes {
		modes = append(modes, string(m))
	}
	r.Detail = fmt.Sprintf("PersistentVolumeClaim %q is %s: it asks for %s, %s, of %s", held.name, cmp.Or(claim.Status.Phase, v1.ClaimPending), size.String(), strings.Join(modes, " and "), class)
	r.Awaited = fmt.Sprintf("the PersistentVolumeClaim %q is bound: by a provisioner, or to a PersistentVolume of that class, size and access mode", held.name)
	return r
}

// computeNodeReason is computeUnresolvable with the values.
func computeNodeReason(p *v1.Pod, s Snapshot) (r explain.SchedulingReason, held bool) {
	n, words := s.Node, computeUnresolvable(p, s)
	switch {
	case words == "":
		return r, false
	case strings.Contains(words, "unschedulable"):
		return explain.SchedulingReason{Rule: "NodeUnschedulable", Detail: fmt.Sprintf("node %s is cordoned (spec.unschedulable)", n.Name), Awaited: "the node is uncordoned (kubectl uncordon " + n.Name + ")"}, true
	case strings.Contains(words, "taint"):
		return taintReason(p, s), true
	}
	return explain.SchedulingReason{
		Rule: "NodeAffinity", Detail: fmt.Sprintf("it wants a node with %s; node %s has %s", describeAffinity(p), n.Name, describeLabels(p, n)),
		Awaited: "the node has such labels",
	}, true
}

func taintReason(p *v1.Pod, s Snapshot) explain.SchedulingReason {
	n, r := s.Node, explain.SchedulingReason{Rule: "TaintToleration"}
	if !s.ShuttingDown.IsZero() {
		return explain.SchedulingReason{
			Rule: explain.RuleNodeShutdown, Detail: fmt.Sprintf("node %s is shutting down since %s, and its agent rejects pods", n.Name, s.ShuttingDown.UTC().Format(time.RFC3339)),
			Awaited: "the shutdown is cancelled, or the machine has started again",
		}
	}
	if t, untolerated := findUntolerated(p, n.Spec.Taints); untolerated {
		r.Detail = fmt.Sprintf("node %s has the taint %s, which the pod does not tolerate", n.Name, t.ToString())
		r.Awaited = "the taint is removed, or the pod gets a toleration for it"
		return r
	}
	var parts []string
	for _, c := range n.Status.Conditions {
		if slices.Contains(pressure(n), c.Type) {
			parts = append(parts, fmt.Sprintf("%s since %s", c.Type, c.LastTransitionTime.UTC().Format(time.RFC3339)))
		}
	}
	r.Detail = fmt.Sprintf("node %s has %s, which the pod does not tolerate", n.Name, strings.Join(parts, " and "))
	r.Awaited = "the pressure is over"
	return r
}

// describeAffinity formats the node selector and the required node affinity of a pod.
func describeAffinity(p *v1.Pod) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(p.Spec.NodeSelector)) {
		parts = append(parts, key+"="+p.Spec.NodeSelector[key])
	}
	if terms := requiredTerms(p); len(terms) > 0 {
		var either []string
		for _, t := range terms {
			var all []string
			for _, r := range slices.Concat(t.MatchExpressions, t.MatchFields) {
				text := r.Key + " " + string(r.Operator)
				if len(r.Values) > 0 {
					text += " (" + strings.Join(r.Values, ", ") + ")"
				}
				all = append(all, text)
			}
			either = append(either, strings.Join(all, " and "))
		}
		parts = append(parts, strings.Join(either, ", or "))
	}
	return strings.Join(parts, " and ")
}

func requiredTerms(p *v1.Pod) []v1.NodeSelectorTerm {
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// describeLabels formats the labels of a node by which a pod selects nodes.
func describeLabels(p *v1.Pod, n *v1.Node) string {
	var keys, parts []string
	for key := range p.Spec.NodeSelector {
		keys = append(keys, key)
	}
	for _, t := range requiredTerms(p) {
		for _, r := range t.MatchExpressions {
			keys = append(keys, r.Key)
		}
	}
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		if value, ok := n.Labels[key]; ok {
			parts = append(parts, key+"="+value)
		} else {
			parts = append(parts, "no label "+key)
		}
	}
	if len(parts) == 0 {
		return "another name"
	}
	return strings.Join(parts, ", ")
}

// portReason returns the pod that uses a host port.
func portReason(port v1.ContainerPort, assigned []*v1.Pod) explain.SchedulingReason {
	text := fmt.Sprintf("host port %d/%s", port.HostPort, cmp.Or(port.Protocol, v1.ProtocolTCP))
	wants := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Ports: []v1.ContainerPort{port}}}}}
	for _, other := range assigned {
		if _, taken := computePortsTaken(wants, hostPorts(other)); taken {
			r := explain.SchedulingReason{Rule: "NodePorts", Detail: fmt.Sprintf("pod %s/%s has %s", other.Namespace, other.Name, text)}
			r.Awaited = fmt.Sprintf("pod %s/%s has ended", other.Namespace, other.Name)
			if other.DeletionTimestamp != nil {
				r.Awaited += fmt.Sprintf(", which is being deleted, by %s at the latest", other.DeletionTimestamp.UTC().Format(time.RFC3339))
			}
			return r
		}
	}
	return explain.SchedulingReason{Rule: "NodePorts", Detail: text + " is in use", Awaited: text + " is free"}
}

// computeShortages is computeInsufficient with the amounts, by resource name.
func computeShortages(p *v1.Pod, c *cycle) (reasons []explain.SchedulingReason) {
	allocatable, requested := pod.AmountsOf(c.Node.Status.Allocatable), pod.ComputeRequests(p, podresource.PodResourcesOptions{})
	for _, name := range slices.Sorted(maps.Keys(requested)) {
		if requested[name] == 0 || requested[name] <= allocatable[name]-c.used[name] {
			continue
		}
		s := &explain.Shortage{Resource: name, Requested: requested[name], Used: c.used[name], Allocatable: allocatable[name]}
		for _, other := range c.Pods {
			if amount := usage(other)[name]; amount > 0 && name != v1.ResourcePods {
				u := explain.ResourceUser{Pod: other.Namespace + "/" + other.Name, Amount: amount}
				if other.DeletionTimestamp != nil {
					u.Until = other.DeletionTimestamp.Time
				}
				s.Users = append(s.Users, u)
			}
		}
		slices.SortFunc(s.Users, func(a, b explain.ResourceUser) int {
			return cmp.Or(cmp.Compare(b.Amount, a.Amount), cmp.Compare(a.Pod, b.Pod))
		})
		reasons = append(reasons, explain.SchedulingReason{Rule: "NodeResourcesFit", Shortage: s})
	}
	return reasons
}
