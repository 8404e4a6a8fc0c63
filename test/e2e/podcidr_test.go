//go:build e2e

package e2e

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// dialLimit is how long a connection within the machine may take; a packet that is dropped is not
// answered at all.
const dialLimit = 10 * time.Second

// The ranges that a standalone node is configured with are those of its pods, of both families:
// host, pods and the machine beside reach each other and host ports, and a pod comes to others
// under the node's address. Pods that run when the ranges change keep their addresses.
func TestPodCIDRStandalone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	o := n.inOwnNetwork()
	const first = "podCIDR: 10.244.7.0/24,fd00:244:7::/64\n"
	n.write("web.yaml", manifest("web", "serve")+"    ports: [{containerPort: 8080, hostPort: 18080}]\n")
	n.write("local.yaml", manifest("local", "serve")+"    ports: [{containerPort: 8080, hostPort: 18081, hostIP: "+insideV4+"}]\n")
	a := n.startConfigured(first)
	pods := n.awaitReady("web-n1", "local-n1")
	web, local := pods.named("web-n1"), pods.named("local-n1")
	v4, v6 := podAddresses(t, web)
	for _, c := range []struct{ address, subnet string }{{v4, "10.244.7.0/24"}, {v6, "fd00:244:7::/64"}} {
		if !netip.MustParsePrefix(c.subnet).Contains(netip.MustParseAddr(c.address)) {
			t.Errorf("the pod has %s, want one of %s", c.address, c.subnet)
		}
	}
	host, outside := netNamespace(o.inside.Process.Pid), netNamespace(o.outside.Process.Pid)
	for _, ip := range []string{v4, v6} {
		o.wantGet("host to pod", host, net.JoinHostPort(ip, "8080"), "web")
		o.wantGet("pod to pod", o.of(local), net.JoinHostPort(ip, "8080"), "web")
	}
	for _, ip := range []string{insideV4, insideV6} {
		o.wantGet("outside to host port", outside, net.JoinHostPort(ip, "18080"), "web")
		o.wantGet("host to its host port", host, net.JoinHostPort(ip, "18080"), "web")
		o.wantGet("pod to its own host port", o.of(web), net.JoinHostPort(ip, "18080"), "web")
		o.wantGet("pod to a host port", o.of(local), net.JoinHostPort(ip, "18080"), "web")
	}
	o.wantGet("host to its host port by loopback", host, "127.0.0.1:18080", "web")
	o.wantGet("host port of one address", outside, net.JoinHostPort(insideV4, "18081"), "local")
	for _, ip := range []string{"127.0.0.1", insideV6} {
		if body, err := o.get(host, net.JoinHostPort(ip, "18081")); err == nil {
			t.Errorf("the host port of %s answers at %s: %q", insideV4, ip, body)
		}
	}
	for _, c := range []struct{ to, want string }{{outsideV4, insideV4}, {outsideV6, insideV6}} {
		l := o.listen(outside, net.JoinHostPort(c.to, "0"))
		if got := o.peerOf(o.of(web), l); got.String() != c.want {
			t.Errorf("%s sees the pod as %s, want the node's %s", c.to, got, c.want)
		}
	}

	a.end(unix.SIGTERM)
	n.write("new.yaml", manifest("new", "serve"))
	a = n.startConfigured("podCIDR: 10.244.8.0/24,fd00:244:8::/64\n")
	added := n.awaitReady("web-n1", "new-n1").named("new-n1")
	new4, new6 := podAddresses(t, added)
	if !strings.HasPrefix(new4, "10.244.8.") || !strings.HasPrefix(new6, "fd00:244:8:") {
		t.Errorf("the new pod has %s and %s, want addresses of the new ranges", new4, new6)
	}
	wantText(t, "the log", a.said(), "pods get addresses of another range; pods that run keep the addresses that they have until they are restarted")
	if now4, now6 := podAddresses(t, n.awaitReady("web-n1").named("web-n1")); now4 != v4 || now6 != v6 {
		t.Errorf("the pod had %s and %s, and has %s and %s", v4, v6, now4, now6)
	}
	for _, ip := range []string{v4, v6} {
		o.wantGet("new pod to a pod of the range before", o.of(added), net.JoinHostPort(ip, "8080"), "web")
	}
	for _, ip := range []string{new4, new6} {
		o.wantGet("pod of the range before to a new one", o.of(web), net.JoinHostPort(ip, "8080"), "new")
	}
	o.wantGet("host port of a pod of the range before", outside, net.JoinHostPort(insideV4, "18080"), "web")
}

