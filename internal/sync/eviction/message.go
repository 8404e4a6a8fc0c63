package eviction

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Events of a node that is short of a resource, and of a pod that does not terminate in time; the
// strings are the kubelet's.
const (
	thresholdMet               = "EvictionThresholdMet"
	exceededGracePeriod        = "ExceededGracePeriod"
	exceededGracePeriodMessage = "Container runtime did not kill the pod within specified grace period."
)

// Annotations of the event of an evicted pod; the names are the kubelet's.
const (
	starvedResource          = "starved_resource"
	offendingContainers      = "offending_containers"
	offendingContainersUsage = "offending_containers_usage"
	offendingPod             = "offending_pod"
	offendingPodUsage        = "offending_pod_usage"
)

// mostRanked limits the pods of a ranking in a message, mostExplained those in the journal.
const mostRanked, mostExplained = 5, 20

func quantity(what v1.ResourceName, n uint64) string {
	format := resource.BinarySI
	if what == pids || what == inodes {
		format = resource.DecimalSI
	}
	return resource.NewQuantity(int64(min(n, math.MaxInt64)), format).String()
}

// generateMessage returns why a pod is evicted, in the kubelet's wording, and the annotations of
// the event.
func generateMessage(m *met, c *candidate) (message string, annotations map[string]string) {
	what := m.threshold.Signal.resource()
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %s. ", what)
	fmt.Fprintf(&b, "Threshold quantity: %s, available: %s. ", thresholdQuantity(m), quantity(what, m.amount.Available))
	if !c.measured {
		return b.String(), nil
	}
	annotations = map[string]string{starvedResource: string(what)}
	if what == memory && hasPodLevelRequest(c.pod) && c.used > c.request {
		fmt.Fprintf(&b, "Pod %s was using %s, request is %s, has larger consumption of %s. ", c.pod.Name, quantity(what, c.used), quantity(what, c.request), what)
		annotations[offendingPod], annotations[offendingPodUsage] = c.pod.Name, quantity(what, c.used)
	}
	var names, uses []string
	for _, ct := range c.containers {
		if ct.used > ct.request {
			fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %s. ", ct.name, quantity(what, ct.used), quantity(what, ct.request), what)
			names, uses = append(names, ct.name), append(uses, quantity(what, ct.used))
		}
	}
	annotations[offendingContainers], annotations[offendingContainersUsage] = strings.Join(names, ","), strings.Join(uses, ",")
	return b.String(), annotations
}

func thresholdQuantity(m *met) string {
	if m.threshold.Value.Quantity != nil {
		return m.threshold.Value.Quantity.String()
	}
	return quantity(m.threshold.Signal.resource(), m.threshold.Value.of(m.amount.Capacity))
}

// generateRanking returns the last sentence of a message: the first pods of the ranking and the
// victim, with the reasons of their ranks.
func generateRanking(what v1.ResourceName, pods []candidate, victim, most int) string {
	var lines []string
	for i := range pods {
		if i >= most && i != victim {
			continue
		}
		c := &pods[i]
		facts := c.facts(what)
		switch {
		case i == victim:
			facts = append(facts, "evicted")
		case c.leaving:
			facts = append(facts, "ends already")
		case c.critical:
			facts = append(facts, "spared: critical")
		}
		lines = append(lines, fmt.Sprintf("%s/%s (%s)", c.pod.Namespace, c.pod.Name, strings.Join(facts, ", ")))
	}
	left := ""
	if n := len(pods) - len(lines); n > 0 {
		left = fmt.Sprintf(", and %d more", n)
	}
	return "Pods by rank: " + strings.Join(lines, ", ") + left + ". "
}

// mostBytes limits an explanation in the journal.
const mostBytes = 2000

// generateExplanation returns the journal's message of an eviction: with the threshold, a longer
// ranking, why this pod was chosen, and when the amount was read.
func generateExplanation(m *met, reason string, pods []candidate, victim int) string {
	what := m.threshold.Signal.resource()
	choice := fmt.Sprintf("Chosen: %s. Read at %s.", generateChoice(what, pods, victim), m.read.UTC().Format(time.RFC3339))
	if !m.threshold.isHard() {
		choice += fmt.Sprintf(" Met since %s, for its grace period of %s.", m.since.UTC().Format(time.RFC3339), m.threshold.Grace)
	}
	for most := mostExplained; ; most-- {
		text := m.threshold.String() + ": " + reason + generateRanking(what, pods, victim, most) + choice
		if most == 1 || len(text) <= mostBytes {
			return text
		}
	}
}

// generateChoice returns the rule of the ranking that put the pod before the next one.
func generateChoice(what v1.ResourceName, pods []candidate, victim int) string {
	c := &pods[victim]
	i := slices.IndexFunc(pods[victim+1:], func(other candidate) bool { return !other.critical && !other.leaving })
	if c.leaving {
		return "it is being evicted already, and its grace period is shortened"
	}
	if i < 0 {
		return "no other pod can be evicted"
	}
	next := &pods[victim+1+i]
	other := next.pod.Namespace + "/" + next.pod.Name
	switch {
	case !c.measured && next.measured:
		return fmt.Sprintf("nothing of it runs, and of %s something does", other)
	case c.class(what) != next.class(what):
		return fmt.Sprintf("it uses more than it requests, which goes before priority, and %s does not", other)
	case c.priority != next.priority:
		return fmt.Sprintf("its priority is %d, that of %s %d", c.priority, other, next.priority)
	case what == pids && c.used != next.used:
		return fmt.Sprintf("of the same priority it has most tasks, %s, and %s %s", quantity(what, c.used), other, quantity(what, next.used))
	case c.over() != next.over():
		return fmt.Sprintf("of the same priority its use is the most beyond its request, by %s, that of %s by %s", difference(what, c.over()), other, difference(what, next.over()))
	}
	return fmt.Sprintf("of those that are equal it is the youngest, or the first by UID; the next is %s", other)
}

// difference formats an amount that may be negative.
func difference(what v1.ResourceName, n int64) string {
	if n < 0 {
		return "-" + quantity(what, uint64(-n))
	}
	return quantity(what, uint64(n))
}

// facts are the values that determined the pod's rank.
func (c *candidate) facts(what v1.ResourceName) []string {
	var facts []string
	switch {
	case !c.measured && c.leaving:
		facts = append(facts, "nothing of it is known")
	case !c.measured:
		facts = append(facts, "nothing of it runs")
	case what == pids:
		facts = append(facts, "tasks "+quantity(what, c.used))
	case what == inodes:
		facts = append(facts, "uses "+quantity(what, c.used))
	default:
		facts = append(facts, "uses "+quantity(what, c.used), "request "+quantity(what, c.request))
	}
	return append(facts, fmt.Sprintf("priority %d", c.priority))
}
