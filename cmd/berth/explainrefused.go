package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// aboutRefusal says why the pod was refused: in people's units, by what was decided, or as its
// status has it.
func (s explainer) aboutRefusal(refusal string) string {
	text := cmp.Or(shortOf(refusal), s.apart(), strings.TrimPrefix(s.why("refuse the pod"), ": "), oneLine(refusal))
	return strings.TrimSuffix(text, ".") + s.cpusRefused()
}

// placed says where policies of the topology manager want what a container asks for.
var placed = map[string]string{
	"single-numa-node": "on one NUMA node",
	"restricted":       "on as few NUMA nodes as could have it",
}

// apart says on which NUMA nodes what was asked for could lie, if the pod was refused for that.
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

// cpusRefused says from what CPUs a container would have got its own, if it got none.
func (s explainer) cpusRefused() string {
	for _, e := range slices.Backward(s.timeline.Entries) {
		if e.Component == "cpus" && strings.HasPrefix(e.Decision, "refuse ") {
			why, _, _ := strings.Cut(e.Why, "; shared CPUs")
			return fmt.Sprintf(" (container %q: %s)", e.Container, oneLine(why))
		}
	}
	return ""
}
