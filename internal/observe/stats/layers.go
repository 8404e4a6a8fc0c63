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

type overlay struct{ point, upper string }

// layers finds the writable layers of containers among the mounts of the agent's own namespace, in
// which runtimes create them, and queries the runtime for others. Mounts of container processes are
// not trusted: a process that has changed its root shows no layer, and one that mounts its own
// overlay can show any directory of the host.
type layers struct {
	proc    procFS
	cgroups *cgroupReader
	runtime Runtime

	mu   sync.Mutex
	last mounts // guarded by mu
	// reported caches the layers reported by the runtime, "" for none. Guarded by mu.
	reported map[pod.ContainerID]string
}

// maxReported bounds reported, whose containers may no longer exist.
const maxReported = 2048

// mounts are the overlays at one time. Immutable.
type mounts struct {
	at time.Time
	// in maps each path element of a mount point to the upper directory; is is the set of upper
	// directories.
	in map[string]string
	is map[string]bool
}

// upperDir returns the writable layer of a container: the upper directory of its root overlay; ""
// for a snapshotter without overlays.
func (l *layers) upperDir(ctx context.Context, m mounts, id pod.ContainerID, cgroup string) string {
	if upper, ok := m.in[string(id)]; ok { // containerd's mount path has the ID
		return upper
	}
	if upper := l.queryRuntime(ctx, id); upper != "" {
		return upper
	}
	// Other runtimes use other paths: the layer is the root of the first process.
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

// queryRuntime queries the runtime, once per container: the mount may not be visible to the agent.
func (l *layers) queryRuntime(ctx context.Context, id pod.ContainerID) string {
	l.mu.Lock()
	upper, known := l.reported[id]
	l.mu.Unlock()
	if known {
		return upper
	}
	upper, err := l.runtime.UpperDir(ctx, id)
	if err != nil {
		return "" // retried on the next request
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.reported) >= maxReported {
		l.reported = nil
	}
	if l.reported == nil {
		l.reported = map[pod.ContainerID]string{}
	}
	l.reported[id] = upper
	return upper
}

// current returns the overlays of the agent's namespace, at most a second old.
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

func (l *layers) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last, l.reported = mounts{}, nil
}

// read returns the current overlays of the agent's namespace.
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

// parseOverlays returns the writable overlays of a mountinfo (proc_pid_mountinfo(5)).
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
