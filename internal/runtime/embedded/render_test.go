package embedded

import (
	"flag"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host/preflight"
)

var update = flag.Bool("update", false, "write the golden files")

var testPaths = newPaths("/var/lib/berth", "/run/berth")

func TestGenerateConfig(t *testing.T) {
	for golden, f := range map[string]facts{
		"overlayfs.toml": {Snapshotter: "overlayfs", Systemd: true, SELinux: true, ShimSockets: "/run/berth/s", Plugins: pluginPrograms},
		"native.toml":    {Snapshotter: "native", RestrictOOM: true},
	} {
		t.Run(golden, func(t *testing.T) {
			got, err := generateConfig(testPaths, f, DefaultPullProgressDeadline, "berth.local/pause:1")
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, golden, got)
		})
	}
}

func TestGenerateConflist(t *testing.T) {
	prefix := netip.MustParsePrefix
	v4, v6 := prefix("10.88.0.0/16"), prefix("fd00:88::/64")
	for golden, n := range map[string]network{
		"nftables.conflist":   {Subnets: []netip.Prefix{v4}, Bridge: testPaths.network.bridge, Firewall: preflight.Nftables},
		"iptables.conflist":   {Subnets: []netip.Prefix{v4}, Bridge: testPaths.network.bridge, Firewall: preflight.Iptables},
		"none.conflist":       {Subnets: []netip.Prefix{v4}, Bridge: testPaths.network.bridge},
		"dual-stack.conflist": {Subnets: []netip.Prefix{v4, v6}, Bridge: testPaths.network.bridges[1], Firewall: preflight.Nftables},
		"ipv6.conflist":       {Subnets: []netip.Prefix{v6}, Bridge: testPaths.network.bridge, Firewall: preflight.Nftables},
	} {
		t.Run(golden, func(t *testing.T) {
			got, err := generateConflist(testPaths, n)
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, golden, got)
		})
	}
}

func compareGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	name = "testdata/" + name
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("differs from %s (-want +got):\n%s", name, diff)
	}
}

func TestGenerateEnv(t *testing.T) {
	host := map[string]string{"PATH": "/mine", "HTTPS_PROXY": "http://proxy", "NOTIFY_SOCKET": "/run/notify", "HOME": "/root"}
	got := generateEnv(testPaths, func(name string) (string, bool) { v, ok := host[name]; return v, ok })
	want := []string{"PATH=/var/lib/berth/bundle/current/bin:" + preflight.SystemPath, "HOME=/root", "HTTPS_PROXY=http://proxy"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestHashConfig(t *testing.T) {
	base := hashConfig([]byte("a"), []string{"PATH=/bin", "HOME=/root"})
	for name, c := range map[string]struct {
		config string
		env    []string
		same   bool
	}{
		"another home":   {"a", []string{"PATH=/bin", "HOME=/"}, true},
		"another proxy":  {"a", []string{"PATH=/bin", "HTTP_PROXY=http://p"}, false},
		"another config": {"b", []string{"PATH=/bin", "HOME=/root"}, false},
	} {
		if got := hashConfig([]byte(c.config), c.env) == base; got != c.same {
			t.Errorf("%s: same hash %v, want %v", name, got, c.same)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	good := Config{Root: "/var/lib/berth", RunDir: "/run/berth"}
	long := "/run/a-run-directory-with-a-name-that-no-socket-in-it-could-ever-have-as-its-path-because-of-its-length"
	for name, c := range map[string]struct {
		change func(*Config)
		want   string // "" is no error
	}{
		"good":             {func(*Config) {}, ""},
		"subnet":           {func(c *Config) { c.Subnets = []string{"192.168.7.0/24"} }, ""},
		"dual stack":       {func(c *Config) { c.Subnets = []string{"fd00:88::/64", "192.168.7.0/24"} }, ""},
		"relative root":    {func(c *Config) { c.Root = "berth" }, `Root "berth": must be a clean absolute path below /`},
		"colon":            {func(c *Config) { c.Root = "/a:b" }, `Root "/a:b": the character ':' cannot be used in it`},
		"long run folder":  {func(c *Config) { c.RunDir = long }, `RunDir "` + long + `": the socket ` + long + `/containerd.sock.ttrpc would be 125 bytes long, the kernel takes 107; use a shorter run directory`},
		"driver":           {func(c *Config) { c.CgroupDriver = "cgroup" }, `CgroupDriver "cgroup": must be cgroupfs, systemd or empty`},
		"host in a subnet": {func(c *Config) { c.Subnets = []string{"10.0.0.1/16"} }, `pod range "10.0.0.1/16": must be an IPv4 network between /8 and /28, such as 10.88.0.0/16, or an IPv6 one between /8 and /124, such as fd00:88::/64`},
		"too small":        {func(c *Config) { c.Subnets = []string{"fd00::/126"} }, `pod range "fd00::/126": must be an IPv4 network between /8 and /28, such as 10.88.0.0/16, or an IPv6 one between /8 and /124, such as fd00:88::/64`},
		"one family twice": {func(c *Config) { c.Subnets = []string{"10.0.0.0/16", "10.1.0.0/16"} }, `pod ranges 10.0.0.0/16,10.1.0.0/16: two are of one family; give one of IPv4, one of IPv6, or one of each`},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			c.change(&cfg)
			got := ""
			if err := cfg.check(); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBridgeName(t *testing.T) {
	a, b := newPaths("/var/lib/berth", "").network.bridge, newPaths("/srv/berth", "").network.bridge
	if a == b {
		t.Errorf("two root directories have one bridge, %s", a)
	}
	if len(a) > 15 {
		t.Errorf("%s has %d bytes, the kernel takes 15", a, len(a))
	}
}
