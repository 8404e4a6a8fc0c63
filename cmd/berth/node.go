package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
)

// isNodeType reports whether the word is one of kubectl's for nodes.
func isNodeType(s string) bool { return s == "node" || s == "nodes" || s == "no" }

// nodeNames reads `node [NAME…]` and `node/NAME…`; ok is false when it is not nodes that are asked
// for.
func nodeNames(args []string) (names []string, ok bool) {
	if isNodeType(args[0]) {
		args = args[1:]
	} else if kind, _, cut := strings.Cut(args[0], "/"); !cut || !isNodeType(kind) {
		return nil, false
	}
	for _, a := range args {
		if kind, name, cut := strings.Cut(a, "/"); cut && isNodeType(kind) {
			a = name
		}
		names = append(names, a)
	}
	return names, true
}

// node returns the Node, which must have each of the names.
func (c *client) node(ctx context.Context, names []string) (*v1.Node, error) {
	var n v1.Node
	if err := c.getJSON(ctx, server.PathNode, nil, &n); err != nil {
		return nil, err
	}
	for _, name := range names {
		if name != n.Name {
			return nil, fmt.Errorf("node %q not found: this node is %q", name, n.Name)
		}
	}
	return &n, nil
}

// nodeRoles are the node's roles, as labels tell them.
func nodeRoles(n *v1.Node) string {
	var roles []string
	for k, v := range n.Labels {
		role, ok := strings.CutPrefix(k, "node-role.kubernetes.io/")
		if k == "kubernetes.io/role" {
			role, ok = v, true
		}
		if ok && role != "" {
			roles = append(roles, role)
		}
	}
	slices.Sort(roles)
	return cmp.Or(strings.Join(slices.Compact(roles), ","), "<none>")
}

// nodeRow is a node as `kubectl get nodes -o wide` shows it.
func nodeRow(n *v1.Node, now time.Time) (short, wide []string) {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type != v1.NodeReady {
			continue
		}
		if status = "NotReady"; c.Status == v1.ConditionTrue {
			status = "Ready"
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	address := func(kind v1.NodeAddressType) string {
		for _, a := range n.Status.Addresses {
			if a.Type == kind {
				return a.Address
			}
		}
		return "<none>"
	}
	i := &n.Status.NodeInfo
	kernel := "<unknown>"
	if i.KernelVersion != "" {
		kernel = i.KernelVersion + " (" + i.Architecture + ")"
	}
	return []string{n.Name, status, nodeRoles(n), formatAge(n.CreationTimestamp, now), i.KubeletVersion},
		[]string{
			address(v1.NodeInternalIP), address(v1.NodeExternalIP), cmp.Or(i.OSImage, "<unknown>"), kernel, cmp.Or(i.ContainerRuntimeVersion, "<unknown>"),
		}
}
