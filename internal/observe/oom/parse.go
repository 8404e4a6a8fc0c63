package oom

import (
	"strconv"
	"strings"

	"berth/internal/host/cgroupstat"
)

// kill is what the kernel log says of one kill.
type kill struct {
	process string
	pid     int
	// task is the cgroup of the process, limit the one whose limit was reached: "" when the node
	// itself had no memory left.
	task, limit string
	// used and allowed are what the limit's cgroup used, and the limit, in bytes; 0 when not said.
	used, allowed uint64
}

// container returns the id of the container that the process was in, or "".
func (k *kill) container() string { return cgroupstat.ContainerIn(k.task) }

// isLimitOfPod reports whether the limit is that of the cgroup which the process's container is in.
func (k *kill) isLimitOfPod() bool {
	below, inside := strings.CutPrefix(k.task, k.limit+"/")
	container, _, _ := strings.Cut(below, "/")
	return inside && cgroupstat.ContainerID(container) != ""
}

// parser puts the lines of a kill together. The kernel writes them in one go.
type parser struct {
	open bool
	kill kill
}

// line takes the next line of the kernel log and returns the kill that it completes.
//
// Since Linux 5.0 a line "oom-kill:constraint=…,oom_memcg=…,task_memcg=…,task=…,pid=…,uid=…" has
// nearly all (mm/oom_kill.c, dump_oom_summary); older kernels say it in two.
func (p *parser) line(text string) (kill, bool) {
	if strings.Contains(text, " invoked oom-killer:") {
		*p = parser{open: true}
		return kill{}, false
	}
	if !p.open {
		return kill{}, false
	}
	if rest, ok := strings.CutPrefix(text, "memory: usage "); ok {
		used, rest, _ := strings.Cut(rest, ", limit ")
		allowed, _, _ := strings.Cut(rest, ",")
		p.kill.used, p.kill.allowed = kilobytes(used), kilobytes(allowed)
		return kill{}, false
	}
	if rest, ok := strings.CutPrefix(text, "oom-kill:"); ok {
		p.open = false
		return p.summary(rest)
	}
	if rest, ok := strings.CutPrefix(text, "Task in "); ok {
		if task, limit, ok := strings.Cut(rest, " killed as a result of limit of "); ok {
			p.kill.task, p.kill.limit = task, limit
		}
		return kill{}, false
	}
	if _, rest, ok := strings.Cut(text, "Killed process "); ok {
		p.open = false
		pid, rest, _ := strings.Cut(rest, " (")
		end := strings.LastIndexByte(rest, ')')
		n, err := strconv.Atoi(pid)
		if err != nil || end < 0 {
			return kill{}, false
		}
		p.kill.pid, p.kill.process = n, rest[:end]
		return p.kill, true
	}
	return kill{}, false
}

// summary reads the line of newer kernels. A process may call itself anything, commas included; it
// stands between task= and the last pid=.
func (p *parser) summary(text string) (kill, bool) {
	k := p.kill
	head, rest, ok := strings.Cut(text, ",task_memcg=")
	if !ok {
		return kill{}, false
	}
	if _, limit, ok := strings.Cut(head, ",oom_memcg="); ok {
		k.limit = limit
	} else {
		k.used, k.allowed = 0, 0
	}
	if k.task, rest, ok = strings.Cut(rest, ",task="); !ok {
		return kill{}, false
	}
	at := strings.LastIndex(rest, ",pid=")
	if at < 0 {
		return kill{}, false
	}
	pid, _, _ := strings.Cut(rest[at+len(",pid="):], ",")
	var err error
	if k.pid, err = strconv.Atoi(pid); err != nil {
		return kill{}, false
	}
	k.process = rest[:at]
	return k, true
}

// kilobytes reads "16384kB"; what cannot be read is 0.
func kilobytes(s string) uint64 {
	n, err := strconv.ParseUint(strings.TrimSuffix(s, "kB"), 10, 64)
	if err != nil || n > cgroupstat.Unlimited>>10 {
		return 0
	}
	return n << 10
}

// parseRecord reads a record of /dev/kmsg: "6,1234,5678901,-;text", then lines of a dictionary
// (Documentation/ABI/testing/dev-kmsg). ok is false for what is not the kernel's own: programs may
// write into the log too, and a container's must not be believed.
func parseRecord(b []byte) (r Record, ok bool) {
	head, text, found := strings.Cut(string(b), ";")
	if !found {
		return Record{}, false
	}
	fields := strings.SplitN(head, ",", 3)
	if len(fields) < 3 {
		return Record{}, false
	}
	priority, err := strconv.ParseUint(fields[0], 10, 32)
	seq, err2 := strconv.ParseUint(fields[1], 10, 64)
	if err != nil || err2 != nil {
		return Record{}, false
	}
	r = Record{Seq: seq}
	const kernelFacility = 0
	if priority>>3 == kernelFacility {
		r.Text, _, _ = strings.Cut(text, "\n")
	}
	return r, true
}
