package journal

import (
	"encoding/binary"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// kind is the first byte of a record in the journal's file.
type kind byte

// The records. All but recordSubject begin with the number of their subject in this file.
const (
	recordSubject kind = iota + 1 // number, seen, UID, namespace, name
	recordEntry                   // number, time, took, count, text
	recordRepeat                  // number, time, took, count: a repetition of the newest entry, with its new count
	recordMark                    // number, time, step, container
	recordEnd                     // number, container, ID, restart, exit code, reason, message, started, finished, log
)

// buffer is a record under construction.
type buffer []byte

func begin(b []byte, k kind, number uint64) buffer {
	return buffer(append(b[:0], byte(k))).uint(number)
}

func (b buffer) uint(v uint64) buffer { return binary.AppendUvarint(b, v) }
func (b buffer) int(v int64) buffer   { return binary.AppendVarint(b, v) }

func (b buffer) string(s string) buffer {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func (b buffer) time(t time.Time) buffer {
	if t.IsZero() {
		return b.int(0)
	}
	return b.int(t.UnixNano())
}

func (r *ring) appendSubject(b []byte) []byte {
	return begin(b, recordSubject, r.number).int(r.seen).string(string(r.subject.UID)).string(r.subject.Namespace).string(r.subject.Name)
}

func (r *ring) appendEntry(b []byte, e *entry) []byte {
	return begin(b, recordEntry, r.number).int(e.at).int(e.took).uint(uint64(e.count)).string(e.text)
}

func (r *ring) appendRepeat(b []byte, e *entry) []byte {
	return begin(b, recordRepeat, r.number).int(e.at).int(e.took).uint(uint64(e.count))
}

func (r *ring) appendMark(b []byte, m *milestone) []byte {
	return begin(b, recordMark, r.number).int(m.at).uint(uint64(m.step)).string(m.container)
}

func (r *ring) appendEnd(b []byte, e *End) []byte {
	return begin(b, recordEnd, r.number).string(e.Container).string(e.ID).int(int64(e.Restart)).int(int64(e.ExitCode)).
		string(e.Reason).string(e.Message).time(e.Started).time(e.Finished).string(e.Log)
}

// errShort is returned for an incomplete record with a valid checksum.
var errShort = errors.New("record is too short")

// reader parses a record. After the first failure it returns zero values.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.rest)
	r.skip(n)
	return v
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.rest)
	r.skip(n)
	return v
}

func (r *reader) skip(n int) {
	if n <= 0 {
		r.rest, r.err = nil, errShort
		return
	}
	r.rest = r.rest[n:]
}

func (r *reader) string() string {
	n := r.uint()
	if n > uint64(len(r.rest)) {
		r.rest, r.err = nil, errShort
		return ""
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

func (r *reader) time() time.Time {
	v := r.int()
	if v == 0 {
		return time.Time{}
	}
	return time.Unix(0, v)
}

// replay applies one record of the file; numbers maps the numbers of the file's subjects so far.
func (j *Journal) replay(record []byte, numbers map[uint64]*ring) error {
	if len(record) == 0 {
		return errShort
	}
	d := reader{rest: record[1:]}
	number := d.uint()
	if k := kind(record[0]); k == recordSubject {
		seen := d.int()
		s := Subject{UID: types.UID(d.string()), Namespace: d.string(), Name: d.string()}
		if d.err != nil {
			return d.err
		}
		numbers[number] = j.insertLocked(s, number, seen)
		return nil
	}
	r := numbers[number]
	if r == nil || r.place == nil {
		return nil // of a subject that was dropped since, or could not be written
	}
	j.order.MoveToBack(r.place)
	before := r.size
	defer func() { j.chargeLocked(r, before) }()
	switch kind(record[0]) {
	case recordEntry:
		e := entry{at: d.int(), took: d.int(), count: uint32(d.uint()), text: d.string()}
		if d.err == nil {
			r.add(e)
		}
	case recordRepeat:
		at, took, count := d.int(), d.int(), uint32(d.uint())
		if d.err == nil && len(r.entries) > 0 {
			last := r.last()
			last.at, last.took, last.count = at, took, count
		}
	case recordMark:
		m := milestone{at: d.int(), step: Step(d.uint()), container: d.string()}
		if d.err == nil && m.step < steps {
			r.addMark(m)
		}
	case recordEnd:
		e := End{
			Container: d.string(), ID: d.string(), Restart: int(d.int()), ExitCode: int(d.int()),
			Reason: d.string(), Message: d.string(), Started: d.time(), Finished: d.time(), Log: d.string(),
		}
		if d.err == nil {
			r.addEnd(e)
		}
	default:
		return nil // written by a later version of the same format: unknown records are skipped
	}
	return d.err
}
