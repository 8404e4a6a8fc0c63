// Package io makes an attach transfer all output of its container. The build puts this file into
// containerd's package of the same name (internal/cri/io), which calls it (bundle/patches).
// Upstream containerd copies the input before it has joined the output, and so may lose the
// response to the first line. It closes the input when the first output closes, which closes the
// other output, and so may lose the last line of a container with two outputs.
package io

import "sync/atomic"

// outputs are the streams that an attach copies from its container.
type outputs struct {
	joined chan struct{} // closed when all of them are joined
	open   atomic.Int32
}

// newOutputs returns the wanted streams.
func newOutputs(wanted ...bool) *outputs {
	o := &outputs{joined: make(chan struct{})}
	for _, w := range wanted {
		if w {
			o.open.Add(1)
		}
	}
	return o
}

// end reports that a stream has ended, and returns whether it was the last.
func (o *outputs) end() bool { return o.open.Add(-1) == 0 }
