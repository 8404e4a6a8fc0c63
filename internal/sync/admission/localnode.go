package admission

import (
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LocalMaxPods is how many pods a machine takes that no API server knows, unless it is told
// otherwise. It is higher than the kubelet's 110, which goes with the addresses that clusters set
// aside for a node, and guards only against a flood.
const LocalMaxPods = 1000

// LocalMachine is what a LocalNode is made from. What is 0 is not known, and pods that ask for it
// are refused.
type LocalMachine struct {
	// Name is the node's name.
	Name string
	// Labels are added to those of name, operating system and architecture, and win over them.
	Labels map[string]string
	// CPUs that are online.
	CPUs int
	// Memory and Storage in bytes; Storage is the size of the file system of the agent's root
	// directory.
	Memory, Storage int64
	// HugePages is the reserved memory in bytes by page size in bytes; it is not there as Memory.
	HugePages map[int64]int64
	// MaxPods is the number of pods; 0 is LocalMaxPods.
	MaxPods int
}

// LocalNode returns the Node that pods are judged by on a machine without an API server: all of the
// machine is for pods.
func LocalNode(m LocalMachine) *v1.Node {
	if m.MaxPods == 0 {
		m.MaxPods = LocalMaxPods
	}
	has := v1.ResourceList{
		v1.ResourcePods:             *resource.NewQuantity(int64(m.MaxPods), resource.DecimalSI),
		v1.ResourceCPU:              *resource.NewQuantity(int64(m.CPUs), resource.DecimalSI),
		v1.ResourceEphemeralStorage: *resource.NewQuantity(m.Storage, resource.BinarySI),
	}
	memory := m.Memory
	for size, total := range m.HugePages {
		has[v1.ResourceName(v1.ResourceHugePagesPrefix+resource.NewQuantity(size, resource.BinarySI).String())] = *resource.NewQuantity(total, resource.BinarySI)
		memory -= total
	}
	has[v1.ResourceMemory] = *resource.NewQuantity(max(memory, 0), resource.BinarySI)
	labels := map[string]string{v1.LabelHostname: m.Name, v1.LabelOSStable: runtime.GOOS, v1.LabelArchStable: runtime.GOARCH}
	maps.Copy(labels, m.Labels)
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Name, Labels: labels}, Status: v1.NodeStatus{Capacity: has, Allocatable: has}}
}

// HasAppArmor reports whether the kernel enforces AppArmor profiles; root is where /sys is found.
func HasAppArmor(root string) bool {
	b, err := os.ReadFile(filepath.Join(root, "sys/module/apparmor/parameters/enabled"))
	return err == nil && strings.HasPrefix(string(b), "Y")
}
