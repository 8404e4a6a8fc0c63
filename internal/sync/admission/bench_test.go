package admission

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A pod that is judged beside 249 others.
func BenchmarkAdmit(b *testing.B) {
	var active []*v1.Pod
	for i := range 249 {
		p := newPod(fmt.Sprint(i), requests("cpu", "1m", "memory", "1Mi"), guaranteed, withPort(int32(1000+i), "", v1.ProtocolTCP))
		active = append(active, p)
	}
	n := nodeOf("2", "4Gi", LocalMaxPods)
	ready := make(chan struct{})
	close(ready)
	c := newChain(Config{
		Handlers: Handlers(), Ready: ready,
		Node:   func() (*v1.Node, bool) { return n, true },
		Reject: func(_ *v1.Pod, r Rejection) { b.Fatal(r) },
	})
	for _, p := range active {
		c.Adopt(p)
	}
	c.run(active...)
	p := newPod("p", requests("cpu", "1m", "memory", "1Mi"), withPort(80, "", v1.ProtocolTCP))
	for b.Loop() {
		if v, err := c.Admit(b.Context(), p); err != nil || !v.Admitted {
			b.Fatal(v, err)
		}
	}
}
