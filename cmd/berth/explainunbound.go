package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1"

	"berth/internal/explain"
)

// unbound explains a pod that is not bound to a node.
type unbound struct{ explainer }

func (s explainer) isUnbound() bool {
	return s.e.Unbound != nil && s.pod != nil && s.pod.UID == s.e.Unbound.UID
}

// aboutUnbound describes the scheduler's report and the current shortages.
func (s unbound) aboutUnbound() string {
	text := fmt.Sprintf("waits to be bound to a node%s", s.sinceTime(s.pod.CreationTimestamp.Time))
	for _, c := range s.pod.Status.Conditions {
		if c.Type == v1.PodScheduled && c.Status != v1.ConditionTrue && c.Reason != "" {
			text += ": " + strings.TrimSuffix(oneLine(joinNonEmpty(": ", c.Reason, c.Message)), ".")
		}
	}
	text += "."
	for _, r := range s.e.Unbound.Reasons {
		detail := r.Detail
		if r.Shortage != nil {
			detail = shortageText(r.Shortage) + s.usersText(r.Shortage)
		}
		text += fmt.Sprintf(" %s: %s.", r.Rule, detail)
	}
	return s.says("%s", text)
}

// usersText names the pods that use most of a scarce resource.
func (s unbound) usersText(sh *explain.Shortage) string {
	const most = 3
	var users []string
	for i, u := range sh.Users {
		if i == most {
			users = append(users, count(len(sh.Users)-most, "other pod"))
			break
		}
		users = append(users, fmt.Sprintf("%s has %s", u.Pod, amountText(sh.Resource, u.Amount)))
	}
	if len(users) == 0 {
		return ""
	}
	return "; " + strings.Join(users, ", ")
}

// amountText formats an amount in a human-readable unit.
func amountText(name v1.ResourceName, n int64) string {
	switch {
	case name == v1.ResourceCPU:
		return strconv.FormatFloat(float64(n)/1000, 'f', -1, 64)
	case name == v1.ResourceMemory, name == v1.ResourceEphemeralStorage, strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix):
		return strings.Replace(byteSize(n), ".0 ", " ", 1)
	}
	return strconv.FormatInt(n, 10)
}

// unitText names the unit of a resource's amounts.
func unitText(name v1.ResourceName, n int64) string {
	switch {
	case name == v1.ResourceCPU && n == 1000:
		return " CPU"
	case name == v1.ResourceCPU:
		return " CPUs"
	case name == v1.ResourceMemory, name == v1.ResourceEphemeralStorage:
		return " of " + string(name)
	}
	return " " + string(name)
}

// shortageText describes the pod's request and how much is free.
func shortageText(sh *explain.Shortage) string {
	asks := amountText(sh.Resource, sh.Requested) + unitText(sh.Resource, sh.Requested)
	if sh.Resource == v1.ResourcePods {
		asks = "a place for a pod"
	}
	return fmt.Sprintf("it asks for %s; %s of %s are free", asks, amountText(sh.Resource, max(0, sh.Allocatable-sh.Used)), amountText(sh.Resource, sh.Allocatable))
}

// nextUnbound reports what allows the pod to be bound, and its place in the queue.
func (s unbound) nextUnbound() []string {
	reasons := s.e.Unbound.Reasons
	if len(reasons) == 0 {
		return []string{"the pod fits now: it is bound as soon as it is its turn" + s.turn()}
	}
	var awaited []string
	for _, r := range reasons {
		switch sh := r.Shortage; {
		case sh == nil && r.Awaited == "":
			return []string{"nothing: as soon as its finalizers are removed, it is gone"}
		case sh == nil:
			awaited = append(awaited, r.Awaited)
		case sh.Requested > sh.Allocatable:
			return []string{fmt.Sprintf("nothing: this node never has %s%s for pods; a pod that asks for less is to take its place",
				amountText(sh.Resource, sh.Requested), unitText(sh.Resource, sh.Requested))}
		case sh.Resource == v1.ResourcePods:
			awaited = append(awaited, "one of its pods has ended")
		default:
			awaited = append(awaited, fmt.Sprintf("%s%s are free", amountText(sh.Resource, sh.Requested), unitText(sh.Resource, sh.Requested)))
		}
	}
	then := ": the pod is bound then" + s.turn()
	switch reasons[0].Rule {
	case explain.RuleSchedulerName:
		then = ""
	case explain.RuleSchedulingGates:
		then = ": the pod is bound then, if it fits" + s.turn()
	}
	return append(s.ends(), "as soon as "+strings.Join(awaited, " and ")+then)
}

// ends reports the deadlines of terminating pods that hold the awaited resources.
func (s unbound) ends() (lines []string) {
	for _, r := range s.e.Unbound.Reasons {
		if r.Shortage == nil {
			continue
		}
		for _, u := range r.Shortage.Users {
			if !u.Until.IsZero() {
				sh := r.Shortage
				lines = append(lines, fmt.Sprintf("%s: the grace period of pod %s is over, which is being deleted and has %s%s",
					s.dueText(u.Until), u.Pod, amountText(sh.Resource, u.Amount), unitText(sh.Resource, u.Amount)))
			}
		}
	}
	return lines
}

// turn describes the order in which waiting pods are bound.
func (s unbound) turn() string {
	text := fmt.Sprintf(", by priority (its is %d), then by age; no pod is ended for it", corev1.PodPriority(s.pod))
	if ahead := s.e.Unbound.Ahead; len(ahead) > 0 {
		const most = 3
		names := slices.Clone(ahead[:min(len(ahead), most)])
		if len(ahead) > most {
			names = append(names, fmt.Sprintf("%d more", len(ahead)-most))
		}
		text += "; ahead of it, if they fit: " + strings.Join(names, ", ")
	}
	return text
}
