// Package io has an attach bring all output of its container. The build puts this file into containerd's
// package of the same name (internal/cri/io), which calls it (bundle.mk). Containerd itself copies the
// input before it has joined the output, and so may lose the answer to the first line; and it ends the
// input with the first output that ends, which ends the other output, and so may lose the last line of
// a container that has two.
package io

import "sync/atomic"

// outputs are the streams that an attach copies from its container.
type outputs struct {
	joined chan struct{} // closed when all of them are copied
	open   atomic.Int32
}

// newOutputs returns those that are wanted.
func newOutputs(wanted ...bool) *outputs {
	o := &outputs{joined: make(chan struct{})}
	for _, w := range wanted {
		if w {
			o.open.Add(1)
		}
	}
	return o
}

// end says that one has ended, and reports whether it was the last.
func (o *outputs) end() bool { return o.open.Add(-1) == 0 }
