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

// A backup is this line, the file, and the SHA-256 of both.
const backupHead = "berth: objects of the local API, form 1\n"

// Backup writes a snapshot of all objects to w. It does not block reads and writes, but space that
// they free meanwhile is reused only after Backup has returned.
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

// restoredAhead is how far a restored file's revision is ahead of the backup's, so that it exceeds
// every revision that a client has read since the backup.
const restoredAhead = 1 << 32

// Restore replaces the file at path by the objects of a backup. No process may have it open. The
// previous file is preserved with the suffix .replaced, in place of an earlier one. A backup that
// is incomplete, or from a newer version of Berth, changes nothing.
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
	// The copy belongs to the replaced file. The state stays, as it has the revision.
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

// keepReplaced links the file to a second name, so that it exists until the new one replaces it.
func keepReplaced(path string) error {
	if err := os.RemoveAll(path + ".replaced"); err != nil {
		return err
	}
	if os.Link(path, path+".replaced") == nil {
		return nil
	}
	// It is a directory, or the file system does not support links.
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

// unpack writes and syncs the file of a backup, and verifies the checksum.
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
	// The last bytes are the checksum of all bytes before them.
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
