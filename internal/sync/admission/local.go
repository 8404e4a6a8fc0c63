package admission

import (
	"os"
	"path/filepath"
	"strings"
)

// LocalMaxPods is the default maximum of pods of a standalone node. It exceeds the kubelet's 110,
// which matches the pod addresses per node of clusters, and only guards against a flood.
const LocalMaxPods = 1000

// HasAppArmor reports whether the kernel enforces AppArmor profiles; root is the directory that
// contains sys.
func HasAppArmor(root string) bool {
	b, err := os.ReadFile(filepath.Join(root, "sys/module/apparmor/parameters/enabled"))
	return err == nil && strings.HasPrefix(string(b), "Y")
}
