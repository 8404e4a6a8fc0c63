package journal

import (
	"bufio"
	"context"
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
	"time"
)

const (
	// writePeriod is the least time between two writes, retryPeriod that after a write that failed.
	writePeriod = time.Second
	retryPeriod = 10 * time.Second
	// maxRecord is the longest record; a longer one is a sign of a damaged file.
	maxRecord = 1 << 16
	// frameHeader is what stands before a record: its checksum and its length, each a uint32 in little-endian order.
	frameHeader = 8
	// asideSuffix is added to the name of a file that cannot be read.
	asideSuffix = ".bad"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// FileConfig is what a File needs. All fields are required.
type FileConfig struct {
	// Dir is the file's folder, which is made; Name the file's name there.
	Dir, Name string
	// Version is that of the records' form. A file of another version is set aside.
	Version int
	// Limit is the length in bytes at which the file is replaced by a snapshot.
	Limit int64
	// Lock guards the state that the records describe, and what is appended and not written yet. No file is waited for while it is held.
	Lock sync.Locker
	// Snapshot calls add with records from which the state can be made again. It is called with Lock held; add keeps no record.
	Snapshot func(add func(record []byte))
	Log      *slog.Logger
}

// File keeps a state as records in a file that is written behind: at most one write a second, none while nothing happens, and no fsync: what
// was written outlives the process and not the machine. A file that has grown to its limit is replaced by a snapshot. What cannot be
// written is not queued: a later snapshot makes up for it.
type File struct {
	FileConfig
	wake chan struct{} // capacity 1

	pending []byte // guarded by Lock; frames that are not in the file yet
	stale   bool   // guarded by Lock; the file lacks more than pending: it needs a snapshot

	file *os.File // Load's, then Run's own
	size int64    // the same
	down bool     // Run's own; the last write failed

	mu      sync.Mutex
	failing error // guarded by mu; a failing, or nil
}

// failing says what cannot be written, why, and since when.
type failing struct {
	error
	since time.Time
}

// Since returns when the first write failed.
func (f failing) Since() time.Time { return f.since }

// Unwrap returns the cause.
func (f failing) Unwrap() error { return f.error }

// Health returns what cannot be written, since when and why, or nil. Its error has a method
// Since() time.Time.
func (f *File) Health() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failing
}

// note notes how a write ended.
func (f *File) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.failing = nil
	case f.failing == nil:
		f.failing = failing{fmt.Errorf("%s is not saved: %w", f.Name, err), time.Now()}
	}
}

// NewFile returns a file that was not read yet.
func NewFile(c FileConfig) *File { return &File{FileConfig: c, wake: make(chan struct{}, 1)} }

func (f *File) path() string { return filepath.Join(f.Dir, f.Name) }

// header is the first line of the file.
func (f *File) header() string { return fmt.Sprintf("berth %s %d\n", f.Name, f.Version) }

// Append hands a record over to be written. The caller holds Lock; the record may be reused at once.
func (f *File) Append(record []byte) {
	if len(record) > maxRecord {
		return // it would look like damage when it is read
	}
	if f.stale {
		f.poke() // the snapshot has it
		return
	}
	f.pending = appendFrame(f.pending, record)
	if int64(len(f.pending)) > f.Limit {
		f.pending, f.stale = nil, true
	}
	f.poke()
}

func (f *File) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func appendFrame(b, record []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(record, castagnoli))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(record)))
	return append(b, record...)
}

