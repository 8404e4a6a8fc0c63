package admission

import (
	"os"
	"path/filepath"
	"strings"
)

// LocalMaxPods is how many pods a machine takes that no cluster knows, unless it is told
// otherwise. It is higher than the kubelet's 110, which goes with the addresses that clusters set
// aside for a node, and guards only against a flood.
const LocalMaxPods = 1000

// HasAppArmor reports whether the kernel enforces AppArmor profiles; root is where /sys is found.
func HasAppArmor(root string) bool {
	b, err := os.ReadFile(filepath.Join(root, "sys/module/apparmor/parameters/enabled"))
	return err == nil && strings.HasPrefix(string(b), "Y")
}
