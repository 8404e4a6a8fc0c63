//go:build e2e

package e2e

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A pod runs by the handler of its RuntimeClass, and by one of the runtime that it names itself;
// one that waits for a class is told which there are.
func TestRuntimeClass(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	withClass := func(name, class string) string {
		return strings.Replace(manifest(name, "serve"), "  containers:", "  runtimeClassName: "+class+"\n  containers:", 1)
	}
	n.write("classed.yaml", withClass("classed", "plain"))
	n.write("bare.yaml", withClass("bare", "runc"))
	n.start()
	n.awaitReady("bare")
	until(t, "the pod to be told which handlers there are", func() bool {
		said := n.command(n.ctx, "explain", "--all", "classed").out
		return strings.Contains(said, `RuntimeClass "plain" not found`) && strings.Contains(said, `; handlers of the runtime, which can be named as well, are: pod shim, runc`)
	})
	n.write("class.yaml", "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: plain}\nhandler: runc\n")
	p := n.awaitReady("classed").named("classed")
	for _, id := range n.sandboxes(p) {
		r, err := n.cri().PodSandboxStatus(n.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		if err != nil || r.Status.RuntimeHandler != "runc" {
			t.Errorf("the sandbox was made by %q, %v; want runc", r.GetStatus().GetRuntimeHandler(), err)
		}
	}
}
