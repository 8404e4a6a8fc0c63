package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// usage is the resource usage of processes: CPU and wake-ups since their start, and memory now.
type usage struct {
	CPU     time.Duration `json:"cpu"`
	Wakeups int           `json:"wakeups"` // voluntary context switches
	RSS     int           `json:"rss"`     // bytes, as the other two
	RssAnon int           `json:"rssAnon"`
	PSS     int           `json:"pss"`
	PeakRSS int           `json:"peakRss"` // the peak since the start; for several processes, the sum
}

func (u usage) add(v usage) usage {
	return usage{u.CPU + v.CPU, u.Wakeups + v.Wakeups, u.RSS + v.RSS, u.RssAnon + v.RssAnon, u.PSS + v.PSS, u.PeakRSS + v.PeakRSS}
}

// usageOf reads the usage of processes. It misses exited threads, which idle Go programs do not
// have.
func usageOf(pids ...int) (usage, error) {
	var all usage
	for _, pid := range pids {
		u, err := usageOfOne(pid)
		if err != nil {
			return all, fmt.Errorf("process %d: %w", pid, err)
		}
		all = all.add(u)
	}
	return all, nil
}

func usageOfOne(pid int) (usage, error) {
	var u usage
	dir := fmt.Sprintf("/proc/%d", pid)
	tasks, err := os.ReadDir(dir + "/task")
	if err != nil {
		return u, err
	}
	for _, t := range tasks {
		b, err := os.ReadFile(filepath.Join(dir, "task", t.Name(), "schedstat"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return u, err
		}
		ns, _, _ := strings.Cut(string(b), " ")
		n, err := strconv.ParseInt(ns, 10, 64)
		if err != nil {
			return u, fmt.Errorf("schedstat: %w", err)
		}
		u.CPU += time.Duration(n)
		w, err := fields(filepath.Join(dir, "task", t.Name(), "status"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return u, err
		}
		u.Wakeups += w["voluntary_ctxt_switches"]
	}
	status, err := fields(dir + "/status")
	if err != nil {
		return u, err
	}
	rollup, err := fields(dir + "/smaps_rollup")
	if err != nil {
		return u, err
	}
	u.RSS, u.RssAnon, u.PSS = status["VmRSS"]<<10, status["RssAnon"]<<10, rollup["Pss"]<<10
	u.PeakRSS = status["VmHWM"] << 10
	return u, nil
}

// fields parses the numbers of a file with lines "Name: number unit".
func fields(file string) (map[string]int, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	found := map[string]int{}
	for line := range strings.Lines(string(b)) {
		name, rest, _ := strings.Cut(line, ":")
		if words := strings.Fields(rest); len(words) > 0 {
			if n, err := strconv.Atoi(words[0]); err == nil {
				found[name] = n
			}
		}
	}
	return found, nil
}

// runtimePIDs returns the PIDs of containerd, its shims and pod shims.
func (m *machine) runtimePIDs() ([]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, d := range dirs {
		b, err := os.ReadFile(d + "/cmdline")
		if err != nil || !bytes.Contains(b, []byte(m.dir+"/")) {
			continue
		}
		args := strings.Split(string(b), "\x00")
		isPodshim := len(args) > 2 && strings.HasPrefix(args[2], m.runDir()+"/containerd/keepers/")
		if name := filepath.Base(args[0]); name == "containerd" || strings.HasPrefix(name, "containerd-shim") || isPodshim {
			pid, err := strconv.Atoi(filepath.Base(d))
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		return nil, errors.New("the runtime's processes are not found")
	}
	return pids, nil
}
