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

// Directories below that of all records. Records that are readable to everybody who reads the disk
// are separate from secret ones.
const (
	plainDir  = "objects"
	sealedDir = "secrets"
	keyDir    = "key"
)

const recordVersion = 1

// identity identifies a record and its source. It is the additional data of the encryption.
type identity struct {
	Version   int    `json:"version"`
	Kind      kind   `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Node is the name of the node, Server identifies the cluster.
	Node   string `json:"node"`
	Server string `json:"server"`
	// CachedAt is the time of the write.
	CachedAt time.Time `json:"kept"`
}

// record is a file's content: an object of the API server, in plain text or encrypted.
type record struct {
	identity
	Object json.RawMessage `json:"object,omitempty"`
	Sealed []byte          `json:"sealed,omitempty"`
}

func (r *record) ref() ref { return ref{r.Kind, r.Namespace, r.Name} }

// files are the records of one node and cluster. It is not safe for concurrent use.
type files struct {
	dir          string
	node, server string
	vault        vault
}

func newFiles(dir, node, server string) *files {
	return &files{dir: dir, node: node, server: server, vault: vault{dir: filepath.Join(dir, keyDir)}}
}

// path returns the file of a record. It is a hash: object names may be longer than file names.
func (f *files) path(r ref) string {
	folder := plainDir
	if r.Kind.isSecret() {
		folder = sealedDir
	}
	sum := sha256.Sum256([]byte(string(r.Kind) + "/" + r.Namespace + "/" + r.Name))
	return filepath.Join(f.dir, folder, hex.EncodeToString(sum[:16])+".json")
}

func (f *files) write(r ref, object []byte) error {
	rec := record{identity: identity{recordVersion, r.Kind, r.Namespace, r.Name, f.node, f.server, time.Now().Round(0).UTC()}}
	if r.Kind.isSecret() {
		if err := f.vault.ready(); err != nil {
			return fmt.Errorf("no Secret and no token is cached: %w", err)
		}
		bound, err := json.Marshal(rec.identity)
		if err != nil {
			return fmt.Errorf("cache %v: %w", r, err)
		}
		rec.Sealed = f.vault.seal(object, bound)
	} else {
		rec.Object = object
	}
	b, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("cache %v: %w", r, err)
	}
	path := f.path(r)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("cache %v: %w", r, err)
	}
	return checkpoint.Write(path, 0o600, append(b, '\n'))
}

// remove removes the record if it exists.
func (f *files) remove(r ref) error {
	path := f.path(r)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return checkpoint.Remove(path)
}

var errForeign = errors.New("it was cached for another node or cluster")

// read returns a record with its object decrypted, the zero value if there is none. A record that
// cannot be read is set aside, which the error reports, unless the key is rejected.
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
		case rec.Kind.isSecret() != sealed || f.path(rec.ref()) != path:
			return fmt.Errorf("it is a record of %v, which has another place", rec.ref())
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

// decode returns the object of a record, nil if it did not exist.
func (r *record) decode() (any, error) {
	newObject, ok := kinds[r.Kind]
	if !ok {
		return nil, fmt.Errorf("records of %s are not known", r.Kind)
	}
	if string(r.Object) == "null" {
		return nil, nil
	}
	o := newObject()
	if err := json.Unmarshal(r.Object, o); err != nil {
		return nil, fmt.Errorf("cached %v: %w", r.ref(), err)
	}
	return o, nil
}

// paths returns the paths of all files, including those that were set aside.
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

// isRecord reports whether the file is neither set aside nor a temporary file of an interrupted
// write.
func isRecord(path string) bool {
	return !checkpoint.IsAside(path) && !strings.HasPrefix(filepath.Base(path), ".")
}

// drop removes everything below the directories.
func (f *files) drop(folders ...string) error {
	var errs []error
	for _, folder := range folders {
		errs = append(errs, os.RemoveAll(filepath.Join(f.dir, folder)))
	}
	return errors.Join(errs...)
}
