//go:build cgo

package ctest

import (
	"encoding/binary"
	"testing"
)

// rounds is the number of inputs that the harness creates from one seed.
const rounds = 1000

// many lets the harness create inputs from a seed.
func (h *harness) many(kind byte, seed uint32, b []byte) int {
	h.t.Helper()
	record := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, seed), rounds)
	good := 0
	for _, r := range h.try(kind, append(record, b...)) {
		good += int(r.Status)
	}
	return good
}

// Neither the validation of a plan nor reading a valid plan accesses memory outside of it.
func TestManyPlans(t *testing.T) {
	h, good, plans := start(t), 0, [][]byte{good(t), goodExec(t, process("/bin/true")), shared(t, "/"), shared(t, "/proc")}
	for seed := range uint32(30) {
		good += h.many('c', seed, plans[seed%3])
	}
	if good == 0 || good > 15*rounds {
		t.Errorf("%d of %d plans were let through", good, 30*rounds)
	}
}

// Each message gets one reply, and no descriptor that is sent with it stays open.
func TestManyMessages(t *testing.T) {
	h := start(t)
	for seed := range uint32(10) {
		h.many('r', seed, nil)
	}
}

func FuzzManyPlans(f *testing.F) {
	f.Add(uint32(0), good(f))
	f.Add(uint32(0), goodExec(f, process("/bin/true")))
	f.Add(uint32(0), shared(f, "/"))
	f.Add(uint32(0), shared(f, "/proc"))
	h := start(f)
	f.Fuzz(func(t *testing.T, seed uint32, b []byte) {
		h.t = t
		if len(b) > 0 && len(b) < 1<<16 {
			h.many('c', seed, b)
		}
	})
}

func FuzzManyMessages(f *testing.F) {
	f.Add(uint32(0))
	h := start(f)
	f.Fuzz(func(t *testing.T, seed uint32) {
		h.t = t
		h.many('r', seed, nil)
	})
}
