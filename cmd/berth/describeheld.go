package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/server"
	"berth/internal/resources/containermanager"
	"berth/internal/resources/devicemanager"
)

// resources returns who has which devices, CPUs, memory and claims; nobody has any if the agent is
// of a version that does not tell.
func (c *client) resources(ctx context.Context) (s containermanager.Snapshot, err error) {
	err = c.getJSON(ctx, server.PathResources, nil, &s)
	if a, ok := errors.AsType[*apiError](err); ok && a.status == http.StatusNotFound {
		return s, nil
	}
	return s, err
}

// held writes what a container has of the node to itself.
func (d *describer) held(h containermanager.Holding) {
	d.line(2, "Assigned:")
	for _, l := range heldLines(h) {
		d.line(3, "%s:\t%s", l[0], l[1])
	}
}

// heldLines are pairs of what a container has, and which.
func heldLines(h containermanager.Holding) (lines [][2]string) {
	if h.CPUs != "" {
		lines = append(lines, [2]string{"cpus", h.CPUs})
	}
	for _, b := range h.Memory {
		lines = append(lines, [2]string{string(b.Type), bytesOf(b.Size) + " on NUMA " + nodeList("node", b.NUMAAffinity)})
	}
	var of string
	for _, dev := range h.Devices {
		name := dev.ID
		if len(dev.Nodes) > 0 {
			name += " (NUMA " + nodeList("node", dev.Nodes) + ")"
		}
		if r := string(dev.Resource); r != of {
			of, lines = r, append(lines, [2]string{r, name})
		} else {
			lines[len(lines)-1][1] += ", " + name
		}
	}
	for _, c := range h.Claims {
		lines = append(lines, [2]string{"claim " + c.Name, cmp.Or(strings.Join(c.Devices, ", "), "no device")})
	}
	return lines
}

func bytesOf(n uint64) string {
	return resource.NewQuantity(int64(min(n, 1<<62)), resource.BinarySI).String()
}

// nodeList is "node 0", or "nodes 0,1".
func nodeList[N int | int64](word string, ids []N) string {
	if len(ids) != 1 {
		word += "s"
	}
	text := make([]string, len(ids))
	for i, id := range ids {
		text[i] = fmt.Sprint(id)
	}
	return word + " " + strings.Join(text, ",")
}

// sharedOut writes what of the node is given to single containers, to whom, and what is left;
// nothing if nothing is shared out.
func (d *describer) sharedOut(s *containermanager.Snapshot, now time.Time) {
	if s.CPUs != nil {
		d.line(0, "Exclusive CPUs:")
		d.line(1, "Reserved:\t%s", cmp.Or(s.CPUs.Reserved, "<none>"))
		d.line(1, "Shared:\t%s", cmp.Or(s.CPUs.Shared, "<none>"))
		d.line(1, "Free:\t%s", cmp.Or(s.CPUs.Free, "<none>"))
	}
	if len(s.Memory) > 0 {
		d.line(0, "Memory of NUMA nodes:")
		d.line(1, "Node\tResource\tAllocatable\tFree")
		d.line(1, "----\t--------\t-----------\t----")
		for _, m := range s.Memory {
			free := bytesOf(m.Free)
			if len(m.Group) > 1 {
				free += " (group of " + nodeList("node", m.Group) + ")"
			}
			d.line(1, "%d\t%s\t%s\t%s", m.Node, string(m.Type), bytesOf(m.Allocatable), free)
		}
	}
	if len(s.Resources) > 0 {
		d.line(0, "Device plugins:")
		d.line(1, "Resource\tDevices\tHealthy\tGiven\tFree\tPlugin")
		d.line(1, "--------\t-------\t-------\t-----\t----\t------")
		for _, r := range s.Resources {
			d.line(1, "%s\t%d\t%d\t%d\t%d\t%s", string(r.Name), r.Devices, r.Healthy, r.Given, r.Free, pluginOf(r, now))
		}
	}
	if len(s.Drivers) > 0 {
		d.line(0, "Drivers of claims:\t%s", strings.Join(s.Drivers, ", "))
	}
	if len(s.Containers) == 0 {
		return
	}
	d.line(0, "Assigned to containers:")
	d.line(1, "Namespace\tPod\tContainer\tResource\tWhich")
	d.line(1, "---------\t---\t---------\t--------\t-----")
	for _, h := range s.Containers {
		for _, l := range heldLines(h) {
			d.line(1, "%s\t%s\t%s\t%s\t%s", h.Namespace, h.Pod, h.Container, l[0], l[1])
		}
	}
}

// pluginOf says where the plugin of a resource is.
func pluginOf(r devicemanager.Resource, now time.Time) string {
	switch {
	case r.Plugin != "":
		return r.Plugin
	case r.AwaySince != nil:
		return "away for " + formatAge(metav1.NewTime(*r.AwaySince), now)
	default:
		return "away"
	}
}
