package explain

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1"
)

// maxNames is the maximum number of pods that a sentence names.
const maxNames = 3

func unboundText(f *facts) string {
	text := fmt.Sprintf("waits to be bound to a node%s", f.since(f.pod.CreationTimestamp.Time))
	if c := f.condition(v1.PodScheduled); c.Status != v1.ConditionTrue && c.Reason != "" {
		text += ": " + strings.TrimSuffix(OneLine(joinNonEmpty(": ", c.Reason, c.Message)), ".")
	}
	text += "."
	for _, r := range f.Unbound.Reasons {
		detail := r.Detail
		if r.Shortage != nil {
			detail = r.Shortage.describeUsers()
		}
		text += fmt.Sprintf(" %s: %s.", r.Rule, detail)
	}
	return text
}

func (s *Shortage) describeUsers() string {
	text := s.describe()
	if s.Resource == v1.ResourcePods {
		text = strings.Replace(text, amountOf(s.Resource, s.Requested), "a place for a pod", 1)
	}
	var users []string
	for _, u := range s.Users {
		users = append(users, fmt.Sprintf("%s has %s", u.Pod, amount(s.Resource, u.Amount)))
	}
	if len(users) == 0 {
		return text
	}
	return text + "; " + joinMost(users, maxNames, func(n int) string { return count(n, "other pod", "other pods") })
}

func nextUnbound(f *facts) []string {
	reasons := f.Unbound.Reasons
	order := fmt.Sprintf(", by priority (its is %d), then by age; no pod is ended for it", corev1.PodPriority(f.pod))
	if ahead := f.Unbound.Ahead; len(ahead) > 0 {
		order += "; ahead of it, if they fit: " + joinMost(ahead, maxNames, func(n int) string { return fmt.Sprintf("%d more", n) })
	}
	if len(reasons) == 0 {
		return []string{"the pod fits now: it is bound as soon as it is its turn" + order}
	}
	var awaited, lines []string
	for _, r := range reasons {
		s := r.Shortage
		switch {
		case s == nil && r.Awaited == "":
			return []string{"nothing: as soon as its finalizers are removed, it is gone"}
		case s == nil:
			awaited = append(awaited, r.Awaited)
			continue
		case s.Requested > s.Allocatable:
			return []string{fmt.Sprintf("nothing: this node never has %s for pods; a pod that asks for less is to take its place", amountOf(s.Resource, s.Requested))}
		case s.Resource == v1.ResourcePods:
			awaited = append(awaited, "one of its pods has ended")
		default:
			awaited = append(awaited, amountOf(s.Resource, s.Requested)+" are free")
		}
		for _, u := range s.Users {
			if !u.Until.IsZero() {
				lines = append(lines, fmt.Sprintf("%s: the grace period of pod %s is over, which is being deleted and has %s", f.due(u.Until), u.Pod, amountOf(s.Resource, u.Amount)))
			}
		}
	}
	then := ": the pod is bound then" + order
	switch reasons[0].Rule {
	case RuleSchedulerName:
		then = ""
	case RuleSchedulingGates:
		then = ": the pod is bound then, if it fits" + order
	}
	return append(lines, "as soon as "+strings.Join(awaited, " and ")+then)
}

// amount formats an amount of a resource, in the unit of a Shortage.
func amount(name v1.ResourceName, n int64) string {
	switch {
	case name == v1.ResourceCPU:
		return strconv.FormatFloat(float64(n)/1000, 'f', -1, 64)
	case name == v1.ResourceMemory, name == v1.ResourceEphemeralStorage, strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix):
		return strings.Replace(ByteSize(n), ".0 ", " ", 1)
	}
	return strconv.FormatInt(n, 10)
}

// amountOf is amount with the name of the resource.
func amountOf(name v1.ResourceName, n int64) string {
	switch {
	case name == v1.ResourceCPU && n == 1000:
		return "1 CPU"
	case name == v1.ResourceCPU:
		return amount(name, n) + " CPUs"
	case name == v1.ResourceMemory, name == v1.ResourceEphemeralStorage:
		return amount(name, n) + " of " + string(name)
	}
	return amount(name, n) + " " + string(name)
}

// describe returns the pod's request and how much is free.
func (s *Shortage) describe() string {
	return fmt.Sprintf("it asks for %s; %s of %s are free", amountOf(s.Resource, s.Requested), amount(s.Resource, max(0, s.Allocatable-s.Used)), amount(s.Resource, s.Allocatable))
}

// shortage matches a rejection for insufficient resources. Its numbers are in the resource's base
// unit: milli-CPUs, bytes or a count.
var shortage = regexp.MustCompile(`didn't have enough resource: ([^,]+), requested: (\d+), used: (\d+), capacity: (\d+)`)

func parseShortage(refusal string) (s Shortage, ok bool) {
	m := shortage.FindStringSubmatch(refusal)
	if m == nil {
		return s, false
	}
	s.Resource = v1.ResourceName(m[1])
	for i, n := range []*int64{&s.Requested, &s.Used, &s.Allocatable} {
		var err error
		if *n, err = strconv.ParseInt(m[i+2], 10, 64); err != nil {
			return s, false
		}
	}
	return s, true
}

// shortageIn describes the shortage of a rejection in human-readable units, with the text behind
// it; "" if it has none.
func shortageIn(refusal string) string {
	s, ok := parseShortage(refusal)
	if !ok {
		return ""
	}
	text := s.describe()
	if strings.HasPrefix(string(s.Resource), v1.ResourceHugePagesPrefix) { // without a unit, unlike in a Shortage of the scheduler
		text = fmt.Sprintf("it asks for %d %s; %d of %d are free", s.Requested, s.Resource, max(0, s.Allocatable-s.Used), s.Allocatable)
	}
	_, more, _ := strings.Cut(refusal, shortage.FindString(refusal))
	return text + strings.TrimSuffix(OneLine(more), ".")
}

var stamps = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// inUnits makes the times and shortages in a text human-readable.
func inUnits(f *facts, text string) string {
	text = stamps.ReplaceAllStringFunc(text, func(stamp string) string {
		t, err := time.Parse(time.RFC3339, stamp)
		if err != nil {
			return stamp
		}
		return f.at(t)
	})
	return shortage.ReplaceAllStringFunc(strings.ReplaceAll(text, "Node didn't have enough", "didn't have enough"), shortageIn)
}
