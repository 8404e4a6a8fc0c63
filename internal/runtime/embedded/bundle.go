package embedded

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// bundleHash is the SHA-256 of the bundle's manifest, in hexadecimal. The linker sets it, because
// hashing the bundle itself would make all of it resident.
var bundleHash string

// errNoBundle is returned by binaries built without the tag "bundle".
var errNoBundle = errors.New("this build of berth brings no runtime along; build it with make build, or name a running one with --container-runtime-endpoint")

// Available reports whether this binary contains a bundle.
func Available() bool { return bundleHash != "" && hasBlob }

const manifestName = "manifest.json"

// manifest lists the contents of a bundle. It is the bundle's first entry, and its hash is the
// bundle's hash.
type manifest struct {
	Version    int               `json:"version"`
	Components map[string]string `json:"components"`
	Files      []bundledFile     `json:"files"`
	Images     []bundledImage    `json:"images"`
}

type bundledFile struct {
	Name   string `json:"name"` // slash-separated, relative
	Mode   int64  `json:"mode"` // permission bits
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

type bundledImage struct {
	Name   string `json:"name"`   // reference, as used by pods
	File   string `json:"file"`   // OCI archive in the bundle
	Digest string `json:"digest"` // of the image's manifest
	Pinned bool   `json:"pinned"` // the sandbox image, which the runtime itself needs
}

// folderName returns the directory name of a bundle: a prefix of the hash that is unique, and short
// in process lists.
func folderName(hash string) string { return hash[:16] }

func isFolderName(name string) bool {
	_, err := hex.DecodeString(name)
	return err == nil && len(name) == 16
}

// openBlob opens a bundle: the file, or the embedded one with the hash.
func openBlob(file, hash string) (io.ReadCloser, error) {
	switch {
	case file != "":
		return os.Open(file)
	case !Available():
		return nil, errNoBundle
	case hash == apiHash:
		return io.NopCloser(embeddedAPI()), nil
	}
	return io.NopCloser(embeddedBlob()), nil
}

// hashOf returns the hash of the runtime's bundle. It only reads the first entry of the file.
func hashOf(file string) (string, error) {
	if file == "" {
		if !Available() {
			return "", errNoBundle
		}
		return bundleHash, nil
	}
	blob, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("bundle: %w", err)
	}
	defer blob.Close()
	z, err := zstd.NewReader(blob, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return "", fmt.Errorf("bundle %s: %w", file, err)
	}
	defer z.Close()
	_, hash, err := readHead(tar.NewReader(z))
	if err != nil {
		return "", fmt.Errorf("bundle %s: %w", file, err)
	}
	return hash, nil
}

// readHead reads a bundle's first entry, the manifest, and returns its content and hash.
func readHead(t *tar.Reader) (head []byte, hash string, err error) {
	h, err := t.Next()
	if err != nil {
		return nil, "", err
	}
	if h.Name != manifestName || h.Size > 1<<20 {
		return nil, "", fmt.Errorf("not a bundle: the first entry is %q, not %s", h.Name, manifestName)
	}
	if head, err = io.ReadAll(t); err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(head)
	return head, hex.EncodeToString(sum[:]), nil
}

// parseManifest only accepts file names inside of the bundle's directory.
func parseManifest(head []byte) (manifest, error) {
	var m manifest
	if err := json.Unmarshal(head, &m); err != nil {
		return manifest{}, fmt.Errorf("%s: %w", manifestName, err)
	}
	if m.Version != 1 {
		return manifest{}, fmt.Errorf("%s: version %d is not known, only 1", manifestName, m.Version)
	}
	for _, f := range m.Files {
		if !filepath.IsLocal(f.Name) || f.Name == manifestName {
			return manifest{}, fmt.Errorf("%s: file name %q is not allowed", manifestName, f.Name)
		}
	}
	for _, i := range m.Images {
		if !slices.ContainsFunc(m.Files, func(f bundledFile) bool { return f.Name == i.File }) {
			return manifest{}, fmt.Errorf("%s: image %s: archive %q is not in the bundle", manifestName, i.Name, i.File)
		}
	}
	return m, nil
}

func readManifest(dir string) (manifest, error) {
	head, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return manifest{}, err
	}
	return parseManifest(head)
}
