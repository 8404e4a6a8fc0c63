package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/host/preflight"
)

// What --fix did, and what it could not do, is told first; with --dry-run nothing is done.
func TestCheckFix(t *testing.T) {
	for _, tc := range []struct {
		name    string
		flags   checkFlags
		want    []string // lines, their columns one blank apart
		loaded  bool
		because error
	}{
		{"dry run", checkFlags{fix: true, dryRun: true}, []string{"FIX RESULT FOUND", "overlayfs to do load the kernel module overlay, also at each boot (/etc/modules-load.d/berth.conf)"}, false, nil},
		{"done", checkFlags{fix: true}, []string{"FIX RESULT FOUND", "overlayfs done load the kernel module overlay, also at each boot (/etc/modules-load.d/berth.conf)"}, true, nil},
		{"failed", checkFlags{fix: true}, []string{"overlayfs failed load the kernel module overlay, also at each boot (/etc/modules-load.d/berth.conf)", "→ no such module"}, true, errors.New("no such module")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !tc.flags.dryRun && os.Geteuid() != 0 {
				if err := tc.flags.check(t.Context(), newClient(t.TempDir()), preflight.Fixer{}, nil); err == nil || !strings.Contains(err.Error(), "must be root") {
					t.Errorf("as another user than root: %v", err)
				}
				return
			}
			loaded := false
			fixer := preflight.Fixer{
				Root:        t.TempDir(),
				HasFirewall: func() bool { return true },
				LoadModule: func(_ context.Context, module string) error {
					loaded = loaded || module == "overlay"
					return tc.because
				},
			}
			var out strings.Builder
			err := tc.flags.check(t.Context(), newClient(t.TempDir()), fixer, &out)
			if tc.because != nil && !errors.Is(err, errReported) {
				t.Errorf("exit: %v, want a failure", err)
			}
			if loaded != tc.loaded {
				t.Errorf("the module is loaded: %v, want %v", loaded, tc.loaded)
			}
			lines := map[string]bool{}
			for line := range strings.Lines(out.String()) {
				lines[strings.Join(strings.Fields(line), " ")] = true
			}
			for _, w := range tc.want {
				if !lines[w] {
					t.Errorf("no line %q in\n%s", w, out.String())
				}
			}
			_, err = os.Stat(filepath.Join(fixer.Root, "etc/modules-load.d/berth.conf"))
			if kept := err == nil; kept != (tc.loaded && tc.because == nil) {
				t.Errorf("kept for the next boot: %v", kept)
			}
		})
	}
}
