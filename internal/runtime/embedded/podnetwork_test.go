package embedded

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What a network plugin wrote comes before the ranges, as the only file that containerd finds; the
// first by its name counts.
func TestNetworkOfPlugin(t *testing.T) {
	plugins := filepath.Join(t.TempDir(), "net.d")
	p := newPaths(t.TempDir(), t.TempDir())
	changes := 0
	r, err := New(Config{Root: p.root, RunDir: p.run, Assigned: true, NetworkPlugins: plugins, NetworkChanged: func() { changes++ }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r.Network.claims, r.Network.programs = t.TempDir(), t.TempDir()
	apply := func(want string) {
		t.Helper()
		if err := r.Network.apply(); err != nil {
			t.Fatal(err)
		}
		var got []string
		entries, err := os.ReadDir(p.network.configs)
		if err != nil && want != "" {
			t.Fatal(err)
		}
		for _, e := range entries {
			b, err := os.ReadFile(filepath.Join(p.network.configs, e.Name()))
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
	if err := r.Network.Health(); err == nil || !strings.Contains(err.Error(), "the Node has no podCIDR, and "+plugins+" no file of a network plugin") {
		t.Errorf("without anything: %v", err)
	}
	write("calico-kubeconfig", "no network")
	apply("")
	write("10-calico.conflist", `"a"`)
	apply("10-calico.conflist: \"a\"")
	if err := r.Network.Health(); err != nil {
		t.Errorf("with a plugin: %v", err)
	}
	write("10-calico.conflist", `"b"`)
	apply("10-calico.conflist: \"b\"")
	write("00-multus.conf", `"c"`)
	apply("00-multus.conf: \"c\"")
	// One that is half written changes nothing.
	write("00-multus.conf", `"c`)
	if err := r.Network.apply(); err == nil || !strings.Contains(err.Error(), "00-multus.conf is not JSON") {
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

// podmans is what podman has for its own pods.
const podmans = `{"cniVersion": "0.4.0", "name": "podman", "plugins": [
	{"type": "bridge", "bridge": "cni-podman0", "ipam": {"type": "host-local"}}, {"type": "portmap"}, {"type": "firewall"}, {"type": "tuning"}]}`

// A configuration that names a plugin without a program is not containerd's: the node has no
// network, and says why, until the program is there.
func TestPluginWithoutProgram(t *testing.T) {
	plugins, programs := t.TempDir(), t.TempDir()
	p := newPaths(t.TempDir(), t.TempDir())
	changed := make(chan struct{}, 8)
	r, err := New(Config{Root: p.root, RunDir: p.run, Assigned: true, NetworkPlugins: plugins, NetworkChanged: func() { changed <- struct{}{} }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r.Network.claims, r.Network.programs = t.TempDir(), programs
	own := filepath.Join(p.current, "cni")
	install := func(folder string, names ...string) {
		t.Helper()
		for _, name := range names {
			if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, name), nil, 0o755)); err != nil {
				t.Fatal(err)
			}
		}
	}
	file := filepath.Join(plugins, "87-podman.conflist")
	if err := errors.Join(os.WriteFile(file, []byte(podmans), 0o600), os.Mkdir(filepath.Join(programs, "firewall"), 0o755)); err != nil {
		t.Fatal(err)
	}
	install(own, "bridge", "portmap")
	watching := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { watching <- r.Network.watchPlugins(ctx, r.reapplyNetwork) }()
	<-changed
	want := "network plugins of " + file + ": no program host-local, firewall, tuning in " + own + " or " + programs + " (install it, or remove the file)"
	if err := r.Network.Health(); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if found, err := os.ReadDir(p.network.configs); len(found) > 0 {
		t.Errorf("containerd finds %v, %v", found, err)
	}
	if err := os.Remove(filepath.Join(programs, "firewall")); err != nil {
		t.Fatal(err)
	}
	install(programs, "tuning", "firewall", "host-local")
	<-changed
	if err := r.Network.Health(); err != nil {
		t.Errorf("with all programs: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(p.network.configs, "87-podman.conflist")); err != nil || string(got) != podmans {
		t.Errorf("containerd finds %s, %v", got, err)
	}
	if err := os.Remove(filepath.Join(programs, "tuning")); err != nil {
		t.Fatal(err)
	}
	<-changed
	if err := r.Network.Health(); err == nil || !strings.Contains(err.Error(), "no program tuning in") {
		t.Errorf("without one of them: %v", err)
	}
	stop()
	if err := <-watching; err != nil {
		t.Error(err)
	}
}

func TestPluginTypes(t *testing.T) {
	for content, want := range map[string][]string{
		podmans: {"bridge", "host-local", "portmap", "firewall", "tuning"},
		`{"type": "ptp", "ipam": {"type": "dhcp"}}`: {"ptp", "dhcp"},
		`{"type": "calico", "ipam": {}}`:            {"calico"},
		`{"plugins": []}`:                           nil,
		`{"plugins": [{"type": 1}]}`:                nil,
		`"a"`:                                       nil,
	} {
		if got := pluginTypes([]byte(content)); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", content, got, want)
		}
	}
}

// A range that cannot be had changes nothing, also not when the network is looked at again.
func TestRangeThatCannotBeHad(t *testing.T) {
	p := newPaths(t.TempDir(), t.TempDir())
	r, err := New(Config{Root: p.root, RunDir: p.run, Assigned: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r.Network.claims = t.TempDir()
	const free, taken = "198.18.7.0/24", "127.0.0.0/8" // for benchmarks of networks (RFC 2544); of the loopback
	if err := r.Network.SetCIDRs(t.Context(), []string{free}); err != nil {
		t.Fatal(err)
	}
	if err := r.Network.SetCIDRs(t.Context(), []string{taken}); !errors.Is(err, errSubnetTaken) {
		t.Errorf("a range of an interface: %v", err)
	}
	if err := r.reapplyNetwork(t.Context()); err != nil {
		t.Errorf("looked at again: %v", err)
	}
	if n, err := readNetwork(p.network.file); err != nil || n.ranges() != free {
		t.Errorf("the network is %+v, %v", n, err)
	}
}

// Ranges that a cluster gives may be a part of an interface's network, and no more than that.
func TestNeighboursOfAssignedRanges(t *testing.T) {
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	for _, c := range []struct {
		rangeRequest rangeRequest
		want         bool
	}{
		{rangeRequest{subnets: []netip.Prefix{netip.MustParsePrefix("127.7.0.0/16")}, assigned: true}, false},
		{rangeRequest{subnets: []netip.Prefix{netip.MustParsePrefix("127.7.0.0/16")}}, true},
		{rangeRequest{subnets: []netip.Prefix{loopback}, assigned: true}, true},
		{rangeRequest{subnets: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}, assigned: true}, true},
	} {
		taken, err := neighbours(newPaths(t.TempDir(), ""), t.TempDir(), "berth-none", c.rangeRequest)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(taken, func(n neighbour) bool { return n.prefix == loopback }); got != c.want {
			t.Errorf("%+v: the loopback is a neighbour: %v", c.rangeRequest, got)
		}
	}
}
