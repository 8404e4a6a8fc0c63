package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"berth/internal/checkpoint"
)

// recoverStore sets a damaged file aside and builds a usable one from it and its copy, with
// revisions that no client has read. It returns no Recovery if the file is usable or does not exist
// yet, and what the copy covers.
func recoverStore(cfg Config) (*Recovery, copyInfo, error) {
	if err := notInUse(cfg.Path); err != nil {
		return nil, copyInfo{}, err
	}
	s, stateErr := readState(cfg.Path + stateSuffix)
	if stateErr != nil && cfg.Warn != nil {
		cfg.Warn(stateErr)
	}
	e, err := examine(cfg)
	if err != nil {
		return nil, copyInfo{}, err
	}
	cause := computeCause(e, s)
	if cause == "" {
		return nil, e.copy, nil
	}
	r, err := e.recover(s, cause)
	return r, copyInfo{exists: e.copy.exists}, err
}

// recover builds the usable file.
func (e *examined) recover(s state, cause string) (*Recovery, error) {
	objects, lost, err := e.gather()
	if err != nil {
		return nil, err
	}
	r := &Recovery{Time: time.Now().UTC().Truncate(time.Second), Path: e.path, Cause: cause, Objects: len(objects), Lost: lost}
	covered := e.copy.complete && e.copy.last >= max(e.revision, s.Revision)
	r.Unnamed = !covered && !e.whole
	newest := max(s.Revision, e.revision, e.copy.last)
	for k, c := range objects {
		newest = max(newest, c.revision)
		if c.copied {
			r.Copied++
		}
		if c.older {
			r.Older = append(r.Older, display(k))
		}
	}
	slices.Sort(r.Older)
	work := e.path + ".recovering"
	if err := errors.Join(checkpoint.Allow(e.path, 1), removed(work)); err != nil {
		return nil, err
	}
	if err := build(work, objects, newest+restoredAhead); err != nil {
		return nil, errors.Join(err, removed(work))
	}
	if e.exists {
		if r.Aside, err = setAside(e.path); err != nil {
			return nil, errors.Join(err, removed(work))
		}
	}
	if err := os.Rename(work, e.path); err != nil {
		return nil, err
	}
	if err := syncFolder(filepath.Dir(e.path)); err != nil {
		return nil, err
	}
	s.Generation, s.Recovery = s.Generation+1, r
	s.Revision = max(s.Revision, newest+restoredAhead)
	return r, writeState(e.path+stateSuffix, s)
}

// build creates a file of objects. Those that may be older versions get new revisions.
func build(path string, objects map[string]candidate, revision uint64) (err error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockTimeout, NoSync: true, NoGrowSync: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	keys := slices.Sorted(maps.Keys(objects))
	if err := db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket(objectsBucket)
		return err
	}); err != nil {
		return err
	}
	for batch := range slices.Chunk(keys, 1000) {
		if err := db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket(objectsBucket)
			for _, k := range batch {
				c := objects[k]
				if c.older {
					revision++
					c.revision = revision
				}
				if err := b.Put([]byte(k), append(binary.BigEndian.AppendUint64(nil, c.revision), c.value...)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	if err := db.Update(func(tx *bolt.Tx) error { return putMeta(tx, revision) }); err != nil {
		return err
	}
	return db.Sync()
}

// keptAside is the number of damaged files that are preserved.
const keptAside = 3

// setAside gives a damaged file, or whatever is at the path, a name with the time, and returns it.
// A file also stays at the path until it is replaced.
func setAside(path string) (string, error) {
	aside := path + ".damaged-" + time.Now().UTC().Format("20060102T150405Z")
	for i := 2; ; i++ {
		err := os.Link(path, aside)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrExist) {
			if err := os.Rename(path, aside); err != nil {
				return "", err
			}
			break
		}
		aside = fmt.Sprintf("%s-%d", strings.TrimSuffix(aside, fmt.Sprintf("-%d", i-1)), i)
	}
	old, err := filepath.Glob(path + ".damaged-*")
	if err != nil {
		return "", err
	}
	slices.Sort(old)
	for _, name := range old[:max(0, len(old)-keptAside)] {
		err = errors.Join(err, os.RemoveAll(name))
	}
	return aside, err
}

// notInUse returns errInUse if another process has the file open.
func notInUse(path string) error {
	fi, err := os.Stat(path)
	if err != nil || !fi.Mode().IsRegular() {
		return nil // the caller finds and reports it
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%w; stop that process, or use another root directory", errInUse)
	}
	return nil
}
