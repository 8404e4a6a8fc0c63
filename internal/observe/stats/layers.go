package stats

import (
	"bytes"
	"context"
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
// which runtimes make them, and asks the runtime for others. Their processes are not believed: one
// that has changed its root shows no layer, and one that mounts an overlay of its own any folder of
// the host.
type layers struct {
	proc    procFS
	cgroups *cgroupReader
	runtime Runtime

	mu   sync.Mutex
	last mounts // guarded by mu
	// told are those that the runtime told, "" for none. Guarded by mu.
	told map[pod.ContainerID]string
}

// toldMost bounds what is remembered of containers, most of which may be gone.
const toldMost = 2048

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
func (l *layers) upperDir(ctx context.Context, m mounts, id pod.ContainerID, cgroup string) string {
	if upper, ok := m.in[string(id)]; ok { // as containerd names it
		return upper
	}
	if upper := l.ask(ctx, id); upper != "" {
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

// ask asks the runtime, once for each container: it may have made the mount where the agent does
// not see it.
func (l *layers) ask(ctx context.Context, id pod.ContainerID) string {
	l.mu.Lock()
	upper, known := l.told[id]
	l.mu.Unlock()
	if known {
		return upper
	}
	upper, err := l.runtime.UpperDir(ctx, id)
	if err != nil {
		return "" // the next question asks again
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.told) >= toldMost {
		l.told = nil
	}
	if l.told == nil {
		l.told = map[pod.ContainerID]string{}
	}
	l.told[id] = upper
	return upper
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

// forget frees what is remembered.
func (l *layers) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last, l.told = mounts{}, nil
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
