package crispec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/record/events/messagestest"
)

func TestComputeNames(t *testing.T) {
	override := "other.name"
	for _, tc := range []struct {
		name, clusterDomain string
		pod                 func(*v1.Pod)
		want                Names
		full                string
	}{
		{"the pod's name", "cluster.local", func(*v1.Pod) {}, Names{Host: "web"}, "web"},
		{"hostname", "cluster.local", func(p *v1.Pod) { p.Spec.Hostname = "given" }, Names{Host: "given"}, "given"},
		{"override has no domain", "cluster.local", func(p *v1.Pod) {
			p.Spec.Hostname, p.Spec.Subdomain, p.Spec.HostnameOverride = "given", "sub", &override
		}, Names{Host: "other.name"}, "other.name"},
		{"cut to a label, and no dash at its end", "", func(p *v1.Pod) { p.Name = strings.Repeat("a", 62) + "-bcd" }, Names{Host: strings.Repeat("a", 62)}, strings.Repeat("a", 62)},
		{"subdomain", "cluster.local", func(p *v1.Pod) { p.Spec.Subdomain = "sub" }, Names{"web", "sub.default.svc.cluster.local"}, "web.sub.default.svc.cluster.local"},
		{"subdomain without a cluster's domain", "", func(p *v1.Pod) { p.Spec.Subdomain = "sub" }, Names{"web", "sub.default.svc."}, "web.sub.default.svc."},
		{"a domain that ends in a dot", "k8s.example.", func(p *v1.Pod) { p.Spec.Subdomain = "sub" }, Names{"web", "sub.default.svc.k8s.example"}, "web.sub.default.svc.k8s.example"},
	} {
		got := ComputeNames(newPod(tc.pod), tc.clusterDomain)
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s: %s", tc.name, d)
		}
		if got.Full() != tc.full {
			t.Errorf("%s: full name: got %q, want %q", tc.name, got.Full(), tc.full)
		}
	}
}

func TestHostsFile(t *testing.T) {
	aliases := []v1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a", "b"}}, {IP: "::9", Hostnames: []string{"c"}}}
	const header = `# Kubernetes-managed hosts file.
127.0.0.1	localhost
::1	localhost ip6-localhost ip6-loopback
fe00::0	ip6-localnet
fe00::0	ip6-mcastprefix
fe00::1	ip6-allnodes
fe00::2	ip6-allrouters
`
	for _, tc := range []struct{ name, got, want string }{
		{"host name alone", string(HostsFile(Names{Host: "web"}, []string{"10.0.0.1"}, nil)), header + "10.0.0.1\tweb\n"},
		{
			"domain, two families, aliases", string(HostsFile(Names{"web", "sub.ns.svc.k"}, []string{"10.0.0.1", "fd00::1"}, aliases)),
			header + "10.0.0.1\tweb.sub.ns.svc.k\tweb\nfd00::1\tweb.sub.ns.svc.k\tweb\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n::9\tc\n",
		},
		{
			"domain without a cluster's", string(HostsFile(Names{"web", "sub.ns.svc."}, []string{"10.0.0.1"}, nil)),
			header + "10.0.0.1\tweb.sub.ns.svc.\tweb\n",
		},
		{"the node's", string(NodeHostsFile([]byte("127.0.0.1 localhost\n"), nil)), "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n"},
		{
			"the node's, whose last line has no end", string(NodeHostsFile([]byte("127.0.0.1 localhost"), aliases[:1])),
			"# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n",
		},
	} {
		messagestest.Saw("file", "-", tc.got)
		if d := cmp.Diff(tc.want, tc.got); d != "" {
			t.Errorf("%s: %s", tc.name, d)
		}
	}
}
