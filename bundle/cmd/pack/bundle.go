package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// manifest is the first entry of a bundle; internal/runtime/embedded reads it.
type manifest struct {
	Version    int               `json:"version"`
	Components map[string]string `json:"components"`
	Files      []file            `json:"files"`
	Images     []imageEntry      `json:"images"`
}

type file struct {
	Name   string `json:"name"` // slash-separated, relative to the unpacked bundle
	Mode   int64  `json:"mode"` // permission bits
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

type imageEntry struct {
	Name   string `json:"name"`   // reference, as pods use it
	File   string `json:"file"`   // OCI archive in the bundle
	Digest string `json:"digest"` // of the image manifest
	Pinned bool   `json:"pinned"` // excluded from image garbage collection
}

type bundle struct {
	arch     string // of the programs
	manifest manifest
	contents [][]byte // in the order of manifest.Files
}

func (b *bundle) add(name string, mode int64, content []byte) {
	sum := sha256.Sum256(content)
	b.manifest.Files = append(b.manifest.Files, file{Name: name, Mode: mode, Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])})
	b.contents = append(b.contents, content)
}

func (b *bundle) addComponent(arg string) error {
	name, version, ok := strings.Cut(arg, "=")
	if !ok {
		return fmt.Errorf("%q is not name=version", arg)
	}
	if b.manifest.Components == nil {
		b.manifest.Components = map[string]string{}
	}
	b.manifest.Components[name] = version
	return nil
}

// write writes the bundle to a file and returns the SHA-256 of its manifest, in hexadecimal.
func (b *bundle) write(name string) (hash string, err error) {
	b.manifest.Version = 1
	head, err := json.MarshalIndent(b.manifest, "", "  ")
	if err != nil {
		return "", err
	}
	if err := compress(name, func(w io.Writer) error { return b.archive(w, head) }); err != nil {
		return "", err
	}
	sum := sha256.Sum256(head)
	return hex.EncodeToString(sum[:]), nil
}

// archive writes the bundle as a tar.
func (b *bundle) archive(w io.Writer, head []byte) error {
	t := tar.NewWriter(w)
	if err := addEntry(t, "manifest.json", 0o644, head); err != nil {
		return err
	}
	for i, f := range b.manifest.Files {
		if err := addEntry(t, f.Name, f.Mode, b.contents[i]); err != nil {
			return err
		}
	}
	return t.Close()
}

// compress runs the program zstd on f's output and writes it to a file: at level 19 a bundle is an
// eighth smaller than with the best Go implementation. Unpacking needs 8 MiB for the window. It
// uses one thread, because the bytes must not depend on the machine.
func compress(name string, f func(io.Writer) error) error {
	cmd := exec.Command("zstd", "-q", "-f", "-19", "--zstd=wlog=23", "--single-thread", "-o", name)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w: install it (Debian: apt-get install zstd)", err)
	}
	err = f(in)
	return errors.Join(err, in.Close(), cmd.Wait())
}

// addEntry writes one file without times and owners, so that equal content makes equal archives.
func addEntry(t *tar.Writer, name string, mode int64, content []byte) error {
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := t.Write(content)
	return err
}
