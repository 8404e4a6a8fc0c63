package devicemanager

import (
	"fmt"
	"slices"
	"strings"

	"berth/internal/resources/topologymanager"
)

type candidates struct {
	count int
	// reusable are devices of this pod's earlier init containers; free are unassigned devices. All
	// are healthy and sorted.
	reusable, free []string
	// nodes are the NUMA nodes of each device.
	nodes map[string]topologymanager.Nodes
	near  topologymanager.Nodes // 0: any
}

// explain describes the devices to choose from, for the journal.
func (c candidates) explain() string {
	parts := []string{fmt.Sprintf("it asks for %d; healthy and free are %s", c.count, listOrNone(c.free))}
	if len(c.reusable) > 0 {
		parts = append(parts, list(c.reusable)+" are those of init containers before it")
	}
	if c.near != 0 {
		parts = append(parts, "NUMA nodes wanted: "+c.near.String())
	}
	return strings.Join(parts, "; ")
}

func listOrNone(ids []string) string {
	if len(ids) == 0 {
		return "none"
	}
	return list(ids)
}

type preferenceRequest struct {
	available, must []string
	size            int
}

// choose returns the devices for the container: those of earlier init containers first, then those
// near c.near, of which the plugin may prefer some. prefer returns nil if the plugin has no
// preference. The caller has checked that there are enough devices.
func (c candidates) choose(prefer func(preferenceRequest) []string) []string {
	var near, far, anywhere []string
	for _, id := range c.free {
		switch {
		case c.near == 0 || c.nodes[id] == 0:
			anywhere = append(anywhere, id)
		case c.nodes[id]&c.near != 0:
			near = append(near, id)
		default:
			far = append(far, id)
		}
	}
	out := take(nil, c.count, nearFirst(c.reusable, c.nodes, c.near))
	need := c.count - len(out)
	switch {
	case need <= 0:
		return out
	case len(near) > need:
		preferred := prefer(preferenceRequest{slices.Concat(out, near), out, c.count})
		return take(out, c.count, only(preferred, near), near)
	}
	out = take(out, c.count, near)
	if len(out) == c.count {
		return out
	}
	rest := slices.Concat(anywhere, far)
	slices.Sort(rest)
	preferred := prefer(preferenceRequest{slices.Concat(out, rest), out, c.count})
	return take(out, c.count, only(preferred, rest), far, anywhere)
}

// take appends devices from the lists that have does not contain, up to count.
func take(have []string, count int, lists ...[]string) []string {
	out := slices.Clone(have)
	in := make(map[string]bool, count)
	for _, id := range out {
		in[id] = true
	}
	for _, list := range lists {
		for _, id := range list {
			if len(out) >= count {
				return out
			}
			if !in[id] {
				in[id], out = true, append(out, id)
			}
		}
	}
	return out
}

// only returns the elements of preferred that are in of.
func only(preferred, of []string) []string {
	if len(preferred) == 0 {
		return nil
	}
	in := make(map[string]bool, len(of))
	for _, id := range of {
		in[id] = true
	}
	return slices.DeleteFunc(slices.Clone(preferred), func(id string) bool { return !in[id] })
}

func nearFirst(ids []string, nodes map[string]topologymanager.Nodes, near topologymanager.Nodes) []string {
	var first, rest []string
	for _, id := range ids {
		if nodes[id]&near != 0 {
			first = append(first, id)
		} else {
			rest = append(rest, id)
		}
	}
	return append(first, rest...)
}
