package devicemanager

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/internal/resources/topologymanager"
)

// resource is what plugins of one name offer.
type resource struct {
	endpoint *endpoint // nil: none is connected
	stopped  time.Time // since when none is
	devices  map[string]device
	// prestart says that the last plugin wanted to be called before each start.
	prestart bool
}

// device is one device, as its plugin describes it.
type device struct {
	healthy bool
	nodes   []int64 // NUMA nodes, sorted; none: not told
}

// healthy returns how many devices are.
func (r *resource) healthy() int64 {
	n := int64(0)
	for _, d := range r.devices {
		if d.healthy {
			n++
		}
	}
	return n
}

// stop makes all devices unhealthy: their plugin is away.
func (r *resource) stop(at time.Time) {
	r.endpoint, r.stopped = nil, at
	for id, d := range r.devices {
		d.healthy = false
		r.devices[id] = d
	}
}

// readDevices returns the devices of a plugin's list by ID. What is wrong with some of them is in
// complaint, and they are left out. A list that is too long is an error.
func readDevices(list []*pluginapi.Device) (devices map[string]device, complaint string, err error) {
	if len(list) > maxDevices {
		return nil, "", fmt.Errorf("it lists %d devices, more than the %d that one resource may have", len(list), maxDevices)
	}
	devices = make(map[string]device, len(list))
	var nameless, long, double, odd int
	for _, d := range list {
		switch {
		case d.GetID() == "":
			nameless++
			continue
		case len(d.ID) > maxID:
			long++
			continue
		}
		next := device{healthy: d.Health == pluginapi.Healthy}
		for _, n := range d.GetTopology().GetNodes() {
			switch {
			case n.GetID() < 0 || n.GetID() >= maxNodes:
				odd++
			case !slices.Contains(next.nodes, n.ID):
				next.nodes = append(next.nodes, n.ID)
			}
		}
		slices.Sort(next.nodes)
		if before, ok := devices[d.ID]; ok {
			double++
			next = device{healthy: before.healthy && next.healthy, nodes: before.nodes}
		}
		devices[d.ID] = next
	}
	var wrong []string
	for _, c := range []struct {
		n    int
		what string
	}{
		{nameless, "devices without an ID are left out"},
		{long, fmt.Sprintf("devices with an ID of more than %d bytes are left out", maxID)},
		{double, "IDs are listed more than once, and are one device"},
		{odd, fmt.Sprintf("NUMA nodes are not between 0 and %d, and count for nothing", maxNodes-1)},
	} {
		if c.n > 0 {
			wrong = append(wrong, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	return devices, strings.Join(wrong, "; "), nil
}

// maxNodes is how many NUMA nodes topologymanager.Nodes can name.
const maxNodes = 64

// maskOf returns those of the NUMA nodes that the machine has.
func maskOf(nodes []int64, machine topologymanager.Nodes) topologymanager.Nodes {
	var mask topologymanager.Nodes
	for _, n := range nodes {
		if n >= 0 && n < maxNodes {
			mask |= 1 << n
		}
	}
	return mask & machine
}

// isExtended reports whether a name is that of an extended resource, which plugins may offer: it
// has a domain, which is not Kubernetes' own (Kubernetes documentation, "Extended resources").
func isExtended(name string) bool {
	if !strings.Contains(name, "/") || strings.Contains(name, "kubernetes.io/") || strings.HasPrefix(name, v1.DefaultResourceRequestsPrefix) {
		return false
	}
	// Quotas name it with a prefix, which must be a name, too.
	return len(validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix+name)) == 0
}

// brief returns an error's text, cut where it is too long to be told.
func brief(err error) string {
	text := err.Error()
	if len(text) <= maxErrorText {
		return text
	}
	cut := maxErrorText
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}
