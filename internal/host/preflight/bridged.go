package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// bridgedModule makes bridged traffic pass the firewall.
const bridgedModule = "br_netfilter"

// bridgedSettings enable that, one file per IP family.
var bridgedSettings = []string{"proc/sys/net/bridge/bridge-nf-call-iptables", "proc/sys/net/bridge/bridge-nf-call-ip6tables"}

// FilterBridged makes traffic between pods on the bridge pass the firewall. Otherwise the reply to
// a request to a Service address reaches the client pod with the server pod's address, and is
// dropped. The setting affects all bridges of the host, so only cluster nodes, which have Services,
// use it.
//
// kubenet did the same. The kubelet leaves it to the node's administrator, see "Network Plugin
// Requirements" in the Kubernetes documentation. root is "/".
func FilterBridged(root string, load func(module string) error) error {
	_, err := os.Stat(filepath.Join(root, bridgedSettings[0]))
	if errors.Is(err, fs.ErrNotExist) {
		if err := load(bridgedModule); err != nil {
			return fmt.Errorf("load the kernel module %s: %w", bridgedModule, err)
		}
	}
	for _, name := range bridgedSettings {
		path := filepath.Join(root, name)
		now, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(now)) == "1" {
			continue
		}
		if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func checkBridged(root string) Check {
	const name = "rules for the bridge"
	path := filepath.Join(root, bridgedSettings[0])
	switch value := readLine(path); {
	case value == "1":
		return ok(name, bridgedModule+" is there, and on")
	case value != "":
		return ok(name, "off; a node of a cluster turns it on")
	}
	if err := RunTool("modprobe", "--dry-run", bridgedModule); err != nil {
		return warn(name, "the kernel module "+bridgedModule+" is missing: "+err.Error(), "in a cluster, a pod does not reach pods of its own node by the address of their Service")
	}
	return ok(name, "not loaded yet")
}
