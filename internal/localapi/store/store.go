package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

var (
	// ErrNotFound reports that no object has the key.
	ErrNotFound = errors.New("object not found")
	// ErrConflict reports that the object has another revision than the caller has read, or that an
	// object to be created exists.
	ErrConflict = errors.New("object was changed meanwhile")
	// ErrCompacted reports that the history does not reach back to the revision.
	ErrCompacted = errors.New("revision is too old")
	// ErrFuture reports that no change has the revision yet.
	ErrFuture = errors.New("revision is in the future")
	// ErrTooLarge reports that the value is larger than MaxValue.
	ErrTooLarge = errors.New("object is too large")
	// ErrFull reports that the file has reached MaxFile. Objects can still be removed.
	ErrFull = errors.New("store is full")
)

// MaxValue is the maximum size of an object's value, in bytes, as in etcd.
const MaxValue = 3 << 19

// format is the version of the file format. Format 1 had another key order and was in no release.
// It is rejected as newer formats are.
const format = 2

var errInUse = errors.New("another process has it open")

// lockTimeout is how long Open waits for another process to unlock the file.
const lockTimeout = time.Second

// Config configures a Store.
type Config struct {
	// Path is the file. Its directory must exist.
	Path string
	// MaxHistory is the maximum number of changes in the history; 0 is 4096.
	MaxHistory int
	// MaxHistoryBytes is the maximum size of their values; 0 is 2 MiB. The changes of the last
	// transaction stay, whatever their size.
	MaxHistoryBytes int
	// MaxFile is the maximum size of the used part of the file, in bytes; 0 is 1 GiB.
	MaxFile int64
	// NoSync skips fsync, for a file that need not survive the process.
	NoSync bool
	// Copy maintains a copy of all objects in a second file, and recovers a damaged file in Open.
	Copy bool
	// Check returns why an object is unusable, if Copy is set; nil checks nothing.
	Check func(Key, []byte) error
	// Warn is called with damage that costs no object, if Copy is set.
	Warn func(error)
}

// Item is an object and the revision of its last change. Value is nil if the object does not exist.
type Item struct {
	Key      Key
	Revision uint64
	Value    []byte
}

// Change is one change of an object. Now.Value is nil if it was removed, Before.Value if it was
// created. Now always has the key and the revision of the change. The values must not be modified.
type Change struct{ Now, Before Item }

// Store is an open store. It is safe for concurrent use.
type Store struct {
	db      *bolt.DB
	file    *os.File // that of db
	path    string
	maxFile int64
	history *history
	// recovery is the last one, nil if there was none; recovered is set if Open made it.
	recovery  *Recovery
	recovered bool
	damaged   chan struct{} // closed when damage is set

	// copy is nil without a copy. Guarded by commit.
	copy *copyWriter
	// retry is the timer of the next retry, nil if nothing failed; closed prevents one from using
	// the database. Guarded by commit.
	retry  *time.Timer
	closed bool
	// unwritten is the state that is still to be written, nil if there is none. Guarded by commit.
	unwritten *state

	// commit is held by the goroutine that writes the waiting writes, as bbolt has one writer at a
	// time.
	commit sync.Mutex

	mu      sync.Mutex
	waiting []*pending // guarded by mu
	failure error      // guarded by mu; of the last transaction
	copying error      // guarded by mu; of the copy
	keeping error      // guarded by mu; of the state
	damage  error      // guarded by mu; the file was damaged while it was open
}

var (
	objectsBucket = []byte("objects") // encoded key: revision in 8 bytes, value
	metaBucket    = []byte("meta")    // formatKey and revisionKey: 8 bytes each
	formatKey     = []byte("format")
	revisionKey   = []byte("revision")
)

// Open opens the file, and creates it if it does not exist.
func Open(cfg Config) (*Store, error) {
	var r *Recovery
	var info copyInfo
	if cfg.Copy {
		var err error
		if r, info, err = recoverStore(cfg); err != nil {
			return nil, fmt.Errorf("open %s: %w", cfg.Path, err)
		}
	}
	s, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.Path, err)
	}
	if cfg.Copy {
		s.recovered = r != nil
		if err := s.openCopy(cfg, info); err != nil {
			return nil, errors.Join(fmt.Errorf("open %s: %w", cfg.Path, err), s.Close())
		}
	}
	return s, nil
}

