package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// bridgedModule has the rules of the firewall apply to what a bridge passes on.
const bridgedModule = "br_netfilter"

// bridgedSettings turn that on, a file for each family.
var bridgedSettings = []string{"proc/sys/net/bridge/bridge-nf-call-iptables", "proc/sys/net/bridge/bridge-nf-call-ip6tables"}

// filterBridged has the rules of the firewall apply to what goes from one pod to another over the
// bridge. Else the answer to a request that went to the address of a Service reaches the pod that
// asked under the address of the pod that answers, and is dropped. The rules then apply to all
// bridges of the machine, so only a node of a cluster, which has Services, asks for it.
//
// As kubenet did. The kubelet leaves it to who sets up the node, see "Network Plugin Requirements"
// of the documentation of Kubernetes. root is "/".
func filterBridged(root string, load func(module string) error) error {
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

func checkBridged(root string) HostCheck {
	const name = "rules for the bridge"
	path := filepath.Join(root, bridgedSettings[0])
	switch value := readLine(path); {
	case value == "1":
		return ok(name, bridgedModule+" is there, and on")
	case value != "":
		return ok(name, "off; a node of a cluster turns it on")
	}
	if err := runTool("modprobe", "--dry-run", bridgedModule); err != nil {
		return warn(name, "the kernel module "+bridgedModule+" is missing: "+err.Error(), "in a cluster, a pod does not reach pods of its own node by the address of their Service")
	}
	return ok(name, "not loaded yet")
}
