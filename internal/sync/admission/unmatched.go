package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// unmatched describes the node labels that a pod selects and the node's actual ones, without the
// nodeSelector entries that match.
func unmatched(p *v1.Pod, n *v1.Node) string {
	var wants []string
	for _, key := range slices.Sorted(maps.Keys(p.Spec.NodeSelector)) {
		if value := p.Spec.NodeSelector[key]; n.Labels[key] != value || !hasLabel(n, key) {
			wants = append(wants, fmt.Sprintf("its nodeSelector wants %s=%s, and %s", key, value, labelOf(n, key)))
		}
	}
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		var terms, keys []string
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			var all []string
			for _, e := range term.MatchExpressions {
				all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Key, e.Operator, strings.Join(e.Values, ", "))))
				keys = append(keys, e.Key)
			}
			for _, e := range term.MatchFields {
				all = append(all, fmt.Sprintf("%s %s %s", e.Key, e.Operator, strings.Join(e.Values, ", ")))
			}
			terms = append(terms, strings.Join(all, " and "))
		}
		slices.Sort(keys)
		var present []string
		for _, key := range slices.Compact(keys) {
			present = append(present, labelOf(n, key))
		}
		wants = append(wants, joinNonEmpty("its node affinity wants "+strings.Join(terms, ", or "), strings.Join(present, ", ")))
	}
	return strings.Join(wants, "; ")
}

func joinNonEmpty(wants, present string) string {
	if present == "" {
		return wants
	}
	return wants + ", and " + present
}

func hasLabel(n *v1.Node, key string) bool {
	_, ok := n.Labels[key]
	return ok
}

// labelOf describes the node's label with this key.
func labelOf(n *v1.Node, key string) string {
	if !hasLabel(n, key) {
		return "the node has no label " + key
	}
	return fmt.Sprintf("the node has %s=%s", key, n.Labels[key])
}
