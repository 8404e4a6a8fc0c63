//go:build e2e

package e2e

import (
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// What a pod is called, and what it knows by name: its host name, its full name as the kernel's,
// its hosts file, which is whole again after a restart whatever the container wrote into it.
func TestWorldNames(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put(n.looker("plain", func(*v1.Pod, *v1.Container) {}))
	n.put(n.looker("full", func(p *v1.Pod, _ *v1.Container) {
		p.Spec.Hostname, p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = "given", "sub", ptr.To(true)
		p.Spec.HostAliases = []v1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"seven", "seven.example"}}}
	}))
	n.put(n.looker("override", func(p *v1.Pod, _ *v1.Container) { p.Spec.HostnameOverride = ptr.To("other.example") }))
	n.put(n.looker("onhost", func(p *v1.Pod, _ *v1.Container) {
		p.Spec.HostNetwork = true
		p.Spec.HostAliases = []v1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"seven"}}}
	}))
	n.put(n.looker("again", func(_ *v1.Pod, c *v1.Container) {
		c.Command = actor("main", `
if [ $run = 1 ]; then echo "192.0.2.66 intruder" > /etc/hosts; say wrote; exit 1; fi
`+look+"stay\n").Command
	}))
	n.put(n.looker("toolong", func(p *v1.Pod, _ *v1.Container) {
		p.Spec.Hostname, p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = strings.Repeat("h", 50), "sub", ptr.To(true)
	}))
	n.start()

	plain := n.worldOf("plain", "main")
	plain.want(t, "hostname", "plain")
	seen := n.await("plain to have an address", func(p pods) bool { return p.named("plain").Status.PodIP != "" })
	ip := seen.named("plain").Status.PodIP
	const header = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"
	if h := plain["hosts"]; !strings.HasPrefix(h, header) || !strings.HasSuffix(h, "\n"+ip+"\tplain") {
		t.Errorf("hosts of plain: %s", h)
	}

	full := n.worldOf("full", "main")
	full.want(t, "hostname", "given.sub.default.svc.cluster.local")
	if h := full["hosts"]; !strings.Contains(h, "\tgiven.sub.default.svc.cluster.local\tgiven\n\n# Entries added by HostAliases.\n192.0.2.7\tseven\tseven.example") {
		t.Errorf("hosts of full: %s", h)
	}
	n.worldOf("override", "main").want(t, "hostname", "other.example")

	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	onhost := n.worldOf("onhost", "main")
	onhost.want(t, "hostname", host)
	if h := onhost["hosts"]; !strings.HasPrefix(h, "# Kubernetes-managed hosts file (host network).\n") || !strings.HasSuffix(h, "192.0.2.7\tseven") {
		t.Errorf("hosts of onhost: %s", h)
	}

	n.awaitStory("again", "main wrote")
	if h := n.worldOf("again", "main")["hosts"]; !strings.HasPrefix(h, header) || strings.Contains(h, "intruder") {
		t.Errorf("hosts after a restart: %s", h)
	}
	until(t, "toolong to be refused", func() bool {
		return strings.Contains(n.berth("explain", "--all", "toolong"), "is too long (64 characters is the max, 80 characters requested)")
	})
}

// The resolver is what the pod's policy makes of the host's.
func TestWorldDNS(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.put(n.looker("none", func(p *v1.Pod, _ *v1.Container) {
		p.Spec.DNSPolicy = v1.DNSNone
		p.Spec.DNSConfig = &v1.PodDNSConfig{
			Nameservers: []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}, Searches: []string{"ns1.example", "my.example"},
			Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("2")}, {Name: "edns0"}},
		}
	}))
	n.put(n.looker("host", func(p *v1.Pod, _ *v1.Container) { p.Spec.DNSPolicy = v1.DNSDefault }))
	n.put(n.looker("more", func(p *v1.Pod, _ *v1.Container) {
		p.Spec.DNSConfig = &v1.PodDNSConfig{Searches: []string{"more.example"}, Options: []v1.PodDNSConfigOption{{Name: "attempts", Value: ptr.To("7")}}}
	}))
	n.start()
	n.worldOf("none", "main").want(t, "resolv.conf", "search ns1.example my.example\nnameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\noptions ndots:2 edns0")
	servers := func(text string) (out []string) {
		for line := range strings.Lines(text) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" {
				out = append(out, f[1])
			}
		}
		return out
	}
	b, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		t.Fatal(err)
	}
	hosts := strings.Join(servers(string(b)), " ")
	if strings.HasPrefix(hosts, "127.0.0.53") {
		t.Fatal("the host asks systemd-resolved; this test wants a host that does not")
	}
	if got := strings.Join(servers(n.worldOf("host", "main")["resolv.conf"]), " "); got != hosts {
		t.Errorf("servers: got %q, want the host's %q", got, hosts)
	}
	more := n.worldOf("more", "main")["resolv.conf"]
	if got := strings.Join(servers(more), " "); got != hosts || !strings.Contains(more, "more.example") || !strings.Contains(more, "attempts:7") {
		t.Errorf("the host's with more: %s", more)
	}
}
