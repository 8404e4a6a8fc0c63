package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/klauspost/compress/zstd"
	"github.com/spdx/tools-golang/json"
)

// archive is a tar of files: names and contents by turns.
func archive(t *testing.T, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		if err := w.WriteHeader(&tar.Header{Name: files[i], Mode: 0o755, Size: int64(len(files[i+1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// self is this test as a program of Go.
func self(t *testing.T) string {
	t.Helper()
	file, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func bundleOf(t *testing.T, content []byte) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// The programs of a bundle are found, those in layers of its images too.
func TestReadBundle(t *testing.T) {
	image := archive(t, "index.json", "{}", "blobs/sha256/0", string(archive(t, "hello", self(t))))
	pause := archive(t, "blobs/sha256/1", string(archive(t, "pause", "\x7fELF and no more")))
	b := bundleOf(t, archive(t, "manifest.json", `{"components":{"libseccomp":"2.5.4"}}`, "bin/runc", self(t),
		"images/hello.tar", string(image), "images/pause.tar", string(pause)))
	programs, versions, err := readBundle(b)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range programs {
		names = append(names, p.name)
	}
	if want := []string{"runc", "hello", "pause"}; !slices.Equal(names, want) {
		t.Errorf("programs are %v, want %v", names, want)
	}
	if versions["libseccomp"] != "2.5.4" {
		t.Errorf("versions are %v", versions)
	}
}

// A program of which nobody knows what was linked into it stops the release.
func TestUnknownProgram(t *testing.T) {
	_, _, err := readBundle(bundleOf(t, archive(t, "bin/other", "\x7fELF and no more")))
	if err == nil || !strings.Contains(err.Error(), "other: what was linked into it cannot be read") {
		t.Errorf("the error is %v", err)
	}
	if _, _, err := readBundle(bundleOf(t, archive(t, "manifest.json", "{}"))); err == nil || !strings.Contains(err.Error(), "has no programs") {
		t.Errorf("the error is %v", err)
	}
}

// The pod shim is of C.
func TestComponentsOfC(t *testing.T) {
	podshim, err := readProgram("podshim", []byte("\x7fELF and no more"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := componentsOf([]program{podshim}, map[string]string{"glibc": "2.36", "musl": "1.2.3"})
	if err != nil || len(all) != 1 || all[0].url() != "pkg:generic/musl@1.2.3" || all[0].licence != "MIT" || !slices.Equal(all[0].users, []string{"podshim"}) {
		t.Errorf("got %+v, error %v", all, err)
	}
}

// Modules are named once with all programs that have them, and C libraries by the bundle.
func TestComponents(t *testing.T) {
	one, err := readProgram("one", []byte(self(t)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range one.info.Settings {
		if one.info.Settings[i].Key == "CGO_ENABLED" {
			one.info.Settings[i].Value = "1"
		}
	}
	one.info.Main = debug.Module{Path: "example.com/one", Version: "v1.2.3"}
	two := one
	two.name = "two"
	if _, err := componentsOf([]program{one}, map[string]string{"glibc": "2.36", "libgcc": "12"}); err == nil || !strings.Contains(err.Error(), "one is linked with libseccomp") {
		t.Errorf("without the version of a library the error is %v", err)
	}
	all, err := componentsOf([]program{one, two}, map[string]string{"glibc": "2.36", "libseccomp": "2.5.4", "libgcc": "12.2.0"})
	if err != nil {
		t.Fatal(err)
	}
	urls := map[string][]string{}
	for _, c := range all {
		urls[c.url()] = c.users
	}
	for _, want := range []string{
		"pkg:golang/github.com/klauspost/compress@" + versionOf(one, "github.com/klauspost/compress"),
		"pkg:golang/stdlib@" + strings.TrimPrefix(one.info.GoVersion, "go"), "pkg:generic/libseccomp@2.5.4",
		"pkg:golang/example.com/one@v1.2.3",
	} {
		if !slices.Equal(urls[want], []string{"one", "two"}) {
			t.Errorf("%s is in %v, want one and two; there are %v", want, urls[want], urls)
		}
	}
}

// A module that stands for another one is named as itself; one in a folder is a changed copy.
func TestReplacedModules(t *testing.T) {
	all := modulesOf(&debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Path: "berth/bundle/apiserver"}, Deps: []*debug.Module{
		{Path: "example.com/folder", Version: "v1.0.0", Replace: &debug.Module{Path: "./folder", Version: "(devel)"}},
		{Path: "example.com/none", Version: "v0.0.0", Replace: &debug.Module{Path: "example.com/none", Version: "v0.36.3"}},
		{Path: "example.com/old", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/new", Version: "v2.0.0"}},
		{Path: "berth", Version: "v0.0.0", Replace: &debug.Module{Path: "../..", Version: "(devel)"}},
	}})
	var got []string
	for _, c := range all {
		got = append(got, fmt.Sprint(c.name, " ", c.version, " ", c.changed))
	}
	want := []string{"stdlib 1.26.0 false", "example.com/folder v1.0.0 true", "example.com/none v0.36.3 false", "example.com/new v2.0.0 false"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func versionOf(p program, path string) string {
	for _, m := range p.info.Deps {
		if m.Path == path {
			return m.Version
		}
	}
	return "none"
}

// aRelease has a component that is changed, one of which two parts have the same licence, and a
// library of C.
func aRelease() *release {
	shared := text{"LICENSE", "free for all\r\n"}
	return &release{
		version: "1.2.0", arch: "arm64", made: time.Unix(1e9, 0).UTC(),
		programs: []program{{name: "berth", sha256: "aa"}, {name: "runc", sha256: "bb", info: &debug.BuildInfo{Main: debug.Module{Path: "example.com/one", Version: "v1.0.0"}}}},
		components: []component{
			{name: "example.com/one", version: "v1.0.0", kind: goModule, changed: true, users: []string{"berth", "runc"}, licence: "MIT", texts: []text{shared}},
			{name: "example.com/two", version: "v2.0.0+incompatible", kind: goModule, users: []string{"runc"}, licence: noAssertion, texts: []text{{"COPYING", "free for all"}, {"NOTICE", "by two"}}},
			{name: "libseccomp", version: "2.5.4", kind: cLibrary, users: []string{"runc"}, licence: "LGPL-2.1-only", texts: []text{shared}},
		},
	}
}

// The bill of materials is one that the reader of the format takes, and says what is in what.
func TestBillOfMaterials(t *testing.T) {
	r := aRelease()
	content, err := r.sbom()
	if err != nil {
		t.Fatal(err)
	}
	d, err := json.Read(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, p := range d.Packages {
		if ids[string(p.PackageSPDXIdentifier)] {
			t.Errorf("two have the identifier %s", p.PackageSPDXIdentifier)
		}
		ids[string(p.PackageSPDXIdentifier)] = true
	}
	for _, p := range d.Packages {
		if said := p.PackageVersion + " " + p.PackageLicenseDeclared; p.PackageName == "berth" && said != "1.2.0 Apache-2.0" || p.PackageName == "runc" && said != "v1.0.0 MIT" {
			t.Errorf("%s is said to be %s", p.PackageName, said)
		}
	}
	if len(ids) != 5 {
		t.Errorf("there are %d packages, want 5", len(ids))
	}
	var said []string
	for _, rel := range d.Relationships {
		for _, id := range []string{string(rel.RefA.ElementRefID), string(rel.RefB.ElementRefID)} {
			if !ids[id] && id != "DOCUMENT" {
				t.Errorf("%s is related to something, and not there", id)
			}
		}
		said = append(said, string(rel.RefA.ElementRefID)+" "+rel.Relationship+" "+string(rel.RefB.ElementRefID))
	}
	for _, want := range []string{
		"DOCUMENT DESCRIBES Program-berth", "Program-berth CONTAINS Program-runc",
		"Program-berth STATIC_LINK Component-example.com-one-v1.0.0", "Program-runc STATIC_LINK Component-libseccomp-2.5.4",
	} {
		if !slices.Contains(said, want) {
			t.Errorf("it lacks %q:\n%s", want, strings.Join(said, "\n"))
		}
	}
	for _, want := range []string{`"pkg:golang/example.com/two@v2.0.0%2Bincompatible"`, `"created": "2001-09-09T01:46:40Z"`, `"comment": "Built from a changed copy`} {
		if !bytes.Contains(content, []byte(want)) {
			t.Errorf("it lacks %s:\n%s", want, content)
		}
	}
}

// The file of licences names every component, and has each text once.
func TestLicencesFile(t *testing.T) {
	said := string(aRelease().licences())
	for want, times := range map[string]int{
		"free for all": 1, "by two": 1, "example.com/one (changed)  v1.0.0": 1, "berth, runc": 1, "see below": 1,
		"\nexample.com/one v1.0.0: LICENSE\nexample.com/two v2.0.0+incompatible: COPYING\nlibseccomp 2.5.4: LICENSE\n": 1,
	} {
		if got := strings.Count(said, want); got != times {
			t.Errorf("%q is there %d times, want %d:\n%s", want, got, times, said)
		}
	}
}

// Licences are found in a module's folders, and known by their text; a module without one stops the
// release, and so does one that is not there.
func TestLicencesOfModules(t *testing.T) {
	apache, err := os.ReadFile("../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	s := sources{modules: t.TempDir(), known: classifier.NewClassifier(.8)}
	s.known.AddContent("License", "Apache-2.0", "license.txt", apache)
	for file, content := range map[string]string{
		"example.com/!upper/one@v1.0.0/LICENSE": string(apache), "example.com/!upper/one@v1.0.0/NOTICE.md": "by one", "example.com/!upper/one@v1.0.0/part/COPYING": "of the part",
		"example.com/!upper/one@v1.0.0/testdata/LICENSE": "not linked", "example.com/!upper/one@v1.0.0/license.go": "package one",
		"example.com/none@v1.0.0/README": "nothing",
	} {
		file = filepath.Join(s.modules, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	one := []component{{name: "example.com/Upper/one", version: "v1.0.0", kind: goModule}}
	if err := s.fill(one); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, text := range one[0].texts {
		names = append(names, text.name)
	}
	if want := []string{"LICENSE", "NOTICE.md", "part/COPYING"}; !slices.Equal(names, want) || one[0].licence != "Apache-2.0" {
		t.Errorf("licence %s by %v, want Apache-2.0 by %v", one[0].licence, names, want)
	}
	for name, want := range map[string]string{"example.com/none": "none v1.0.0 has no file with a licence", "example.com/gone": "fetch it with go mod download example.com/gone@v1.0.0"} {
		if err := s.fill([]component{{name: name, version: "v1.0.0", kind: goModule}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of %s the error is %v, want one with %q", name, err, want)
		}
	}
}