// Load opens the file and calls replay, with Lock held, for each of its records. A record that was written half, as by a process that was
// killed, is cut off. A file with a damaged record is set aside, and what stands before it is kept; one of another version is set aside
// as a whole. The error says that the folder cannot be used.
func (f *File) Load(replay func(record []byte) error) error {
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	if err := os.Remove(f.path() + ".tmp"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	if err := f.open(); err != nil {
		return err
	}
	good, err := f.read(replay)
	var damaged *damagedError
	switch {
	case errors.As(err, &damaged):
		f.Log.Warn("a file cannot be read to its end and is set aside", "path", f.path(), "aside", f.path()+asideSuffix, "at", good, "error", err)
		if err := f.setAside(); err != nil {
			return err
		}
		f.Lock.Lock()
		f.stale = true
		f.Lock.Unlock()
		f.poke()
		return nil
	case err != nil:
		return fmt.Errorf("read %s: %w", f.path(), err)
	}
	if good < f.size {
		f.Log.Info("the last record was not written to its end and is cut off", "path", f.path(), "bytes", f.size-good)
		if err := f.file.Truncate(good); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		f.size = good
	}
	return nil
}

func (f *File) open() error {
	file, err := os.OpenFile(f.path(), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	st, err := file.Stat()
	if err == nil && st.Mode().Perm() != 0o600 {
		err = file.Chmod(0o600)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", f.Name, err), file.Close())
	}
	f.file, f.size = file, st.Size()
	return nil
}

// setAside renames the file and begins a new one. An earlier one that was set aside is lost.
func (f *File) setAside() error {
	if err := errors.Join(os.Rename(f.path(), f.path()+asideSuffix), f.file.Close()); err != nil {
		return fmt.Errorf("set %s aside: %w", f.path(), err)
	}
	return f.open()
}

// damagedError says that a file holds something that was never written to it.
type damagedError struct{ what string }

func (e *damagedError) Error() string { return e.what }

// read replays the file and returns the length of its good part.
func (f *File) read(replay func([]byte) error) (good int64, err error) {
	if f.size == 0 {
		return 0, nil
	}
	in := bufio.NewReaderSize(f.file, maxRecord)
	header := make([]byte, len(f.header()))
	if _, err := io.ReadFull(in, header); err != nil && !endOfFile(err) {
		return 0, err
	}
	if string(header) != f.header() {
		return 0, &damagedError{fmt.Sprintf("it does not begin with %q", f.header())}
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
		f.Lock.Lock()
		err := replay(record)
		f.Lock.Unlock()
		if err != nil {
			return good, &damagedError{err.Error()}
		}
		good += frameHeader + int64(length)
	}
}

func endOfFile(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

func unlessEnd(err error) error {
	if endOfFile(err) {
		return nil
	}
	return err
}

// Run writes what is appended until ctx is done, and then what is left. Load must have succeeded.
func (f *File) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for { // the timer has to end before the next write
		select {
		case <-ctx.Done():
			f.write()
			return errors.Join(ctx.Err(), f.file.Close())
		case <-timer.C:
		}
		select {
		case <-ctx.Done():
			f.write()
			return errors.Join(ctx.Err(), f.file.Close())
		case <-f.wake:
		}
		if f.write() {
			timer.Reset(writePeriod)
			continue
		}
		f.poke()
		timer.Reset(retryPeriod)
	}
}

// write brings the file up to date and reports whether it is.
func (f *File) write() bool {
	f.Lock.Lock()
	pending, snapshot := f.pending, f.stale || f.size+int64(len(f.pending)) > f.Limit
	f.pending = nil
	if snapshot {
		pending = []byte(f.header())
		f.Snapshot(func(record []byte) {
			if len(record) <= maxRecord {
				pending = appendFrame(pending, record)
			}
		})
		f.stale = false
	} else if f.size == 0 && len(pending) > 0 {
		pending = append([]byte(f.header()), pending...)
	}
	f.Lock.Unlock()

	var err error
	switch {
	case snapshot:
		err = f.replace(pending)
	case len(pending) > 0:
		var n int
		n, err = f.file.Write(pending)
		f.size += int64(n)
	}
	if err != nil {
		f.Lock.Lock()
		f.pending, f.stale = nil, true
		f.Lock.Unlock()
	}
	switch {
	case err != nil && !f.down:
		f.Log.Warn("not written; it is tried again", "path", f.path(), "error", err)
	case err == nil && f.down:
		f.Log.Info("written again", "path", f.path())
	}
	f.down = err != nil
	f.note(err)
	return err == nil
}

// replace makes content the file's, at once.
func (f *File) replace(content []byte) error {
	tmp := f.path() + ".tmp"
	file, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = os.Rename(tmp, f.path())
	}
	if err != nil {
		return errors.Join(err, file.Close(), os.Remove(tmp))
	}
	err = f.file.Close()
	f.file, f.size = file, int64(len(content))
	return err
}
