package quarantine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"

	"berth/internal/pod"
)

const slotsFile = "inhand"

// A slot of slotsFile holds the length of a UID (0: the slot is free), the generation of the pod's
// spec, and the UID.
const (
	slotSize   = 128
	slotHeader = 9
)

// slots is the file of passes in progress: one slot for each. A note is one short write to the page
// cache, which outlives the process.
type slots struct {
	log *slog.Logger

	mu    sync.Mutex
	file  *os.File       // guarded by mu; nil when it is not open
	free  []int64        // guarded by mu; slots below count that are free
	count int64          // guarded by mu
	buf   [slotSize]byte // guarded by mu; write buffer
}

// open returns the passes that the last agent had in progress, and truncates the file.
func (s *slots) open(path string) (inProgress []work, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if inProgress, err = readSlots(f); err == nil {
		err = f.Truncate(0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file = f
	return inProgress, nil
}

func (s *slots) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	return err
}

func readSlots(f io.Reader) ([]work, error) {
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	var out []work
	for slot := range slices.Chunk(b, slotSize) {
		n := int(slot[0])
		if n == 0 || len(slot) < slotHeader+n || bytes.IndexByte(slot[slotHeader:slotHeader+n], 0) >= 0 {
			continue
		}
		w := work{UID: pod.UID(slot[slotHeader : slotHeader+n]), Generation: int64(binary.LittleEndian.Uint64(slot[1:slotHeader]))}
		if !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	return out, nil
}

// begin notes that the work is in progress; done removes the note.
func (s *slots) begin(w work) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil || len(w.UID) == 0 || len(w.UID) > slotSize-slotHeader {
		return func() {}
	}
	slot := s.count
	if n := len(s.free); n > 0 {
		slot, s.free = s.free[n-1], s.free[:n-1]
	} else {
		s.count++
	}
	s.buf[0] = byte(len(w.UID))
	binary.LittleEndian.PutUint64(s.buf[1:], uint64(w.Generation))
	copy(s.buf[slotHeader:], w.UID)
	s.writeLocked(s.buf[:slotHeader+len(w.UID)], slot)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.buf[0] = 0
		s.writeLocked(s.buf[:1], slot)
		s.free = append(s.free, slot)
	}
}

func (s *slots) writeLocked(b []byte, slot int64) {
	if s.file == nil {
		return
	}
	if _, err := s.file.WriteAt(b, slot*slotSize); err != nil {
		// A full disk, for example. A crash is then not counted.
		s.log.Debug("pod in hand not noted", "error", err)
	}
}
