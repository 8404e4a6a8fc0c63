package oom

import (
	"strconv"
	"strings"

	"berth/internal/host/cgroupstat"
)

type kill struct {
	process string
	pid     int
	// task is the cgroup of the process, limit the cgroup whose limit was reached: "" if the node
	// itself ran out of memory.
	task, limit string
	// used and allowed are the usage of the limit's cgroup and the limit, in bytes; 0 if unknown.
	used, allowed uint64
}

// container returns the ID of the process's container, or "".
func (k *kill) container() string { return cgroupstat.ContainerIn(k.task) }

// isLimitOfPod reports whether the limit is that of the container's parent cgroup.
func (k *kill) isLimitOfPod() bool {
	below, inside := strings.CutPrefix(k.task, k.limit+"/")
	container, _, _ := strings.Cut(below, "/")
	return inside && cgroupstat.ContainerID(container) != ""
}

// parser assembles the lines of a kill. The kernel writes them consecutively.
type parser struct {
	open bool
	kill kill
}

// line parses the next line of the kernel log and returns the kill that it completes.
//
// Since Linux 5.0 a line "oom-kill:constraint=…,oom_memcg=…,task_memcg=…,task=…,pid=…,uid=…" has
// nearly all (mm/oom_kill.c, dump_oom_summary); older kernels use two lines.
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

// summary parses the line of newer kernels. A process name may contain anything, including commas;
// it is between task= and the last pid=.
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

// kilobytes parses "16384kB"; invalid text is 0.
func kilobytes(s string) uint64 {
	n, err := strconv.ParseUint(strings.TrimSuffix(s, "kB"), 10, 64)
	if err != nil || n > cgroupstat.Unlimited>>10 {
		return 0
	}
	return n << 10
}

// parseRecord parses a record of /dev/kmsg: "6,1234,5678901,-;text", then lines of a dictionary
// (Documentation/ABI/testing/dev-kmsg). ok is false for records that the kernel did not write:
// programs can write to the log, and those of containers are not trusted.
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
