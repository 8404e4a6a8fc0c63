package preflight

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// machineWith is a machine with these files; its kernel has all modules but those that are missing.
func machineWith(t *testing.T, files map[string]string, missing ...string) (f Fixer, loaded *[]string) {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	loaded = &[]string{}
	return Fixer{
		Root:        root,
		HasFirewall: func() bool { return files["firewall"] == "works" },
		LoadModule: func(_ context.Context, module string) error {
			for _, m := range missing {
				if m == module {
					return errors.New("modprobe: FATAL: Module " + m + " not found")
				}
			}
			*loaded = append(*loaded, module)
			return nil
		},
	}, loaded
}

func contentOf(t *testing.T, f Fixer, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(f.Root, name))
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestFixer(t *testing.T) {
	bare := map[string]string{"proc/filesystems": "nodev\ttmpfs\n\text4\n", "proc/sys/net/ipv4/ip_forward": "0\n"}
	t.Run("a bare machine", func(t *testing.T) {
		f, loaded := machineWith(t, bare)
		plan := f.Plan()
		if len(*loaded) != 0 || contentOf(t, f, modulesFile)+contentOf(t, f, sysctlFile) != "" {
			t.Error("a plan changes something")
		}
		want := []Check{
			{"overlayfs", Fixed, "load the kernel module overlay, also at each boot (/etc/modules-load.d/berth.conf)", ""},
			{"nftables or iptables", Fixed, "load the kernel module nf_tables, also at each boot (/etc/modules-load.d/berth.conf)", ""},
			{"conntrack", Fixed, "load the kernel module nf_conntrack, also at each boot (/etc/modules-load.d/berth.conf)", ""},
			{"IPv4 forwarding", Fixed, "set net.ipv4.ip_forward=1, also at each boot (/etc/sysctl.d/60-berth.conf)", ""},
		}
		if diff := cmp.Diff(want, f.Do(t.Context(), plan)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"overlay", "nf_tables", "nf_conntrack"}, *loaded); diff != "" {
			t.Errorf("modules (-want +got):\n%s", diff)
		}
		const head = "# Written by \"berth check --fix\".\n"
		for name, want := range map[string]string{
			modulesFile: head + "overlay\nnf_tables\nnf_conntrack\n", sysctlFile: head + "net.ipv4.ip_forward = 1\n",
			"proc/sys/net/ipv4/ip_forward": "1\n",
		} {
			if diff := cmp.Diff(want, contentOf(t, f, name)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		f.Do(t.Context(), plan) // a second time changes nothing
		if got := contentOf(t, f, sysctlFile); got != head+"net.ipv4.ip_forward = 1\n" {
			t.Errorf("a line is there twice: %q", got)
		}
	})
	t.Run("nothing is lacking", func(t *testing.T) {
		f, _ := machineWith(t, map[string]string{
			"proc/filesystems": "nodev\toverlay\n", "proc/sys/net/ipv4/ip_forward": "1\n", "proc/sys/net/netfilter/nf_conntrack_max": "262144\n", "firewall": "works",
		})
		if plan := f.Plan(); len(plan) != 0 {
			t.Errorf("got %+v", plan)
		}
	})
	t.Run("a module that is not there, and lines of others", func(t *testing.T) {
		f, _ := machineWith(t, map[string]string{
			"proc/filesystems": "", "proc/sys/net/ipv4/ip_forward": "0\n", "firewall": "works", sysctlFile: "vm.swappiness = 1",
		}, "overlay")
		got := f.Do(t.Context(), f.Plan())
		if got[0].Result != NotFixed || got[0].Consequence != "modprobe: FATAL: Module overlay not found" {
			t.Errorf("got %+v", got[0])
		}
		if got := contentOf(t, f, modulesFile); got != "# Written by \"berth check --fix\".\nnf_conntrack\n" {
			t.Errorf("modules: %q", got)
		}
		if got := contentOf(t, f, sysctlFile); got != "vm.swappiness = 1\nnet.ipv4.ip_forward = 1\n" {
			t.Errorf("settings: %q", got)
		}
	})
}
