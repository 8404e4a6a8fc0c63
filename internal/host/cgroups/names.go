package cgroups

import (
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// Driver is the cgroup driver: cgroups are created through cgroupfs or by systemd.
type Driver string

// Drivers, as in KubeletConfiguration.cgroupDriver.
const (
	Cgroupfs Driver = "cgroupfs"
	Systemd  Driver = "systemd"
)

const (
	kubepods   = "kubepods"
	burstable  = "burstable"
	bestEffort = "besteffort"
	podPrefix  = "pod"
	slice      = ".slice"
)

// name is a cgroup's position in the tree, from the hierarchy's root, as plain words; it is
// independent of the driver.
type name []string

// child returns the name of a descendant of n.
func (n name) child(word ...string) name {
	return append(n[:len(n):len(n)], word...)
}

// rootName splits cgroupRoot into words.
func rootName(cgroupRoot string) name {
	var n name
	for word := range strings.SplitSeq(cgroupRoot, "/") {
		if word != "" {
			n = append(n, word)
		}
	}
	return n
}

// qosName returns the parent of the pods of a class.
func qosName(root name, class v1.PodQOSClass) name {
	switch class {
	case v1.PodQOSBurstable:
		return root.child(kubepods, burstable)
	case v1.PodQOSBestEffort:
		return root.child(kubepods, bestEffort)
	default:
		return root.child(kubepods)
	}
}

func podName(root name, class v1.PodQOSClass, uid pod.UID) name {
	return qosName(root, class).child(podPrefix + string(uid))
}

// path returns the cgroup's path below the root of a hierarchy.
func (n name) path(d Driver) string {
	if d != Systemd {
		return "/" + path.Join(n...)
	}
	p := "/"
	for i := range n {
		p = path.Join(p, n[:i+1].unit())
	}
	return p
}

// unit returns the systemd slice unit of the cgroup. A dash in a slice's name separates levels
// (systemd.slice(5)), hence dashes within words become underscores.
func (n name) unit() string {
	if len(n) == 0 {
		return "-" + slice
	}
	words := make([]string, len(n))
	for i, w := range n {
		words[i] = strings.ReplaceAll(w, "-", "_")
	}
	return strings.Join(words, "-") + slice
}

// uidOf returns the pod of a directory in the cgroup parent, or false if it is not a pod's. UIDs
// have no underscores, so systemd's escaping is reversible.
func uidOf(parent name, dir string, d Driver) (pod.UID, bool) {
	if d == Systemd {
		unit, ok := strings.CutSuffix(dir, slice)
		if !ok {
			return "", false
		}
		prefix := strings.TrimSuffix(parent.unit(), slice) + "-"
		if dir, ok = strings.CutPrefix(unit, prefix); !ok {
			return "", false
		}
		dir = strings.ReplaceAll(dir, "_", "-")
	}
	uid, ok := strings.CutPrefix(dir, podPrefix)
	return pod.UID(uid), ok && uid != ""
}
