package main

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// image is an image of one static program.
type image struct {
	name       string // reference
	program    string // file to add
	entrypoint string // its path in the image
	command    string // default argument, "" for none
	user       string // "" is root
	port       string // exposed port, "" for none
	pinned     bool
}

// addImage builds the image and adds it as an OCI archive, images/NAME.tar.
func (b *bundle) addImage(spec image) error {
	built, err := spec.build(b.arch)
	if err != nil {
		return err
	}
	digest, err := built.Digest()
	if err != nil {
		return err
	}
	archive, err := archiveOf(spec.name, built)
	if err != nil {
		return err
	}
	base, _, _ := strings.Cut(path.Base(spec.name), ":")
	name := "images/" + base + ".tar"
	b.add(name, 0o644, archive)
	b.manifest.Images = append(b.manifest.Images, imageEntry{Name: spec.name, File: name, Digest: digest.String(), Pinned: spec.pinned})
	return nil
}

func (spec image) build(arch string) (v1.Image, error) {
	program, err := os.ReadFile(spec.program)
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	t := tar.NewWriter(&layer)
	if err := addEntry(t, strings.TrimPrefix(spec.entrypoint, "/"), 0o755, program); err != nil {
		return nil, err
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	config := v1.Config{
		Entrypoint: []string{spec.entrypoint},
		User:       spec.user,
		Env:        []string{"PATH=/"},
	}
	if spec.command != "" {
		config.Cmd = []string{spec.command}
	}
	if spec.port != "" {
		config.ExposedPorts = map[string]struct{}{spec.port: {}}
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	configured, err := mutate.ConfigFile(base, &v1.ConfigFile{OS: "linux", Architecture: arch, Config: config})
	if err != nil {
		return nil, err
	}
	// The layer is not compressed, because the whole bundle is.
	return mutate.Append(configured, mutate.Addendum{Layer: static.NewLayer(layer.Bytes(), types.OCIUncompressedLayer)})
}

// archiveOf returns the image as a tar of an OCI layout, with the annotation from which containerd
// takes the name of an imported image.
func archiveOf(name string, img v1.Image) ([]byte, error) {
	dir, err := os.MkdirTemp("", "berth-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return nil, err
	}
	if err := l.AppendImage(img, layout.WithAnnotations(map[string]string{"io.containerd.image.name": name})); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	t := tar.NewWriter(&out)
	err = filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		return addEntry(t, rel, 0o644, content)
	})
	if err != nil {
		return nil, err
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
