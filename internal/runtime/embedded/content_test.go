package embedded

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// storeOfImages is a content store with some images.
type storeOfImages struct {
	t   *testing.T
	dir contentFolder
}

// add writes content and returns its descriptor.
func (s storeOfImages) add(content []byte) archiveDescriptor {
	s.t.Helper()
	sum := sha256.Sum256(content)
	d := archiveDescriptor{Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(content))}
	if err := os.WriteFile(s.file(d), content, 0o644); err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s storeOfImages) file(d archiveDescriptor) string {
	return filepath.Join(string(s.dir), strings.TrimPrefix(d.Digest, "sha256:"))
}

func (s storeOfImages) document(v any) archiveDescriptor {
	s.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.add(b)
}

// image is an image with one layer, and what it is made of.
func (s storeOfImages) image(arch, layer string) (manifest, config, content archiveDescriptor) {
	config, content = s.document(archivePlatform{OS: "linux", Architecture: arch}), s.add([]byte(layer))
	manifest = s.document(archiveIndex{Config: &config, Layers: []archiveDescriptor{content}})
	manifest.Platform = &archivePlatform{OS: "linux", Architecture: arch}
	return manifest, config, content
}

func TestImageContent(t *testing.T) {
	cut := func(file string) error { return os.Truncate(file, 3) }
	flip := func(file string) error {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		b[len(b)/2] ^= 1
		return os.WriteFile(file, b, 0o644)
	}
	folder := func(file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o755)) }
	for name, c := range map[string]struct {
		damage  func(file string) error
		of      string
		problem string // "" is none
	}{
		"whole":               {func(string) error { return nil }, "config", ""},
		"no manifest":         {os.Remove, "manifest", "it is missing"},
		"manifest cut":        {cut, "manifest", "it has 3 bytes of"},
		"manifest flipped":    {flip, "manifest", "it does not have its digest"},
		"config flipped":      {flip, "config", "it does not have its digest"},
		"config is a folder":  {folder, "config", "it is not a regular file"},
		"layer cut":           {cut, "layer", "it has 3 bytes of 10"},
		"no layer":            {os.Remove, "layer", "it is missing"},
		"index flipped":       {flip, "index", "it does not have its digest"},
		"another's layer":     {os.Remove, "other layer", ""},
		"another's manifest":  {flip, "other", ""},
		"no other's manifest": {os.Remove, "other", ""},
	} {
		s := storeOfImages{t, contentFolder(t.TempDir())}
		manifest, config, layer := s.image(runtime.GOARCH, "some layer")
		other, _, otherLayer := s.image("s390x", "other layer")
		index := s.document(archiveIndex{Manifests: []archiveDescriptor{other, manifest}})
		part := map[string]archiveDescriptor{"manifest": manifest, "config": config, "layer": layer, "index": index, "other": other, "other layer": otherLayer}[c.of]
		if err := c.damage(s.file(part)); err != nil {
			t.Fatal(err)
		}
		all, problems := s.dir.image(index)
		if c.problem == "" {
			if len(problems) > 0 || len(all) != 4 {
				t.Errorf("%s: %d files, %v", name, len(all), problems)
			}
			continue
		}
		want := s.file(part) + ": " + c.problem
		if len(problems) != 1 || !errors.Is(problems[0].err, errContent) || !strings.Contains(problems[0].err.Error(), want) || problems[0].blob.document == (c.of == "layer") {
			t.Errorf("%s: got %v, want %s", name, problems, want)
		}
	}
}

// Two images for this platform, as with variants of it: one of them is enough.
func TestImageContentOfVariants(t *testing.T) {
	s := storeOfImages{t, contentFolder(t.TempDir())}
	first, _, layer := s.image(runtime.GOARCH, "first")
	second, _, _ := s.image(runtime.GOARCH, "second")
	if err := os.Remove(s.file(layer)); err != nil {
		t.Fatal(err)
	}
	if all, problems := s.dir.image(s.document(archiveIndex{Manifests: []archiveDescriptor{first, second}})); len(problems) > 0 || len(all) != 4 {
		t.Errorf("%d files, %v", len(all), problems)
	}
	if _, problems := s.dir.image(s.document(archiveIndex{Manifests: []archiveDescriptor{first}})); len(problems) != 1 {
		t.Errorf("without the other one: %v", problems)
	}
	if _, problems := s.dir.image(s.document(archiveIndex{})); len(problems) != 1 || !strings.Contains(problems[0].err.Error(), "no image for linux/") {
		t.Errorf("an empty index: %v", problems)
	}
	for _, digest := range []string{"", "sha256:", "sha256:../../x", "sha512:" + strings.Repeat("0", 128)} {
		if _, problems := s.dir.image(archiveDescriptor{Digest: digest}); len(problems) != 1 {
			t.Errorf("digest %q: %v", digest, problems)
		}
	}
}

