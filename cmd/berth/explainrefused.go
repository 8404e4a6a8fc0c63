package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// aboutRefusal returns the reason of the pod's rejection: in human-readable units, from the
// decision, or from its status.
func (s explainer) aboutRefusal(refusal string) string {
	text := cmp.Or(shortOf(refusal), s.apart(), strings.TrimPrefix(s.why("refuse the pod"), ": "), oneLine(refusal))
	return strings.TrimSuffix(text, ".") + s.cpusRefused()
}

// placed describes the placement that topology manager policies require.
var placed = map[string]string{
	"single-numa-node": "on one NUMA node",
	"restricted":       "on as few NUMA nodes as could have it",
}

// apart names the NUMA nodes that could satisfy each request, if the topology manager rejected the
// pod.
func (s explainer) apart() string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component != "topology" || !strings.HasPrefix(e.Decision, "refuse: ") {
			continue
		}
		who := "it"
		if e.Container != "" {
			who = fmt.Sprintf("container %q", e.Container)
		}
		policy, hints, _ := strings.Cut(strings.TrimPrefix(e.Why, "policy "), "; ")
		hints, _, _ = strings.Cut(hints, "; merged ")
		hints = strings.NewReplacer(", else {", ", not as well on {", " else {", " not well on {", " {", " on {").Replace(hints)
		return fmt.Sprintf("%s cannot have all that it asks for %s, as the topology policy %s wants; there is %s", who, placed[policy], policy, oneLine(hints))
	}
	return ""
}

// cpusRefused names the CPUs that were available to a container whose exclusive CPUs were rejected.
func (s explainer) cpusRefused() string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component == "cpus" && strings.HasPrefix(e.Decision, "refuse ") {
			why, _, _ := strings.Cut(e.Why, "; shared CPUs")
			return fmt.Sprintf(" (container %q: %s)", e.Container, oneLine(why))
		}
	}
	return ""
}
