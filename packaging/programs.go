package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// program is an executable file of the release.
type program struct {
	name   string
	sha256 string
	info   *buildinfo.BuildInfo // nil if it is not a Go program
}

// musl is the C library of programs that are not written in Go.
const musl = "musl"

// withoutGo are the programs that are not written in Go, with their C libraries.
var withoutGo = map[string][]string{"pause": nil, "podshim": {musl}}

func readProgram(name string, content []byte) (program, error) {
	sum := sha256.Sum256(content)
	p := program{name: name, sha256: hex.EncodeToString(sum[:])}
	if _, ok := withoutGo[name]; ok {
		return p, nil
	}
	var err error
	if p.info, err = buildinfo.Read(bytes.NewReader(content)); err != nil {
		return program{}, fmt.Errorf("%s: what was linked into it cannot be read: %w", name, err)
	}
	return p, nil
}

// setting returns a build setting of the program.
func (p program) setting(key string) string {
	if p.info == nil {
		return ""
	}
	for _, s := range p.info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// linkedWith reports whether a C library is linked into the program.
func (p program) linkedWith(library string) bool {
	if p.info == nil {
		return slices.Contains(withoutGo[p.name], library)
	}
	return p.setting("CGO_ENABLED") == "1" && library != musl
}

func readBundleFile(name string) ([]program, map[string]string, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	return readBundle(file)
}

// readBundle returns the programs of a bundle, including those in its images, and the versions of
// its components.
func readBundle(r io.Reader) ([]program, map[string]string, error) {
	z, err := zstd.NewReader(r)
	if err != nil {
		return nil, nil, err
	}
	defer z.Close()
	var b contents
	if err := b.read(z); err != nil {
		return nil, nil, err
	}
	if len(b.programs) == 0 {
		return nil, nil, errors.New("has no programs")
	}
	return b.programs, b.manifest.Components, nil
}

type contents struct {
	manifest struct {
		Components map[string]string `json:"components"`
	}
	programs []program
}

// read reads an archive, and recursively the archives in it: images and their layers.
func (c *contents) read(r io.Reader) error {
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if err := c.add(h.Name, content); err != nil {
			return err
		}
	}
}

func (c *contents) add(name string, content []byte) error {
	const tarMagic = 257 // offset of a tar's magic
	switch {
	case bytes.HasPrefix(content, []byte("\x7fELF")):
		p, err := readProgram(path.Base(name), content)
		c.programs = append(c.programs, p)
		return err
	case len(content) > tarMagic && bytes.HasPrefix(content[tarMagic:], []byte("ustar")):
		return c.read(bytes.NewReader(content))
	case name == "manifest.json":
		return json.Unmarshal(content, &c.manifest)
	}
	return nil
}
