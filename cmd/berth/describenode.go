package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresource "k8s.io/component-helpers/resource"

	"berth/internal/api/server"
	"berth/internal/pod"
)

// describeNode prints the node, its pods and what they may use of it.
func describeNode(ctx context.Context, c *client, names []string, f describeFlags, s streams) error {
	if f.namespace != "" || f.selector != "" {
		return errors.New("--namespace and --selector are for pods")
	}
	n, err := c.node(ctx, names)
	if err != nil {
		return err
	}
	pods, err := c.pods(ctx)
	if err != nil {
		return err
	}
	assigned, err := c.resources(ctx)
	if err != nil {
		return err
	}
	d := &describer{}
	d.node(n, pods, time.Now())
	d.sharedOut(&assigned, time.Now())
	if f.showEvents {
		var list server.EventList
		if err := c.getJSON(ctx, server.PathEvents, nil, &list); err != nil {
			return err
		}
		d.events(eventsAbout(list.Items, v1.ObjectReference{Kind: "Node", Name: n.Name}), time.Now())
	}
	return d.print(s.out)
}

// node writes all but the events. Order and words are those of `kubectl describe node`.
func (d *describer) node(n *v1.Node, pods []*v1.Pod, now time.Time) {
	d.line(0, "Name:\t%s", n.Name)
	d.line(0, "Roles:\t%s", nodeRoles(n))
	d.several("Labels:", sortedLabels(n.Labels))
	d.several("Annotations:", annotationLines(n.Annotations))
	d.line(0, "CreationTimestamp:\t%s", clock(n.CreationTimestamp))
	d.several("Taints:", taintLines(n.Spec.Taints))
	d.line(0, "Unschedulable:\t%v", n.Spec.Unschedulable)
	if len(n.Status.Conditions) > 0 {
		d.line(0, "Conditions:")
		d.line(1, "Type\tStatus\tLastHeartbeatTime\tLastTransitionTime\tReason\tMessage")
		d.line(1, "----\t------\t-----------------\t------------------\t------\t-------")
		for _, c := range n.Status.Conditions {
			d.line(1, "%s \t%s \t%s \t%s \t%s \t%s", string(c.Type), string(c.Status), clock(c.LastHeartbeatTime), clock(c.LastTransitionTime), c.Reason, c.Message)
		}
	}
	d.line(0, "Addresses:")
	for _, a := range n.Status.Addresses {
		d.line(1, "%s:\t%s", string(a.Type), a.Address)
	}
	for _, l := range []struct {
		title string
		list  v1.ResourceList
	}{{"Capacity", n.Status.Capacity}, {"Allocatable", n.Status.Allocatable}} {
		if len(l.list) == 0 {
			continue
		}
		d.line(0, "%s:", l.title)
		for _, name := range sortedKeys(l.list) {
			q := l.list[name]
			d.line(1, "%s:\t%s", string(name), q.String())
		}
	}
	i := &n.Status.NodeInfo
	d.line(0, "System Info:")
	for _, l := range [][2]string{
		{"Machine ID", i.MachineID},
		{"System UUID", i.SystemUUID},
		{"Boot ID", i.BootID},
		{"Kernel Version", i.KernelVersion},
		{"OS Image", i.OSImage},
		{"Operating System", i.OperatingSystem},
		{"Architecture", i.Architecture},
		{"Container Runtime Version", i.ContainerRuntimeVersion},
		{"Kubelet Version", i.KubeletVersion},
	} {
		d.line(1, "%s:\t%s", l[0], l[1])
	}
	d.optional("PodCIDR:", n.Spec.PodCIDR)
	d.optional("PodCIDRs:", strings.Join(n.Spec.PodCIDRs, ","))
	d.optional("ProviderID:", n.Spec.ProviderID)
	d.allocated(n, pods, now)
}

// clock is a time as kubectl writes it.
func clock(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return t.Format(time.RFC1123Z)
}

// taintLines are the taints, those first that do most.
func taintLines(taints []v1.Taint) []string {
	rank := []v1.TaintEffect{v1.TaintEffectNoExecute, v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule}
	taints = slices.Clone(taints)
	slices.SortStableFunc(taints, func(a, b v1.Taint) int {
		return cmp.Or(cmp.Compare(slices.Index(rank, a.Effect), slices.Index(rank, b.Effect)), strings.Compare(a.ToString(), b.ToString()))
	})
	var lines []string
	for _, t := range taints {
		lines = append(lines, t.ToString())
	}
	return lines
}

// allocated writes the pods that have not ended, and what they have asked for together.
func (d *describer) allocated(n *v1.Node, pods []*v1.Pod, now time.Time) {
	pods = slices.DeleteFunc(slices.Clone(pods), func(p *v1.Pod) bool { return pod.IsTerminal(p.Status.Phase) })
	d.line(0, "Non-terminated Pods:\t(%d in total)", len(pods))
	d.line(1, "Namespace\tName\t\tCPU Requests\tCPU Limits\tMemory Requests\tMemory Limits\tAge")
	d.line(1, "---------\t----\t\t------------\t----------\t---------------\t-------------\t---")
	requests, limits := v1.ResourceList{}, v1.ResourceList{}
	for _, p := range pods {
		asks, may := podresource.PodRequests(p, podresource.PodResourcesOptions{}), podresource.PodLimits(p, podresource.PodResourcesOptions{})
		addTo(requests, asks)
		addTo(limits, may)
		d.line(1, "%s\t%s\t\t%s\t%s\t%s\t%s\t%s", p.Namespace, p.Name, share(n, v1.ResourceCPU, asks), share(n, v1.ResourceCPU, may),
			share(n, v1.ResourceMemory, asks), share(n, v1.ResourceMemory, may), formatAge(created(p), now))
	}
	d.line(0, "Allocated resources:")
	d.line(1, "(Total limits may be over 100 percent, i.e., overcommitted.)")
	d.line(1, "Resource\tRequests\tLimits")
	d.line(1, "--------\t--------\t------")
	names := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}
	for _, name := range sortedKeys(n.Status.Allocatable) {
		if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		d.line(1, "%s\t%s\t%s", string(name), share(n, name, requests), share(n, name, limits))
	}
	for _, name := range sortedKeys(n.Status.Allocatable) {
		if name != v1.ResourcePods && !slices.Contains(names, name) { // extended resources
			asks, may := requests[name], limits[name]
			d.line(1, "%s\t%s\t%s", string(name), asks.String(), may.String())
		}
	}
}

func addTo(sum, list v1.ResourceList) {
	for name, q := range list {
		s := sum[name]
		s.Add(q)
		sum[name] = s
	}
}

// share writes an amount, and which part it is of what the node has for pods.
func share(n *v1.Node, name v1.ResourceName, list v1.ResourceList) string {
	amount, has := list[name], n.Status.Allocatable[name]
	part := 0.0
	if whole := number(name, has); whole > 0 {
		part = number(name, amount) / whole * 100
	}
	return fmt.Sprintf("%s (%d%%)", amount.String(), int64(part))
}

func number(name v1.ResourceName, q resource.Quantity) float64 {
	if name == v1.ResourceCPU {
		return float64(q.MilliValue())
	}
	return float64(q.Value())
}
