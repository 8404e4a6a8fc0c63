package embedded

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/host/preflight"
)

// pluginWorld has a network, and a program in the place of our plugin that notes how it is called.
func pluginWorld(t *testing.T, firewall string) (p paths, calls func() []string) {
	t.Helper()
	dir := t.TempDir()
	p = newPaths(dir+"/root", dir+"/run")
	files := map[string]string{
		p.current + "/cni/" + ownPlugin: "#!/bin/sh\necho \"$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $(tr -d ' \\n' | grep -o '\"cniVersion\":\"[^\"]*\"')\" >>" + dir + "/calls\n",
		p.current + "/cni/portmap":      "#!/bin/sh\necho portmap >>" + dir + "/calls\n",
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n := network{Version: 2, Subnets: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/16")}, Bridge: p.network.bridge, Firewall: firewall}
	if err := writeJSON(p.network.file, n); err != nil {
		t.Fatal(err)
	}
	return p, func() []string {
		b, err := os.ReadFile(dir + "/calls")
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' })
	}
}

// The network of a sandbox whose ADD was cut off is taken down by its plugin. An address that was
// given to another meanwhile is left to that one.
func TestEndLeases(t *testing.T) {
	p, calls := pluginWorld(t, preflight.Nftables)
	dir := filepath.Join(p.network.leases, p.network.bridge)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	id, other := strings.Repeat("a", 64), strings.Repeat("b", 64)
	o := orphan{id: id}
	for name, text := range map[string]string{"10.88.0.2": id + "\r\neth0", "fd00:88::2": other + "\r\neth0"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		o.addresses = append(o.addresses, filepath.Join(dir, name))
	}
	if err := detachLeases(t.Context(), p, o); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{`DEL ` + id + ` eth0 "cniVersion":"1.0.0"`}, calls()); diff != "" {
		t.Errorf("calls of the plugin (-want +got):\n%s", diff)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "fd00:88::2" {
		t.Errorf("leases left: %v %v, want that of another", left, err)
	}
}

// The network of a pod is taken down by the name of its attachment where the file is damaged.
func TestRemoveDamagedAttachments(t *testing.T) {
	p, calls := pluginWorld(t, preflight.Nftables)
	id := strings.Repeat("a", 64)
	file := filepath.Join(t.TempDir(), p.network.bridge+"-"+id+"-eth0")
	config, err := persistedConflist(p)
	if err != nil {
		t.Fatal(err)
	}
	whole := attachment{ContainerID: id, IfName: "eth0", NetNS: "/run/netns/x", Config: config}
	text, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	other := whole
	other.ContainerID = strings.Repeat("b", 64)
	changed, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	other = whole
	other.Config = []byte(`{"plugins":[{"typ`)
	half, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	other.Config = bytes.Replace(config, []byte(ownPlugin), []byte("bfrth-cni"), 1)
	unknown, err := json.Marshal(other)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for name, content := range map[string][]byte{"whole": text, "cut": text[:len(text)/3], "emptied": nil, "of another": changed, "without a network": []byte("{}"), "half a network": half, "no such plugin": unknown, "folder": nil} {
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		if name == "folder" {
			err = os.MkdirAll(file+"/more", 0o755)
		} else {
			err = os.WriteFile(file, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := removeAttachment(t.Context(), p, file); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if exists(file) {
			t.Errorf("%s: it is still there", name)
		}
		want = append(want, `DEL `+id+` eth0 "cniVersion":"1.0.0"`)
	}
	if diff := cmp.Diff(want, calls()); diff != "" {
		t.Errorf("calls of the plugin (-want +got):\n%s", diff)
	}
	// Without a network that is remembered nothing can be taken down.
	if err := errors.Join(os.Remove(p.network.file), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := removeAttachment(t.Context(), p, file); err != nil || exists(file) || len(calls()) != len(want) {
		t.Errorf("without a network: %v, it is there: %v, calls: %q", err, exists(file), calls())
	}
}

// At the end the plugin takes away its table, where it had the network at all.
func TestEndNetwork(t *testing.T) {
	for firewall, want := range map[string][]string{preflight.Nftables: {`GC   "cniVersion":"1.1.0"`}, "": {`GC   "cniVersion":"1.1.0"`}, preflight.Iptables: {}} {
		p, calls := pluginWorld(t, firewall)
		if err := removeNetwork(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, calls()); diff != "" {
			t.Errorf("firewall %q: calls of the plugin (-want +got):\n%s", firewall, diff)
		}
	}
}

// A runtime that was never unpacked, or of whose network nothing is known, can still be taken away.
func TestEndNetworkThatNeverWas(t *testing.T) {
	p, _ := pluginWorld(t, preflight.Nftables)
	if err := os.RemoveAll(p.current); err != nil {
		t.Fatal(err)
	}
	if err := removeNetwork(t.Context(), p); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(p.network.file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := removeNetwork(t.Context(), p); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(p.settings); err != nil {
		t.Fatal(err)
	}
	if err := removeNetwork(t.Context(), p); err != nil {
		t.Error(err)
	}
}
