package stats

import (
	"bytes"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth/internal/pod"
)

// overlay is a mount of overlayfs.
type overlay struct{ point, upper string }

// layers finds the writable layers of containers among the mounts of the agent's own namespace, in which runtimes make them. Their processes are not
// believed: one that has changed its root shows no layer, and one that mounts an overlay of its own any folder of the host.
type layers struct {
	mu       sync.Mutex
	at       time.Time // guarded by mu
	overlays []overlay // guarded by mu
}

// upperDir returns the writable layer of a container: the upper directory of the overlay that is its root; "" for a snapshotter that is no overlay.
func (c *Collector) upperDir(id pod.ContainerID, cgroup string) string {
	overlays := c.overlays()
	for _, o := range overlays {
		if slices.Contains(strings.Split(o.point, "/"), string(id)) { // as containerd names it
			return o.upper
		}
	}
	// Other runtimes name it otherwise: it is that which its first process has as root.
	if cgroup == "" || c.hierarchy == nil {
		return ""
	}
	pid := c.hierarchy.FirstProcess(cgroup)
	if pid <= 0 {
		return ""
	}
	inside := parseOverlays(c.proc(filepath.Join(strconv.Itoa(pid), "mountinfo")))
	root := slices.IndexFunc(inside, func(o overlay) bool { return o.point == "/" })
	if root < 0 || !slices.ContainsFunc(overlays, func(o overlay) bool { return o.upper == inside[root].upper }) {
		return ""
	}
	return inside[root].upper
}

// overlays returns those of the agent's namespace, a second old at most.
func (c *Collector) overlays() []overlay {
	c.layers.mu.Lock()
	defer c.layers.mu.Unlock()
	if now := time.Now(); now.Sub(c.layers.at) >= fresh {
		c.layers.at, c.layers.overlays = now, parseOverlays(c.proc("self/mountinfo"))
	}
	return c.layers.overlays
}

// parseOverlays returns the overlays of a mountinfo (proc_pid_mountinfo(5)) that can be written to.
func parseOverlays(b []byte) []overlay {
	var out []overlay
	for line := range bytes.Lines(b) {
		left, right, ok := strings.Cut(string(line), " - ")
		fields, super := strings.Fields(left), strings.Fields(right)
		if !ok || len(fields) < 5 || len(super) < 3 || super[0] != "overlay" {
			continue
		}
		for option := range strings.SplitSeq(super[2], ",") {
			if dir, ok := strings.CutPrefix(option, "upperdir="); ok && filepath.IsAbs(dir) {
				out = append(out, overlay{fields[4], dir})
			}
		}
	}
	return out
}
