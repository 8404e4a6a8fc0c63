package offlinecache

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth/internal/checkpoint"
)

// Folders below that of all records. What can be read by everybody who reads the disk is apart from
// what cannot.
const (
	plainDir  = "objects"
	sealedDir = "secrets"
	keyDir    = "key"
)

// recordVersion is the version of the records' form.
const recordVersion = 1

// identity is what a record is of, and who said it. It is bound to what is encrypted.
type identity struct {
	Version int `json:"version"`
	ref
	// Node is the name of the node, Server what names the cluster.
	Node   string `json:"node"`
	Server string `json:"server"`
	// Kept is when it was written.
	Kept time.Time `json:"kept"`
}

// record is a file's content: an object as the API server said it, in the open or encrypted.
type record struct {
	identity
	Object json.RawMessage `json:"object,omitempty"`
	Sealed []byte          `json:"sealed,omitempty"`
}

// files are the records of one node and cluster. They are used by one goroutine at a time.
type files struct {
	dir          string
	node, server string
	vault        vault
}

func newFiles(dir, node, server string) *files {
	return &files{dir: dir, node: node, server: server, vault: vault{dir: filepath.Join(dir, keyDir)}}
}

// path is where the record is. Names of objects may be longer than those of files.
func (f *files) path(r ref) string {
	folder := plainDir
	if r.Kind.isSecret() {
		folder = sealedDir
	}
	sum := sha256.Sum256([]byte(string(r.Kind) + "/" + r.Namespace + "/" + r.Name))
	return filepath.Join(f.dir, folder, hex.EncodeToString(sum[:16])+".json")
}

// write replaces the record, durably.
func (f *files) write(r ref, object []byte) error {
	rec := record{identity: identity{recordVersion, r, f.node, f.server, time.Now().Round(0).UTC()}}
	if r.Kind.isSecret() {
		if err := f.vault.ready(); err != nil {
			return fmt.Errorf("no Secret and no token is cached: %w", err)
		}
		bound, err := json.Marshal(rec.identity)
		if err != nil {
			return fmt.Errorf("keep %v: %w", r, err)
		}
		rec.Sealed = f.vault.seal(object, bound)
	} else {
		rec.Object = object
	}
	b, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("keep %v: %w", r, err)
	}
	path := f.path(r)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep %v: %w", r, err)
	}
	return checkpoint.Write(path, 0o600, append(b, '\n'))
}

// remove removes the record, if it is there.
func (f *files) remove(r ref) error {
	path := f.path(r)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return checkpoint.Remove(path)
}

// errForeign says that a record is another node's, or another cluster's.
var errForeign = errors.New("it was kept for another node or another cluster")

// read returns a record with its object in the open, the zero value if there is none. One that
// cannot be read is set aside, and is the error, which says so; not so one whose key is refused.
func (f *files) read(path string) (rec record, err error) {
	sealed := filepath.Base(filepath.Dir(path)) == sealedDir
	if sealed {
		if err := f.vault.open(); err != nil && !errors.Is(err, errNoKey) {
			return record{}, err
		}
	}
	err = checkpoint.Read(path, "records of the API server's objects", func(b []byte) error {
		if err := json.Unmarshal(b, &rec); err != nil {
			return err
		}
		switch {
		case rec.Version != recordVersion:
			return checkpoint.UnknownVersion(rec.Version, recordVersion)
		case rec.Kind.isSecret() != sealed || f.path(rec.ref) != path:
			return fmt.Errorf("it is a record of %v, which has another place", rec.ref)
		case !sealed || rec.Node != f.node || rec.Server != f.server:
			return nil
		case f.vault.aead == nil:
			return f.vault.open()
		}
		bound, err := json.Marshal(rec.identity)
		if err == nil {
			rec.Object, err = f.vault.unseal(rec.Sealed, bound)
		}
		return err
	})
	switch {
	case err != nil:
		return record{}, err
	case rec.Version != 0 && (rec.Node != f.node || rec.Server != f.server):
		return record{}, errForeign
	}
	return rec, nil
}

// decode returns the object of a record, nil for that there is none.
func (r *record) decode() (any, error) {
	empty, known := kinds[r.Kind]
	if !known {
		return nil, fmt.Errorf("records of %s are not known", r.Kind)
	}
	if string(r.Object) == "null" {
		return nil, nil
	}
	o := empty()
	if err := json.Unmarshal(r.Object, o); err != nil {
		return nil, fmt.Errorf("%v, as it was kept: %w", r.ref, err)
	}
	return o, nil
}

// paths returns the paths of all files, of what was set aside too.
func (f *files) paths() (out []string, err error) {
	var errs []error
	for _, folder := range []string{plainDir, sealedDir} {
		entries, err := os.ReadDir(filepath.Join(f.dir, folder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, e := range entries {
			out = append(out, filepath.Join(f.dir, folder, e.Name()))
		}
	}
	return out, errors.Join(errs...)
}

// isRecord reports whether the file is neither set aside nor what an agent left that was killed
// while it wrote.
func isRecord(path string) bool {
	return !checkpoint.IsAside(path) && !strings.HasPrefix(filepath.Base(path), ".")
}

// drop removes all that is below the folders.
func (f *files) drop(folders ...string) error {
	var errs []error
	for _, folder := range folders {
		errs = append(errs, os.RemoveAll(filepath.Join(f.dir, folder)))
	}
	return errors.Join(errs...)
}
