package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
	"golang.org/x/mod/module"
)

// text is the original text of a licence or a notice.
type text struct {
	name    string // its file, in the component
	content string
}

// noAssertion is SPDX's value for an unknown licence.
const noAssertion = "NOASSERTION"

// cLibraries are the C libraries that are linked into programs: the name, the licence, and the
// Debian files with its text (patterns that match one file each).
var cLibraries = []struct {
	name, licence string
	texts         []string
}{
	{"libseccomp", "LGPL-2.1-only", []string{"/usr/share/doc/libseccomp-dev/copyright", "/usr/share/common-licenses/LGPL-2.1"}},
	{"glibc", "LGPL-2.1-or-later", []string{"/usr/share/doc/libc6-dev/copyright", "/usr/share/common-licenses/LGPL-2.1"}},
	{"libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1", []string{"/usr/share/doc/libgcc-*-dev/copyright", "/usr/share/common-licenses/GPL-3"}},
	{musl, "MIT", []string{"/usr/share/doc/musl-dev/copyright"}},
}

// sources locates the sources of components.
type sources struct {
	modules string // Go's module cache
	goRoot  string
	known   *classifier.Classifier
}

func newSources() (sources, error) {
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		return sources{}, fmt.Errorf("go env: %w", err)
	}
	dirs := strings.Split(strings.TrimSpace(string(out)), "\n")
	known, err := assets.DefaultClassifier()
	return sources{modules: dirs[0], goRoot: dirs[1], known: known}, err
}

// fill determines the licences of components. A component without one is an error: it must not be
// distributed.
func (s sources) fill(components []component) error {
	for i := range components {
		c := &components[i]
		var err error
		if c.kind == cLibrary {
			c.texts, err = libraryTexts(c.name)
		} else {
			c.texts, err = s.moduleTexts(*c)
		}
		if err != nil {
			return err
		}
		if len(c.texts) == 0 {
			return fmt.Errorf("%s %s has no file with a licence", c.name, c.version)
		}
		if c.licence == "" {
			c.licence = s.expression(c.texts)
		}
	}
	return nil
}

func libraryTexts(name string) ([]text, error) {
	var found []text
	for _, library := range cLibraries {
		if library.name != name {
			continue
		}
		for _, pattern := range library.texts {
			files, err := filepath.Glob(pattern)
			if err != nil {
				return nil, err
			}
			if len(files) == 0 {
				return nil, fmt.Errorf("the licence of %s: there is no file %s: make packages on Debian, which has it in the package that was linked", name, pattern)
			}
			file := files[len(files)-1] // the newest version
			content, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			found = append(found, text{filepath.Base(file), string(content)})
		}
	}
	return found, nil
}

// licenceFile matches the names of licence and notice files.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]es?|copying|copyright|notices?|patents|unlicense)([-._].*)?$`)

// moduleTexts reads the licences of a module, including those in its directories, which cover
// copied code.
func (s sources) moduleTexts(c component) ([]text, error) {
	dir, err := s.folder(c)
	if err != nil {
		return nil, err
	}
	var found []text
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (file != dir && s.notLinked(name, c) || name == "testdata"):
			return fs.SkipDir
		case d.IsDir() || !licenceFile.MatchString(name) || filepath.Ext(name) == ".go":
			return nil
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, file)
		found = append(found, text{name, string(content)})
		return err
	})
	return found, err
}

// notLinked reports whether no code of a directory is linked into programs. In Go's own tree, only
// the root has the licences of linked code.
func (s sources) notLinked(name string, c component) bool {
	return c.name == standardLibrary || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
}

func (s sources) folder(c component) (string, error) {
	if c.name == standardLibrary {
		return s.goRoot, nil
	}
	path, err := module.EscapePath(c.name)
	if err != nil {
		return "", err
	}
	version, err := module.EscapeVersion(c.version)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(s.modules, path+"@"+version)
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("the licence of %s: %w: fetch it with go mod download %s@%s", c.name, err, c.name, c.version)
	}
	return dir, nil
}

// expression returns a component's licence as an SPDX expression, from the texts in its root.
func (s sources) expression(texts []text) string {
	var names []string
	for _, t := range texts {
		if strings.Contains(t.name, "/") {
			continue
		}
		for _, m := range s.known.Match([]byte(t.content)).Matches {
			if m.MatchType == "License" && !slices.Contains(names, m.Name) {
				names = append(names, m.Name)
			}
		}
	}
	if len(names) == 0 {
		return noAssertion
	}
	slices.Sort(names)
	return strings.Join(names, " AND ")
}