// open opens the file without recovery.
func open(cfg Config) (*Store, error) {
	s := &Store{path: cfg.Path, maxFile: cmp.Or(cfg.MaxFile, 1<<30), damaged: make(chan struct{})}
	opened := bolt.Options{
		Timeout: lockTimeout, FreelistType: bolt.FreelistMapType, NoSync: cfg.NoSync, NoGrowSync: cfg.NoSync,
		OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
			f, err = os.OpenFile(name, flag, mode)
			s.file = f
			return f, err
		},
	}
	err := guard(func() (err error) { s.db, err = bolt.Open(cfg.Path, 0o600, &opened); return err })
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("%w; stop that process, or use another root directory", errInUse)
	case errors.Is(err, ErrDamaged) && s.file != nil:
		err = errors.Join(err, s.file.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("%w; restore a backup, or move the file away, with its copy and its state (%s*), to begin without objects", err, cfg.Path)
	}
	var revision uint64
	if err := guard(func() (err error) { revision, err = s.prepare(); return err }); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.history = newHistory(cfg, revision)
	return s, nil
}

// Close closes the file. No other method may be running, or be called afterwards.
func (s *Store) Close() error {
	s.commit.Lock()
	defer s.commit.Unlock()
	s.endRetries()
	err := s.copy.close()
	if s.Damage() != nil {
		// bbolt may hold its own locks for ever. Its memory stays mapped for readers, and would
		// keep the file locked.
		return errors.Join(err, unix.Flock(int(s.file.Fd()), unix.LOCK_UN), s.file.Close())
	}
	return errors.Join(err, s.db.Close())
}

// Health returns the error of the last transaction, copy or state write, nil if they succeeded.
func (s *Store) Health() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.damage, errors.Join(s.failure, s.copying, s.keeping))
}

// Recovery returns how a damaged file was recovered the last time, nil if never, and whether this
// Open did it.
func (s *Store) Recovery() (r *Recovery, now bool) { return s.recovery, s.recovered }

// Revision returns the revision of the last change.
func (s *Store) Revision() uint64 { return s.history.newest() }

// prepare initializes a new file, checks the format of an existing one, and returns its revision.
func (s *Store) prepare() (revision uint64, err error) {
	known := false
	err = s.db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		if meta == nil {
			return nil
		}
		have, err := number(meta, formatKey)
		if err == nil && have != format {
			err = fmt.Errorf("it has format %d, and this version of Berth knows format %d: use the version that wrote it, or restore a backup that this version has made", have, format)
		}
		if err == nil && tx.Bucket(objectsBucket) == nil {
			err = errors.New("it has no objects in it, not even none: it is not a store of Berth")
		}
		if err != nil {
			return err
		}
		known = true
		revision, err = number(meta, revisionKey)
		return err
	})
	if err != nil || known {
		return revision, err
	}
	const first = 1 // clients take 0 for any revision
	return first, s.db.Update(func(tx *bolt.Tx) error {
		if name, _ := tx.Cursor().First(); name != nil {
			return fmt.Errorf("it has something else in it (%q): it is not a store of Berth", name)
		}
		if _, err := tx.CreateBucket(objectsBucket); err != nil {
			return err
		}
		return putMeta(tx, first)
	})
}

func putMeta(tx *bolt.Tx, revision uint64) error {
	meta, err := tx.CreateBucketIfNotExists(metaBucket)
	if err == nil {
		err = meta.Put(formatKey, binary.BigEndian.AppendUint64(nil, format))
	}
	if err == nil {
		err = meta.Put(revisionKey, binary.BigEndian.AppendUint64(nil, revision))
	}
	return err
}

func number(b *bolt.Bucket, key []byte) (uint64, error) {
	v := b.Get(key)
	if len(v) != 8 {
		return 0, fmt.Errorf("its %s has %d bytes instead of 8", key, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}

// Get returns one object, or ErrNotFound.
func (s *Store) Get(key Key) (item Item, err error) {
	k, err := key.encode()
	if err != nil {
		return Item{}, err
	}
	err = s.view(func(tx *bolt.Tx) error {
		stored := tx.Bucket(objectsBucket).Get([]byte(k))
		if stored == nil {
			return ErrNotFound
		}
		item, err = decodeItem(key, stored)
		item.Value = bytes.Clone(item.Value)
		return err
	})
	if err != nil {
		return Item{}, fmt.Errorf("get %s: %w", key, err)
	}
	return item, nil
}

// decodeItem returns an item whose value shares the memory of stored.
func decodeItem(key Key, stored []byte) (Item, error) {
	if len(stored) < 8 {
		return Item{}, fmt.Errorf("%s has %d bytes in the file, which is less than its revision takes", key, len(stored))
	}
	return Item{Key: key, Revision: binary.BigEndian.Uint64(stored), Value: stored[8:]}, nil
}
