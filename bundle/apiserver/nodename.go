//go:build apiserver

package main

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
	api "k8s.io/kubernetes/pkg/apis/core"
)

const nodeNamePlugin = "BerthNodeName"

// nodeName warns about pods that are created for a node that does not exist. The agent's scheduler
// binds pods without a node.
type nodeName struct {
	*admission.Handler
	node string
}

var _ admission.ValidationInterface = (*nodeName)(nil)

func newNodeName(node string) *nodeName {
	return &nodeName{Handler: admission.NewHandler(admission.Create), node: node}
}

// Validate admits pods for other nodes, as kube-apiserver does, with a warning.
func (n *nodeName) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*api.Pod)
	if !ok || a.GetResource().GroupResource() != api.Resource("pods") || a.GetSubresource() != "" {
		return nil
	}
	if name := pod.Spec.NodeName; name != "" && name != n.node {
		warning.AddWarning(ctx, "", fmt.Sprintf("spec.nodeName: nobody starts pods of node %q here; the node of this machine is %q, which pods without a nodeName get", name, n.node))
	}
	return nil
}
