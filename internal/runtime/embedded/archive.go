package embedded

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

const (
	archiveBuffer = 32 << 10
	// maxDocument and maxDocuments bound the size of one and of all buffered JSON documents, in
	// bytes.
	maxDocument, maxDocuments = maxManifest, 64 << 20
	// maxWindow is the largest zstd window that the zstd command decompresses by default.
	maxWindow = 128 << 20
	// maxNested bounds the nesting depth of indexes.
	maxNested = 4
)

// archiveReader reads an image archive, uncompressed, for an import. Content is returned after it
// was validated, and the last bytes only after the whole archive was: an invalid archive fails
// before the receiver has all of it.
type archiveReader struct {
	tar     io.Reader
	check   *io.PipeWriter
	checked chan error

	buffers [2][archiveBuffer]byte
	next    int    // index of the free buffer
	held    []byte // returned when the data after it is validated
	ready   []byte
	err     error

	contents archiveContents // valid after Read has returned io.EOF
}

// openArchive returns a reader that the caller must close.
func openArchive(from io.Reader) (*archiveReader, error) {
	plain, err := decompressed(from)
	if err != nil {
		return nil, err
	}
	checked, check := io.Pipe()
	a := &archiveReader{tar: plain, check: check, checked: make(chan error, 1)}
	go func() {
		contents, err := readContents(checked)
		if err == nil {
			err = contents.usable(runtime.GOARCH)
		}
		a.contents = contents
		if err == nil {
			_, err = io.Copy(io.Discard, checked) // the padding
		}
		_ = checked.CloseWithError(err) // always nil
		a.checked <- err
	}()
	return a, nil
}

// close stops the validation. It must be called once, also after an error.
func (a *archiveReader) close() { _ = a.check.CloseWithError(io.ErrClosedPipe) } // always nil

func (a *archiveReader) Read(p []byte) (int, error) {
	for len(a.ready) == 0 {
		if a.err != nil {
			return 0, a.err
		}
		a.advance()
	}
	n := copy(p, a.ready)
	a.ready = a.ready[n:]
	return n, nil
}

// advance reads the next bytes, and makes the previous ones ready.
func (a *archiveReader) advance() {
	buf := a.buffers[a.next][:]
	n, err := io.ReadFull(a.tar, buf)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = io.EOF
	}
	if n > 0 {
		if _, refused := a.check.Write(buf[:n]); refused != nil {
			a.err = refused
			return
		}
	}
	switch {
	case err == nil:
		a.ready, a.held, a.next = a.held, buf, 1-a.next
		return
	case err == io.EOF: //nolint:errorlint // it is set above
		_ = a.check.Close() // always nil
		if err := <-a.checked; err != nil {
			a.err = err
			return
		}
		a.ready = append(slices.Clone(a.held), buf[:n]...)
	}
	a.err = err
}

// decompressed returns the tar stream of an archive, or an error that names an unsupported format.
func decompressed(from io.Reader) (io.Reader, error) {
	r := bufio.NewReaderSize(from, archiveBuffer)
	begin, err := r.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	is := func(magic string) bool { return bytes.HasPrefix(begin, []byte(magic)) }
	switch {
	case len(begin) == 0:
		return nil, errors.New("the file is empty")
	case is("\x1f\x8b"):
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("decompress gzip: %w", err)
		}
		return z, nil
	case is("\x28\xb5\x2f\xfd"):
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fmt.Errorf("decompress zstd: %w", err)
		}
		return z, nil
	}
	for magic, by := range map[string]string{
		"\x04\x22\x4d\x18": "lz4 -dc", "\x02\x21\x4c\x18": "lz4 -dc", "\xfd7zXZ\x00": "xz -dc", "BZh": "bzip2 -dc", "LZIP": "lzip -dc",
		"PK\x03\x04": "unzip -p",
	} {
		if is(magic) {
			name, _, _ := strings.Cut(by, " ")
			if name == "unzip" {
				name = "zip"
			}
			return nil, fmt.Errorf("the file is compressed by %s, which is not supported (decompress it: %s FILE | berth image import -)", name, by)
		}
	}
	return r, nil
}

// archiveContents is the image metadata of an archive.
type archiveContents struct {
	layout    bool                 // the archive is an OCI image layout
	documents map[string][]byte    // JSON files by path
	docker    []dockerArchiveImage // of manifest.json, Docker's own index
	index     *archiveIndex        // of index.json
}

// dockerArchiveImage is an image in Docker's archive format.
type dockerArchiveImage struct {
	Config   string
	RepoTags []string
}

// archivePlatform, archiveDescriptor and archiveIndex are parts of the OCI image specification.
type archivePlatform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
}

