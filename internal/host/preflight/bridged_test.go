package preflight

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFilterBridged(t *testing.T) {
	refused := errors.New("not permitted")
	write := func(root string, values ...string) {
		for i, value := range values {
			path := filepath.Join(root, bridgedSettings[i])
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(value+"\n"), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, tc := range map[string]struct {
		before []string                // the settings
		load   func(root string) error // the module
		loads  int
		want   string // of the error
	}{
		"on":                 {before: []string{"1", "1"}},
		"off":                {before: []string{"0", "0"}},
		"off for one family": {before: []string{"1", "0"}},
		"no module yet":      {load: func(root string) error { write(root, "1", "1"); return nil }, loads: 1},
		"comes turned off":   {load: func(root string) error { write(root, "0", "0"); return nil }, loads: 1},
		"cannot be loaded":   {load: func(string) error { return refused }, loads: 1, want: "load the kernel module br_netfilter: not permitted"},
		"is not what it was": {load: func(string) error { return nil }, loads: 1, want: "bridge-nf-call-iptables: no such file"},
		"for one family":     {before: []string{"1"}, want: "bridge-nf-call-ip6tables: no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			root, loads := t.TempDir(), 0
			write(root, tc.before...)
			err := FilterBridged(root, func(module string) error {
				loads++
				if module != "br_netfilter" {
					t.Errorf("module %s", module)
				}
				return tc.load(root)
			})
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("error %v, want %q", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, setting := range bridgedSettings {
				if got, err := os.ReadFile(filepath.Join(root, setting)); err != nil || strings.TrimSpace(string(got)) != "1" {
					t.Errorf("%s is %q, %v", setting, got, err)
				}
			}
			if loads != tc.loads {
				t.Errorf("the module was loaded %d times", loads)
			}
		})
	}
}
