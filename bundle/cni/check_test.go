package cni

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// CHECK says what is not as ADD has made it.
func TestCheck(t *testing.T) {
	h := newHost(t, ours(range4, range6))
	p := h.pod("pod", all)
	p.must("ADD")
	p.must("CHECK")
	inPod := func(f func(eth0 netlink.Link) error) func() error {
		return func() (err error) {
			within(t, p.ns, func() {
				var eth0 netlink.Link
				if eth0, err = netlink.LinkByName("eth0"); err == nil {
					err = f(eth0)
				}
			})
			return err
		}
	}
	onHost := func(args ...string) func() error {
		return func() (err error) {
			h.do(func() { err = exec.Command(args[0], args[1:]...).Run() })
			return err
		}
	}
	within(t, p.ns, func() {
		if i, err := net.InterfaceByName("lo"); err != nil || i.Flags&net.FlagUp == 0 {
			t.Errorf("lo of the pod: %v %v", i, err)
		}
	})
	host := attachment{"pod", "eth0"}.hostName("net")
	for name, c := range map[string]struct {
		damage func() error
		want   string
	}{
		"link down":   {inPod(netlink.LinkSetDown), "interface eth0 of the pod is down"},
		"another mac": {inPod(func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 1}) }), "has the address 02:00:00:00:00:01"},
		"no address":  {inPod(func(l netlink.Link) error { return netlink.AddrDel(l, &netlink.Addr{IPNet: &p.result.IPs[1].Address}) }), "has no address fd00:88::2/64"},
		"no route": {inPod(func(l netlink.Link) error {
			return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: p.result.IPs[0].Gateway})
		}), "no route to 0.0.0.0/0"},
		"no port":       {onHost("nft", "flush", "map", "inet", "cni-net", "ports4"), "host port 8080/tcp does not lead to the pod"},
		"no rules":      {onHost("nft", "flush", "chain", "inet", "cni-net", "postrouting"), "is not as it was made"},
		"no table":      {onHost("nft", "delete", "table", "inet", "cni-net"), "is not as it was made"},
		"no limit":      {onHost("ip", "link", "del", attachment{id: "pod"}.ifbName("net")), "bwp"},
		"out of bridge": {onHost("ip", "link", "set", host, "nomaster"), "is not in bridge cni0"},
		"no lease":      {func() error { return os.Remove(h.dir + "/leases/net/" + p.ip(false).String()) }, "is not leased to pod"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.damage(); err != nil {
				t.Fatal(err)
			}
			told := p.run("CHECK")
			if told == nil || told.Code != errBroken || !strings.Contains(told.Msg, c.want) {
				t.Errorf("CHECK: %v, want %q", told, c.want)
			}
			p.must("DEL")
			p.result = nil
			_ = os.RemoveAll(h.dir + "/leases") // the next is to have the same address
			p.must("ADD")
			p.must("CHECK")
		})
	}
}

// GC takes away what is of no pod that the runtime knows, and the table with the last one.
func TestGC(t *testing.T) {
	h := newHost(t, ours(range4))
	var pods []*testPod
	for _, id := range []string{"known", "gone", "killed"} {
		p := h.pod(id, all)
		if id != "known" {
			p.config = map[string]any{"portMappings": []any{map[string]any{"hostPort": 9000 + len(id), "containerPort": 80, "protocol": "tcp"}}}
		}
		p.must("ADD")
		pods = append(pods, p)
	}
	gc := func(valid ...any) {
		t.Helper()
		config := h.plugins(h, nil)[0]
		config["cni.dev/valid-attachments"] = valid
		if _, told := h.call("berth-cni", config, "CNI_COMMAND=GC"); told != nil {
			t.Fatal(told)
		}
	}
	if err := os.Remove(h.dir + "/leases/net/" + pods[2].ip(false).String()); err != nil { // by somebody
		t.Fatal(err)
	}
	gc(map[string]any{"containerID": "known", "ifname": "eth0"})
	pods[0].must("CHECK")
	for _, left := range h.traces() {
		if strings.Contains(left, "gone") || strings.Contains(left, "killed eth0") || strings.Contains(left, pods[1].ip(false).String()) {
			t.Errorf("left behind: %s", left)
		}
	}
	pods[2].must("DEL")
	gc()
	if left := h.traces(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	h.do(func() {
		if out, err := exec.Command("nft", "list", "tables").CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("tables: %s %v", out, err)
		}
	})
}