func TestWriteArchive(t *testing.T) {
	s := storeOfImages{t, contentFolder(t.TempDir())}
	manifest, _, layer := s.image(runtime.GOARCH, "some layer")
	all, problems := s.dir.image(manifest)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	target := imageDescriptor{MediaType: "application/vnd.oci.image.manifest.v1+json", Digest: manifest.Digest, Size: manifest.Size}
	var archive bytes.Buffer
	if err := writeArchive(&archive, target, append(all, all...)); err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(archive.Bytes())); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if len(names) != 5 || names[0] != "oci-layout" || names[4] != "index.json" {
		t.Errorf("the archive has %q", names)
	}
	// What is imported by hand can be read by the same reader.
	in, err := openArchive(&archive)
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	if _, err := io.Copy(io.Discard, in); err != nil {
		t.Error(err)
	}

	if err := os.Remove(s.file(layer)); err != nil {
		t.Fatal(err)
	}
	if err := writeArchive(io.Discard, target, all); !errors.Is(err, errContent) {
		t.Errorf("without a layer: %v", err)
	}
}

func TestVerifyContent(t *testing.T) {
	s := storeOfImages{t, contentFolder(t.TempDir())}
	_, _, layer := s.image(runtime.GOARCH, "some layer")
	file := s.dir.fileOf(layer)
	if err := file.verify(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(file.file, []byte("SOME LAYER"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := file.verify(); !errors.Is(err, errContent) || !strings.Contains(err.Error(), file.file) {
		t.Errorf("changed: %v", err)
	}
	if err := os.Remove(file.file); err != nil {
		t.Fatal(err)
	}
	if err := file.verify(); !errors.Is(err, errContent) {
		t.Errorf("removed: %v", err)
	}
}

func TestSalvageImages(t *testing.T) {
	dir := t.TempDir()
	r, err := New(Config{Root: dir + "/root", RunDir: "/run/x"})
	if err != nil {
		t.Fatal(err)
	}
	p := r.paths
	put := func(name string) listedImage {
		return listedImage{Name: name, Target: imageDescriptor{Digest: "sha256:" + name}}
	}
	names := func() (out []string) {
		s, err := readSalvaged(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range s.Images {
			out = append(out, i.Name+"="+i.Target.Digest)
		}
		slices.Sort(out)
		return out
	}
	fill := func(blobs ...string) {
		t.Helper()
		for _, b := range blobs {
			if err := writeFile(string(p.store.blobs)+"/"+b, []byte(b)); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill("a", "b")
	if err := os.Mkdir(string(p.store.blobs)+"/folder", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeImageList(p.imageList, []listedImage{put("one"), put("two")}); err != nil {
		t.Fatal(err)
	}
	if err := r.images.salvage(errBroken); err != nil {
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, []string{"one=sha256:one", "two=sha256:two"}) {
		t.Errorf("salvaged %q", got)
	}
	// It is damaged again before it was restored; meanwhile one image has come, and one is another.
	fill("c")
	if err := writeImageList(p.imageList, []listedImage{put("three"), {Name: "two", Target: imageDescriptor{Digest: "sha256:new"}}}); err != nil {
		t.Fatal(err)
	}
	if err := r.images.salvage(errBroken); err != nil {
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, []string{"one=sha256:one", "three=sha256:three", "two=sha256:new"}) {
		t.Errorf("salvaged %q", got)
	}
	for _, b := range []string{"a", "b", "c"} {
		if got, err := os.ReadFile(p.store.salvage + "/" + b); string(got) != b {
			t.Errorf("content %s: %q, %v", b, got, err)
		}
	}
	if exists(p.store.salvage + "/folder") {
		t.Error("a folder is taken for content")
	}
	// A list that cannot be read is kept, and the images that are known otherwise are salvaged.
	if err := os.WriteFile(p.imageList, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.images.salvage(errBroken); err != nil || len(names()) != 3 {
		t.Errorf("with a damaged list: %v, %q", err, names())
	}
}
