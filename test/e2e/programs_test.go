//go:build e2e

package e2e

import (
	"debug/elf"
	"path/filepath"
	"slices"
	"testing"
)

// All programs run on a machine without a C library. runc, which is made with one, is at another
// address each time that it runs.
func TestPrograms(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	programs := []string{n.binary}
	for _, pattern := range []string{"bin/*", "cni/*"} {
		found, err := filepath.Glob(n.place.Root + "/bundle/current/" + pattern)
		if err != nil || len(found) < 3 {
			t.Fatalf("%s: %q, %v", pattern, found, err)
		}
		programs = append(programs, found...)
	}
	for _, path := range programs {
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		libraries, err := f.ImportedLibraries()
		if err != nil || len(libraries) > 0 {
			t.Errorf("%s needs %q, %v", path, libraries, err)
		}
		if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
			t.Errorf("%s needs a program to load it", path)
		}
		if filepath.Base(path) == "runc" && f.Type != elf.ET_DYN {
			t.Errorf("%s is %s, want %s", path, f.Type, elf.ET_DYN)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
