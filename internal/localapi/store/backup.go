package store

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
)

// A backup is this line, the file as it was, and the SHA-256 of both.
const backupHead = "berth: objects of the local API, form 1\n"

// Backup writes all objects as they are now to w. Others read and write meanwhile; the room of what
// they remove or replace is free again when Backup has returned.
func (s *Store) Backup(w io.Writer) error {
	sum := sha256.New()
	summed := io.MultiWriter(w, sum)
	_, err := io.WriteString(summed, backupHead)
	if err == nil {
		err = s.view(func(tx *bolt.Tx) error {
			_, err := tx.WriteTo(summed)
			return err
		})
	}
	if err == nil {
		_, err = w.Write(sum.Sum(nil))
	}
	if err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	return nil
}

// restoredAhead is by how much a restored file is ahead of the revision that the backup has: no
// client takes a revision that it has seen since the backup for a new one.
const restoredAhead = 1 << 32

// Restore makes the file at path one that has the objects of a backup. Nobody may have it open. The
// file that was there stays beside it, with the suffix .replaced, in place of one that was replaced
// before. A backup that is not whole, or that a newer version of Berth has made, changes nothing.
func Restore(path string, backup io.Reader) (err error) {
	if err := notInUse(path); err != nil {
		return fmt.Errorf("restore %s: %w", path, err)
	}
	work := path + ".restoring"
	defer func() {
		if err != nil {
			err = fmt.Errorf("restore %s: %w", path, errors.Join(err, removed(work)))
		}
	}()
	if err := unpack(work, backup); err != nil {
		return err
	}
	if err := advance(work); err != nil {
		return err
	}
	// What is beside the file is of the one that is replaced. Its state stays: it has the revision.
	if err := removed(path + copySuffix); err != nil {
		return err
	}
	if err := keepReplaced(path); err != nil {
		return err
	}
	if err := os.Rename(work, path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// keepReplaced gives the file a second name, so that it is there until the new one takes its place.
func keepReplaced(path string) error {
	if err := os.RemoveAll(path + ".replaced"); err != nil {
		return err
	}
	if os.Link(path, path+".replaced") == nil {
		return nil
	}
	// It is a folder, or its file system has no links.
	if err := os.Rename(path, path+".replaced"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func removed(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// unpack makes a file of a backup, which is whole and on the disk then.
func unpack(path string, backup io.Reader) error {
	head := make([]byte, len(backupHead))
	if _, err := io.ReadFull(backup, head); err != nil || string(head) != backupHead {
		return errors.New("this is no backup of berth backup, or one of a newer version")
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	sum := sha256.New()
	sum.Write(head)
	// The last bytes are the sum of all before them.
	in, buf, held := bufio.NewReaderSize(backup, 64<<10), make([]byte, 32<<10), []byte(nil)
	for {
		n, readErr := in.Read(buf)
		held = append(held, buf[:n]...)
		if most := len(held) - sha256.Size; most > 0 {
			sum.Write(held[:most])
			if _, err := f.Write(held[:most]); err != nil {
				return errors.Join(err, f.Close())
			}
			held = append(held[:0], held[most:]...)
		}
		if errors.Is(readErr, io.EOF) {
			break
		}
		if readErr != nil {
			return errors.Join(readErr, f.Close())
		}
	}
	if !bytes.Equal(held, sum.Sum(nil)) {
		return errors.Join(errors.New("the backup is not whole: its sum is another one; use another backup"), f.Close())
	}
	return errors.Join(f.Sync(), f.Close())
}

// advance adds restoredAhead to the revision of a file.
func advance(path string) error {
	s, err := open(Config{Path: path})
	if err != nil {
		return err
	}
	revision := s.Revision() + restoredAhead
	return errors.Join(s.update(func(tx *bolt.Tx) error { return putMeta(tx, revision) }), s.Close())
}

func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
