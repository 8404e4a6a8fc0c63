//go:build registry

package main

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
	api "k8s.io/kubernetes/pkg/apis/core"
)

const nodeNamePlugin = "BerthNodeName"

// nodeName binds pods to the one node there is when they are created, as nobody schedules them.
type nodeName struct {
	*admission.Handler
	node string
}

var _ admission.MutationInterface = (*nodeName)(nil)

func newNodeName(node string) *nodeName {
	return &nodeName{Handler: admission.NewHandler(admission.Create), node: node}
}

// Admit sets the node of a pod that names none. A pod for another node is taken, as by kube-apiserver,
// and whoever makes it is warned.
func (n *nodeName) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*api.Pod)
	if !ok || a.GetResource().GroupResource() != api.Resource("pods") || a.GetSubresource() != "" {
		return nil
	}
	switch pod.Spec.NodeName {
	case "":
		pod.Spec.NodeName = n.node
	case n.node:
	default:
		warning.AddWarning(ctx, "", fmt.Sprintf("spec.nodeName: nobody starts pods of node %q here; the node of this machine is %q, which pods without a nodeName get", pod.Spec.NodeName, n.node))
	}
	return nil
}
