package io

import "testing"

func TestOutputs(t *testing.T) {
	two := newOutputs(true, true)
	if two.end() || !two.end() {
		t.Error("of two outputs the second is the last")
	}
	if !newOutputs(true, false).end() {
		t.Error("an output alone is the last")
	}
	select {
	case <-two.joined:
		t.Error("nobody has joined the outputs yet")
	default:
	}
}