type archiveDescriptor struct {
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *archivePlatform  `json:"platform"`
	Annotations map[string]string `json:"annotations"`
}

type archiveIndex struct {
	Manifests []archiveDescriptor `json:"manifests"`
	Config    *archiveDescriptor  `json:"config"` // of a manifest
	Layers    []archiveDescriptor `json:"layers"` // likewise
}

var errNoArchive = errors.New(`the file is not an image archive: it is no tar archive (make one by "docker save" or "ctr image export")`)

func readContents(from io.Reader) (archiveContents, error) {
	c := archiveContents{documents: map[string][]byte{}}
	t := tar.NewReader(from)
	for size, files := 0, 0; ; files++ {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF) && files > 0:
			return c, nil
		case files == 0 && (errors.Is(err, tar.ErrHeader) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
			return c, errNoArchive
		case errors.Is(err, io.ErrUnexpectedEOF):
			return c, errors.New("the archive is truncated")
		case err != nil:
			return c, err
		}
		if h.Typeflag != tar.TypeReg || h.Size > maxDocument {
			continue
		}
		name := path.Clean(h.Name)
		content := bufio.NewReader(t)
		if first, err := content.Peek(1); name != "manifest.json" && (err != nil || first[0] != '{') {
			continue
		}
		b, err := io.ReadAll(content)
		if err != nil {
			return c, fmt.Errorf("read %s: %w", name, err)
		}
		switch name {
		case "oci-layout":
			c.layout = true
		case "manifest.json":
			err = json.Unmarshal(b, &c.docker)
		case "index.json":
			err = json.Unmarshal(b, &c.index)
		default:
			if size += len(b); size <= maxDocuments {
				c.documents[name] = b
			}
		}
		if err != nil {
			return c, fmt.Errorf("the archive's %s is not valid: %w", name, err)
		}
	}
}

// usable returns an error if an archive cannot be imported on this architecture.
func (c archiveContents) usable(arch string) error {
	switch {
	case c.layout && c.index != nil:
		for _, d := range c.index.Manifests {
			if err := foreign(nameOf(d), c.platforms(d, maxNested), arch); err != nil {
				return err
			}
		}
	case !c.layout && c.docker != nil:
		for _, image := range c.docker {
			name := strings.Join(image.RepoTags, ", ")
			if err := foreign(name, platformsOf(c.documents[path.Clean(image.Config)]), arch); err != nil {
				return err
			}
		}
	default:
		return errors.New(`the tar archive has no image: neither manifest.json nor oci-layout with index.json is in it (make one by "docker save", not "docker export")`)
	}
	return nil
}

// nameOf returns an image's name in an index.
func nameOf(d archiveDescriptor) string {
	for _, key := range []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"} {
		if name := d.Annotations[key]; name != "" {
			return name
		}
	}
	return d.Digest
}

// platforms returns the known platforms of an image in the archive.
func (c archiveContents) platforms(d archiveDescriptor, depth int) []archivePlatform {
	if d.Platform != nil && d.Platform.Architecture != "" {
		return []archivePlatform{*d.Platform}
	}
	var index archiveIndex
	algorithm, hash, _ := strings.Cut(d.Digest, ":")
	if depth == 0 || json.Unmarshal(c.documents[path.Join("blobs", algorithm, hash)], &index) != nil {
		return nil
	}
	if index.Config != nil {
		algorithm, hash, _ := strings.Cut(index.Config.Digest, ":")
		return platformsOf(c.documents[path.Join("blobs", algorithm, hash)])
	}
	var all []archivePlatform
	for _, m := range index.Manifests {
		all = append(all, c.platforms(m, depth-1)...)
	}
	return all
}

func platformsOf(config []byte) []archivePlatform {
	var p archivePlatform
	if json.Unmarshal(config, &p) != nil || p.Architecture == "" {
		return nil
	}
	return []archivePlatform{p}
}

// foreign returns an error if an image only supports other platforms. The platform of attestations
// is "unknown".
func foreign(name string, platforms []archivePlatform, arch string) error {
	runs := []string{arch}
	switch arch {
	case "amd64":
		runs = append(runs, "386")
	case "arm64":
		runs = append(runs, "arm")
	}
	var others []string
	for _, p := range platforms {
		if p.OS == "linux" && slices.Contains(runs, p.Architecture) {
			return nil
		}
		if other := p.OS + "/" + p.Architecture; p.OS != "unknown" && !slices.Contains(others, other) {
			others = append(others, other)
		}
	}
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("image %s is for %s, and this node is linux/%s (import an archive that has it for linux/%s)", name, strings.Join(others, " and "), arch, arch)
}
