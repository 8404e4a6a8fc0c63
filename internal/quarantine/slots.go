package agent

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"

	"berth/internal/pod"
)

// A slot of handsFile holds the length of a UID (0: the slot is free), the generation of the pod's spec, and the UID.
const (
	slotSize   = 128
	slotHeader = 9
)

// readSlots returns what the slots of a file hold.
func readSlots(f io.Reader) ([]wish, error) {
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	var out []wish
	for slot := range slices.Chunk(b, slotSize) {
		n := int(slot[0])
		if n == 0 || len(slot) < slotHeader+n || bytes.IndexByte(slot[slotHeader:slotHeader+n], 0) >= 0 {
			continue
		}
		w := wish{UID: pod.UID(slot[slotHeader : slotHeader+n]), Generation: int64(binary.LittleEndian.Uint64(slot[1:slotHeader]))}
		if !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	return out, nil
}

// InHand notes that a pass over the pod begins: of its spec's generation, or of its Ending. done notes that it is over. A note is one short
// write into the page cache, which outlives the process.
func (q *quarantine) InHand(uid pod.UID, generation int64) (done func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.hands == nil || len(uid) == 0 || len(uid) > slotSize-slotHeader {
		return func() {}
	}
	slot := q.slots
	if n := len(q.free); n > 0 {
		slot, q.free = q.free[n-1], q.free[:n-1]
	} else {
		q.slots++
	}
	q.slot[0] = byte(len(uid))
	binary.LittleEndian.PutUint64(q.slot[1:], uint64(generation))
	copy(q.slot[slotHeader:], uid)
	q.writeLocked(q.slot[:slotHeader+len(uid)], slot)
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.slot[0] = 0
		q.writeLocked(q.slot[:1], slot)
		q.free = append(q.free, slot)
	}
}

func (q *quarantine) writeLocked(b []byte, slot int64) {
	if q.hands == nil {
		return
	}
	if _, err := q.hands.WriteAt(b, slot*slotSize); err != nil {
		q.log.Debug("pod in hand not noted", "error", err) // a disk that is full, say: then a crash is not counted
	}
}
