package embedded

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a network plugin wrote comes before the ranges, as the only file that containerd finds; the
// first by its name counts.
func TestNetworkOfPlugin(t *testing.T) {
	plugins := filepath.Join(t.TempDir(), "net.d")
	p := paths{root: t.TempDir(), run: t.TempDir()}
	changes := 0
	r, err := New(Config{Root: p.root, RunDir: p.run, Assigned: true, NetworkPlugins: plugins, NetworkChanged: func() { changes++ }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r.claims = t.TempDir()
	apply := func(want string) {
		t.Helper()
		if err := r.applyNetwork(); err != nil {
			t.Fatal(err)
		}
		var got []string
		entries, err := os.ReadDir(p.cniConf())
		if err != nil && want != "" {
			t.Fatal(err)
		}
		for _, e := range entries {
			b, err := os.ReadFile(filepath.Join(p.cniConf(), e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, e.Name()+": "+string(b))
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("containerd finds %q, want %q", got, want)
		}
	}
	write := func(name, content string) {
		t.Helper()
		if err := os.MkdirAll(plugins, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(plugins, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	apply("")
	if err := r.NetworkHealth(); err == nil || !strings.Contains(err.Error(), "the Node has no podCIDR, and "+plugins+" no file of a network plugin") {
		t.Errorf("without anything: %v", err)
	}
	write("calico-kubeconfig", "no network")
	apply("")
	write("10-calico.conflist", `"a"`)
	apply("10-calico.conflist: \"a\"")
	if err := r.NetworkHealth(); err != nil {
		t.Errorf("with a plugin: %v", err)
	}
	write("10-calico.conflist", `"b"`)
	apply("10-calico.conflist: \"b\"")
	write("00-multus.conf", `"c"`)
	apply("00-multus.conf: \"c\"")
	// One that is half written changes nothing.
	write("00-multus.conf", `"c`)
	if err := r.applyNetwork(); err == nil || !strings.Contains(err.Error(), "00-multus.conf is not JSON") {
		t.Errorf("half a file: %v", err)
	}
	write("00-multus.conf", `"c"`)
	apply("00-multus.conf: \"c\"")
	if err := os.RemoveAll(plugins); err != nil {
		t.Fatal(err)
	}
	apply("")
	if changes != 3 { // the folder of one plugin, of another, none
		t.Errorf("%d changes of the network were told", changes)
	}
}