// The ranges that `berth run` is told are those of its pods, of both families.
func TestPodCIDRRun(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	o := n.inOwnNetwork()
	n.flags = append(n.flags, "--pod-cidr", "10.244.5.0/24,fd00:244:5::/64")
	n.write("web.yaml", manifest("web", "serve"))
	n.start()
	web := n.awaitReady("web").named("web")
	v4, v6 := podAddresses(t, web)
	for _, c := range []struct{ address, subnet, outside, node string }{
		{v4, "10.244.5.0/24", outsideV4, insideV4},
		{v6, "fd00:244:5::/64", outsideV6, insideV6},
	} {
		if !netip.MustParsePrefix(c.subnet).Contains(netip.MustParseAddr(c.address)) {
			t.Errorf("the pod has %s, want one of %s", c.address, c.subnet)
		}
		o.wantGet("host to pod", netNamespace(o.inside.Process.Pid), net.JoinHostPort(c.address, "8080"), "web")
		l := o.listen(netNamespace(o.outside.Process.Pid), net.JoinHostPort(c.outside, "0"))
		if got := o.peerOf(o.of(web), l); got.String() != c.node {
			t.Errorf("%s sees the pod as %s, want the node's %s", c.outside, got, c.node)
		}
	}
}

// A network plugin that puts its file into /etc/cni/net.d has the pods from then on, with programs
// of its own in /opt/cni/bin.
func TestNetworkPluginOfOthers(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	o := n.inOwnNetwork()
	n.write("before.yaml", manifest("before", "serve"))
	a := n.startConfigured("podCIDR: 10.244.9.0/24\n")
	before := n.awaitReady("before-n1").named("before-n1")

	// As a plugin's DaemonSet does: the program first, then the file.
	o.run(o.inside, "sh", "-c", "mkdir -p /opt/cni/bin && printf '%s\\n' '#!/bin/sh' 'exec \"${CNI_PATH%%:*}/bridge\"' >/opt/cni/bin/others && chmod 755 /opt/cni/bin/others")
	o.run(o.inside, "sh", "-c", `cat >/etc/cni/net.d/10-others.conflist <<'END'
{"cniVersion": "1.0.0", "name": "others", "plugins": [{
  "type": "others", "bridge": "others0", "isDefaultGateway": true,
  "ipam": {"type": "host-local", "dataDir": "`+n.place.Dir+`/leases", "ranges": [[{"subnet": "10.77.0.0/24"}]]}
}]}
END`)
	until(t, "the agent to take the plugin's network", func() bool {
		return strings.Contains(a.said(), "pods get the network of a plugin")
	})
	n.write("after.yaml", manifest("after", "serve"))
	after := n.awaitReady("after-n1").named("after-n1")
	if !strings.HasPrefix(after.Status.PodIP, "10.77.0.") {
		t.Errorf("the pod has %s, want an address of the plugin's range", after.Status.PodIP)
	}
	o.wantGet("pod of the plugin", o.of(before), after.Status.PodIP+":8080", "after")

	// It stays so with the next agent, and ends with the file.
	a.end(unix.SIGTERM)
	a = n.startConfigured("podCIDR: 10.244.9.0/24\n")
	o.run(o.inside, "rm", "/etc/cni/net.d/10-others.conflist")
	until(t, "the agent to take its own network", func() bool {
		return strings.Contains(a.said(), "pods get addresses of another range")
	})
	n.write("last.yaml", manifest("last", "serve"))
	if last := n.awaitReady("last-n1").named("last-n1"); !strings.HasPrefix(last.Status.PodIP, "10.244.9.") {
		t.Errorf("the pod has %s, want an address of the node's range", last.Status.PodIP)
	}
}
