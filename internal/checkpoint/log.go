package checkpoint

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
)

const (
	// maxRecord is the maximum length of a record; a longer one indicates a damaged file.
	maxRecord = 1 << 16
	// frameHeader precedes a record: its checksum and its length, each a uint32 in little-endian
	// order.
	frameHeader = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// LogConfig is the configuration of a WarmLog. All fields are required.
type LogConfig struct {
	// Dir is the directory of the file, which is created; Name the file's name.
	Dir, Name string
	// Version is the version of the records' format. A file of another version is set aside.
	Version int
	// Limit is the length in bytes at which the file is replaced by a snapshot.
	Limit int64
	// Lock guards the state that the records describe, and appended records that are not written
	// yet. It is not held during file I/O.
	Lock sync.Locker
	// Snapshot calls add with records from which the state can be restored. It is called with Lock
	// held; add does not retain the record.
	Snapshot func(add func(record []byte))
	Log      *slog.Logger
}

// WarmLog persists a state as records that are appended to a file. A file that reaches its limit is
// replaced by a snapshot. Records that cannot be written are not queued: a later snapshot includes
// them.
type WarmLog struct {
	LogConfig
	// Writer writes the file.
	Writer *Writer
	path   string
	wake   chan struct{} // capacity 1

	pending []byte // guarded by Lock; frames that are not in the file yet
	stale   bool   // guarded by Lock; the file lacks more than pending: it needs a snapshot

	size int64 // of the file; used by Load, then only by Run
}

// NewLog returns a log that has not been read yet.
func NewLog(c LogConfig) *WarmLog {
	l := &WarmLog{LogConfig: c, path: filepath.Join(c.Dir, c.Name), wake: make(chan struct{}, 1)}
	l.Writer = NewWriter(WriterConfig{What: c.Name, Log: c.Log, Wake: l.wake, Write: l.write})
	return l
}

func (l *WarmLog) header() string { return fmt.Sprintf("berth %s %d\n", l.Name, l.Version) }

// Append queues a record for writing. The caller holds Lock; the record may be reused immediately.
func (l *WarmLog) Append(record []byte) {
	if len(record) > maxRecord {
		return // a reader would take it for damage
	}
	if !l.stale { // otherwise the snapshot has it
		l.pending = appendFrame(l.pending, record)
	}
	if int64(len(l.pending)) > l.Limit {
		l.pending, l.stale = nil, true
	}
	l.notify()
}

func (l *WarmLog) notify() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func appendFrame(b, record []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(record, castagnoli))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(record)))
	return append(b, record...)
}

// Load calls replay, with Lock held, for each record of the file. A partial record, as written by a
// killed process, is skipped. A file with a damaged record is set aside after the records before it
// were replayed; a file of another version is set aside entirely. The error means that the
// directory cannot be used.
func (l *WarmLog) Load(replay func(record []byte) error) error {
	if err := os.MkdirAll(l.Dir, 0o700); err != nil {
		return fmt.Errorf("%s: %w", l.Name, err)
	}
	// A killed agent of an earlier version may have left it.
	if err := os.Remove(l.path + ".tmp"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", l.Name, err)
	}
	good, err := l.read(replay)
	switch {
	case err != nil:
		aside, moved := SetAside(l.path)
		if moved != nil {
			return errors.Join(err, moved)
		}
		l.Log.Warn("a file cannot be read to its end and is set aside",
			"path", l.path, "aside", aside, "at", good, "error", err)
	case good < l.size:
		l.Log.Info("the last record was not written to its end and is left out",
			"path", l.path, "bytes", l.size-good)
	default:
		return nil
	}
	l.Lock.Lock()
	l.pending, l.stale = nil, true // nothing can be appended
	l.Lock.Unlock()
	l.notify()
	return nil
}

// damagedError is returned for content that was never written to the file.
type damagedError struct{ what string }

// Error implements error.
func (e *damagedError) Error() string { return e.what }

// read replays the file and returns the length of its valid part.
func (l *WarmLog) read(replay func([]byte) error) (good int64, err error) {
	f, err := os.Open(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if l.size = st.Size(); l.size == 0 { // an empty file is never written
		return 0, &damagedError{"it is empty"}
	}
	in := bufio.NewReaderSize(f, maxRecord)
	header := make([]byte, len(l.header()))
	if _, err := io.ReadFull(in, header); unlessEnd(err) != nil {
		return 0, err
	}
	if string(header) != l.header() {
		return 0, &damagedError{fmt.Sprintf("it does not begin with %q", l.header())}
	}
	good = int64(len(header))
	var frame [frameHeader]byte
	var record []byte
	for {
		if _, err := io.ReadFull(in, frame[:]); err != nil {
			return good, unlessEnd(err)
		}
		sum, length := binary.LittleEndian.Uint32(frame[:4]), binary.LittleEndian.Uint32(frame[4:])
		if length == 0 || length > maxRecord {
			return good, &damagedError{fmt.Sprintf("a record of %d bytes", length)}
		}
		if uint32(cap(record)) < length {
			record = make([]byte, length, max(2*length, 4096))
		}
		record = record[:length]
		if _, err := io.ReadFull(in, record); err != nil {
			return good, unlessEnd(err)
		}
		if crc32.Checksum(record, castagnoli) != sum {
			return good, &damagedError{"a record with another checksum"}
		}
		l.Lock.Lock()
		err := replay(record)
		l.Lock.Unlock()
		if err != nil {
			return good, &damagedError{err.Error()}
		}
		good += frameHeader + int64(length)
	}
}

func unlessEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

func (l *WarmLog) write() error {
	l.Lock.Lock()
	content := l.pending
	l.pending = nil
	whole := l.stale || l.size == 0 || l.size+int64(len(content)) > l.Limit
	if whole {
		content = []byte(l.header())
		l.Snapshot(func(record []byte) {
			if len(record) <= maxRecord {
				content = appendFrame(content, record)
			}
		})
		l.stale = false
	}
	l.Lock.Unlock()

	var err error
	switch {
	case whole:
		if err = WriteWarm(l.path, 0o600, content); err == nil {
			l.size = 0
		}
	case len(content) > 0:
		err = appendTo(l.path, content)
	}
	if err == nil {
		l.size += int64(len(content))
		return nil
	}
	l.Lock.Lock()
	l.pending, l.stale = nil, true
	l.Lock.Unlock()
	if !whole && errors.Is(err, fs.ErrNotExist) { // another process removed it
		return l.write()
	}
	return err
}
