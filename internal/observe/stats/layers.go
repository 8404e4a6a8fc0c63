package stats

import (
	"bytes"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth/internal/pod"
)

// overlay is a mount of overlayfs.
type overlay struct{ point, upper string }

// layers finds the writable layers of containers among the mounts of the agent's own namespace, in
// which runtimes make them. Their processes are not believed: one that has changed its root shows
// no layer, and one that mounts an overlay of its own any folder of the host.
type layers struct {
	proc    procFS
	cgroups *cgroupReader

	mu   sync.Mutex
	last mounts // guarded by mu
}

// mounts are the overlays that there were at a time. It is never changed.
type mounts struct {
	at time.Time
	// in has the upper directory by each part of the path that it is mounted at, is says which
	// there are.
	in map[string]string
	is map[string]bool
}

// upperDir returns the writable layer of a container: the upper directory of the overlay that is
// its root; "" for a snapshotter that is no overlay.
func (l *layers) upperDir(m mounts, id pod.ContainerID, cgroup string) string {
	if upper, ok := m.in[string(id)]; ok { // as containerd names it
		return upper
	}
	// Other runtimes name it otherwise: it is that which its first process has as root.
	pid := l.cgroups.firstProcess(cgroup)
	if pid <= 0 {
		return ""
	}
	for _, o := range parseOverlays(l.proc.read(filepath.Join(strconv.Itoa(pid), "mountinfo"))) {
		if o.point == "/" && m.is[o.upper] {
			return o.upper
		}
	}
	return ""
}

// current returns the overlays of the agent's namespace, as they were a second ago at most.
func (l *layers) current() mounts {
	l.mu.Lock()
	m := l.last
	l.mu.Unlock()
	if time.Since(m.at) < fresh {
		return m
	}
	m = l.read()
	l.set(m)
	return m
}

func (l *layers) set(m mounts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = m
}

// read returns the overlays of the agent's namespace as they are now.
func (l *layers) read() mounts {
	m := mounts{at: time.Now(), in: map[string]string{}, is: map[string]bool{}}
	for _, o := range parseOverlays(l.proc.read("self/mountinfo")) {
		m.is[o.upper] = true
		for part := range strings.SplitSeq(o.point, "/") {
			m.in[part] = o.upper
		}
	}
	return m
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
