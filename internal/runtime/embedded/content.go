package embedded

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// errContent matches errors of content that is missing or does not match its digest.
var errContent = errors.New("the content is damaged")

// contentFolder is a directory of files that are named by the SHA-256 of their content.
type contentFolder string

// contentFile is one blob.
type contentFile struct {
	file     string
	digest   string // "sha256:…"
	size     int64
	document bool // JSON: an index, a manifest or a configuration
}

// contentProblem is a blob that failed validation.
type contentProblem struct {
	blob contentFile
	err  error
}

// document is fileOf for an index, a manifest or a configuration.
func (d contentFolder) document(of archiveDescriptor) contentFile {
	f := d.fileOf(of)
	f.document = true
	return f
}

func (d contentFolder) fileOf(of archiveDescriptor) contentFile {
	_, hash, _ := strings.Cut(of.Digest, ":")
	return contentFile{file: filepath.Join(string(d), filepath.Base(hash)), digest: of.Digest, size: of.Size}
}

// check validates a blob. A document is read and compared with its digest, other blobs are only
// checked for their size.
func (b contentFile) check() (content []byte, err error) {
	fail := func(what string) ([]byte, error) { return nil, fmt.Errorf("%w: %s: %s", errContent, b.file, what) }
	algorithm, hash, _ := strings.Cut(b.digest, ":")
	if sum, err := hex.DecodeString(hash); algorithm != "sha256" || err != nil || len(sum) != sha256.Size {
		return fail("the digest " + b.digest + " is not supported")
	}
	fi, err := os.Lstat(b.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail("it is missing")
	case err != nil:
		return fail(err.Error())
	case !fi.Mode().IsRegular():
		return fail("it is not a regular file")
	case fi.Size() != b.size:
		return fail(fmt.Sprintf("it has %d bytes of %d", fi.Size(), b.size))
	case !b.document:
		return nil, nil
	}
	if content, err = os.ReadFile(b.file); err != nil {
		return fail(err.Error())
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != hash {
		return fail("it does not have its digest")
	}
	return content, nil
}

// image returns the valid blobs of an image in the directory, and its problems. Images of an index
// for other platforms may be missing.
func (d contentFolder) image(target archiveDescriptor) (all []contentFile, problems []contentProblem) {
	return d.walk(target, maxNested)
}

func (d contentFolder) walk(of archiveDescriptor, depth int) (all []contentFile, problems []contentProblem) {
	b := d.document(of)
	content, err := b.check()
	var doc archiveIndex
	if err == nil {
		if err = json.Unmarshal(content, &doc); err != nil || depth == 0 {
			err = fmt.Errorf("%w: %s: it is neither an index nor a manifest: %w", errContent, b.file, err)
		}
	}
	if err != nil {
		return nil, []contentProblem{{b, err}}
	}
	all = []contentFile{b}
	if doc.Config != nil {
		parts := []contentFile{d.document(*doc.Config)}
		for _, l := range doc.Layers {
			parts = append(parts, d.fileOf(l))
		}
		for _, part := range parts {
			if _, err := part.check(); err != nil {
				problems = append(problems, contentProblem{part, err})
				continue
			}
			all = append(all, part)
		}
		return all, problems
	}
	return d.walkIndex(b, doc, depth)
}

// walkIndex is walk for an index. One image for this platform is sufficient: for other platforms,
// containerd only stores the manifests.
func (d contentFolder) walkIndex(index contentFile, doc archiveIndex, depth int) (all []contentFile, problems []contentProblem) {
	all = []contentFile{index}
	found := false
	for _, child := range doc.Manifests {
		if p := child.Platform; p != nil && p.Architecture != "" && (p.OS != "linux" || foreign("", []archivePlatform{*p}, runtime.GOARCH) != nil) {
			continue
		}
		more, wrong := d.walk(child, depth-1)
		if len(wrong) == 0 {
			all, found = append(all, more...), true
		}
		problems = append(problems, wrong...)
	}
	switch {
	case found:
		return all, nil
	case len(problems) == 0:
		problems = []contentProblem{{index, fmt.Errorf("%w: %s: it has no image for linux/%s", errContent, index.file, runtime.GOARCH)}}
	}
	return all, problems
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// writeArchive writes an image as an OCI image layout without a name.
func writeArchive(to io.Writer, target imageDescriptor, all []contentFile) error {
	t := tar.NewWriter(to)
	write := func(name string, size int64, content io.Reader) error {
		err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o444})
		if err == nil {
			_, err = io.Copy(t, content)
		}
		return err
	}
	document := func(name string, v any) error {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return write(name, int64(len(b)), bytes.NewReader(b))
	}
	if err := document("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}); err != nil {
		return err
	}
	written := map[string]bool{}
	for _, b := range all {
		if written[b.digest] {
			continue
		}
		written[b.digest] = true
		f, err := os.Open(b.file)
		if err != nil {
			return fmt.Errorf("%w: %w", errContent, err)
		}
		err = write("blobs/"+strings.ReplaceAll(b.digest, ":", "/"), b.size, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	err := document("index.json", map[string]any{
		"schemaVersion": 2, "manifests": []imageDescriptor{{MediaType: target.MediaType, Digest: target.Digest, Size: target.Size}},
	})
	return errors.Join(err, t.Close())
}

// verify compares the blob's content with its digest.
func (b contentFile) verify() error {
	f, err := os.Open(b.file)
	if err != nil {
		return fmt.Errorf("%w: %w", errContent, err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return fmt.Errorf("%w: %w", errContent, err)
	}
	if _, hash, _ := strings.Cut(b.digest, ":"); hex.EncodeToString(sum.Sum(nil)) != hash {
		return fmt.Errorf("%w: %s: it does not have its digest", errContent, b.file)
	}
	return nil
}
