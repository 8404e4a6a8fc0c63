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

// resource is an extended resource that plugins offer.
type resource struct {
	endpoint *endpoint // nil: no plugin is connected
	stopped  time.Time // since when no plugin is connected
	devices  map[string]device
	// prestart: the last plugin requires PreStartContainer.
	prestart bool
}

type device struct {
	healthy bool
	nodes   []int64 // NUMA nodes, sorted; may be empty
}

func (r *resource) healthy() int64 {
	n := int64(0)
	for _, d := range r.devices {
		if d.healthy {
			n++
		}
	}
	return n
}

// stop marks all devices unhealthy because their plugin has disconnected.
func (r *resource) stop(at time.Time) {
	r.endpoint, r.stopped = nil, at
	for id, d := range r.devices {
		d.healthy = false
		r.devices[id] = d
	}
}

// readDevices returns the devices of a plugin's list by ID. It skips invalid devices and describes
// them in complaint. A list that is too long is an error.
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
	var complaints []string
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
			complaints = append(complaints, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	return devices, strings.Join(complaints, "; "), nil
}

// maxNodes is the number of NUMA nodes that topologymanager.Nodes can hold.
const maxNodes = 64

// maskOf returns the given NUMA nodes that exist on the machine.
func maskOf(nodes []int64, machine topologymanager.Nodes) topologymanager.Nodes {
	var mask topologymanager.Nodes
	for _, n := range nodes {
		if n >= 0 && n < maxNodes {
			mask |= 1 << n
		}
	}
	return mask & machine
}

// isExtended reports whether name is a valid name of an extended resource, which plugins may offer:
// it has a domain that does not belong to Kubernetes (Kubernetes documentation, "Extended
// resources").
func isExtended(name string) bool {
	if !strings.Contains(name, "/") || strings.Contains(name, "kubernetes.io/") || strings.HasPrefix(name, v1.DefaultResourceRequestsPrefix) {
		return false
	}
	// Quotas prefix the name; the result must be a qualified name, too.
	return len(validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix+name)) == 0
}

// brief returns an error's text, cut at maxErrorText.
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
