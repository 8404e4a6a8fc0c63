//go:build e2e

package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A kubelet's chains are in iptables from its start on, and again after somebody has deleted them;
// with makeIPTablesUtilChains: false they are not.
func TestUtilChains(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	o := n.inOwnNetwork()
	if _, err := exec.LookPath("iptables"); err != nil { // such a host has no chains, which is told
		a := n.startConfigured("makeIPTablesUtilChains: true\n")
		until(t, "what is missing to be told", func() bool {
			return strings.Contains(a.said(), "install iptables, or set makeIPTablesUtilChains: false")
		})
		return
	}
	const on, off = "makeIPTablesUtilChains: true\n", "makeIPTablesUtilChains: false\n"
	kept := func() bool {
		tables := o.run(o.inside, "iptables-save") + o.run(o.inside, "ip6tables-save")
		for _, line := range []string{
			"-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
			"-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL",
		} {
			if strings.Count(tables, line+"\n") != 1 {
				return false
			}
		}
		return strings.Count(tables, ":KUBE-IPTABLES-HINT ") == 2 // of both families
	}
	a := n.startConfigured(off)
	if kept() {
		t.Error("chains are there that nobody asked for")
	}
	a.end(unix.SIGTERM)
	a = n.startConfigured(on)
	until(t, "the chains", kept)
	for _, flush := range [][]string{
		{"nft", "flush", "ruleset"},
		{"iptables", "-t", "filter", "-F", "INPUT"},
		{"iptables", "-t", "filter", "-F", "KUBE-FIREWALL"},
		{"ip6tables", "-t", "mangle", "-X", "KUBE-IPTABLES-HINT"},
	} {
		o.run(o.inside, flush...)
		if kept() {
			t.Errorf("%q has deleted nothing", flush)
		}
		until(t, "the chains after "+strings.Join(flush, " "), kept)
	}
	a.end(unix.SIGTERM)
	n.startConfigured(on)
	until(t, "the chains with the next agent, each once", kept)
}
