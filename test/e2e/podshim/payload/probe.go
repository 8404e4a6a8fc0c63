package main

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// fact writes one thing that was seen, and how it is.
func fact(what string, value any) {
	fmt.Printf("%s\t%s\n", what, strconv.Quote(strings.TrimRight(fmt.Sprint(value), "\n")))
}

// probe writes what a process sees of its container. What the Go runtime changes is for before.c.
func probe() {
	identity()
	status()
	mounts()
	namespaces()
	devices()
	files()
	parameters()
	accesses()
	keyring()
	processes()
}

func identity() {
	host, err := os.Hostname()
	fact("host name", fmt.Sprint(host, failure(err)))
	cwd, err := os.Getwd()
	fact("folder", fmt.Sprint(cwd, failure(err)))
	fact("first process", os.Getpid() == 1)
	fact("parent is outside", os.Getppid() == 0)
	env := os.Environ()
	slices.Sort(env)
	fact("environment", strings.Join(env, "\n"))
	interfaces, err := net.Interfaces()
	var names []string
	for _, i := range interfaces {
		if !isOfAnAgent(i.Name) {
			names = append(names, i.Name)
		}
	}
	fact("interfaces", fmt.Sprint(names, failure(err)))
}

// isOfAnAgent reports whether the interface is one that an agent makes on the host for its pods: it
// comes and goes with pods of others.
func isOfAnAgent(name string) bool {
	return strings.HasPrefix(name, "veth") || strings.HasPrefix(name, "berth")
}

// status is what /proc/self/status tells that does not differ from run to run.
func status() {
	for line := range strings.Lines(read("/proc/self/status")) {
		k, v, _ := strings.Cut(line, ":")
		switch k {
		case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters",
			"Speculation_Store_Bypass", "SpeculationIndirectBranch", "Cpus_allowed_list", "Mems_allowed_list", "TracerPid":
			fact("status "+k, strings.Join(strings.Fields(v), " "))
		case "NSpid":
			fact("status NSpid", len(strings.Fields(v)))
		}
	}
}

// mounts are those of /proc/self/mountinfo, without the numbers that tell them apart.
func mounts() {
	seen := map[string]int{}
	for line := range strings.Lines(read("/proc/self/mountinfo")) {
		f := strings.Fields(line)
		end := slices.Index(f, "-")
		var shared []string
		for _, o := range f[6:end] {
			kind, _, _ := strings.Cut(o, ":")
			shared = append(shared, kind)
		}
		var super []string
		for o := range strings.SplitSeq(f[end+3], ",") {
			if k, _, ok := strings.Cut(o, "="); ok && strings.HasSuffix(k, "dir") { // where a layer lies
				o = k
			}
			super = append(super, o)
		}
		seen[f[4]]++
		what := "mount " + f[4]
		if n := seen[f[4]]; n > 1 {
			what += " " + strconv.Itoa(n)
		}
		fact(what, fmt.Sprintf("%s of %s of %s, %s, %s, %q", f[3], f[end+2], f[end+1], f[5], strings.Join(super, ","), strings.Join(shared, " ")))
	}
}

func namespaces() {
	for _, n := range names("/proc/self/ns") {
		at, err := os.Readlink("/proc/self/ns/" + n)
		fact("namespace "+n, at+failure(err))
	}
}

// devices are what is in /dev, but for the terminals of this moment and what somebody has put into
// the pod's memory.
func devices() {
	err := filepath.WalkDir("/dev", func(path string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if err != nil {
			fact("device "+path, err)
			return nil
		}
		link, _ := os.Readlink(path)
		fact("device "+path, fmt.Sprintf("mode %o, %d:%d, owner %d:%d, %s", st.Mode, unix.Major(st.Rdev), unix.Minor(st.Rdev), st.Uid, st.Gid, link))
		if path == "/dev/shm" || path == "/dev/pts" || path == "/dev/hugepages" {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		fact("devices", err)
	}
}

func files() {
	for _, p := range []string{
		"/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/proc/self/oom_score_adj", "/proc/self/cgroup", "/proc/self/attr/current",
		"/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/setgroups", "/proc/self/timens_offsets", "/proc/self/coredump_filter", "/proc/self/loginuid",
		"/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname", "/proc/sys/kernel/shmmax", "/proc/sys/kernel/shm_rmid_forced",
		"/proc/sys/kernel/msgmax", "/proc/sys/kernel/sem", "/proc/sys/fs/mqueue/msg_max", "/proc/sys/net/ipv4/ip_forward",
		"/proc/sys/net/ipv4/ip_unprivileged_port_start", "/proc/sys/net/ipv4/ping_group_range", "/proc/sys/net/ipv4/tcp_syncookies", "/volume/file",
	} {
		fact("file "+p, read(p))
	}
	for _, dir := range []string{"/", "/sys/fs/cgroup", "/sys/class/net", "/volume", "/image"} {
		fact("folder "+dir, strings.Join(slices.DeleteFunc(names(dir), isOfAnAgent), " "))
	}
	limits, _ := filepath.Glob("/sys/fs/cgroup/*/*")
	for _, p := range append(limits, "/sys/fs/cgroup/pids.max") {
		switch filepath.Base(p) {
		case "cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.rt_runtime_us", "cpu.idle", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes",
			"memory.soft_limit_in_bytes", "memory.kmem.limit_in_bytes", "memory.oom_control", "memory.swappiness", "memory.use_hierarchy", "memory.move_charge_at_immigrate",
			"pids.max", "cpuset.cpus", "cpuset.mems", "cpuset.cpu_exclusive", "cpuset.mem_exclusive", "devices.list", "blkio.weight", "freezer.state", "notify_on_release",
			"net_cls.classid", "net_prio.ifpriomap":
			fact("cgroup "+p, read(p))
		default:
			if strings.HasPrefix(filepath.Base(p), "hugetlb.") && strings.HasSuffix(p, "limit_in_bytes") {
				fact("cgroup "+p, read(p))
			}
		}
	}
	limits, _ = filepath.Glob("/sys/fs/cgroup/*.*") // of version 2
	for _, p := range limits {
		switch suffix := filepath.Ext(p); suffix {
		case ".max", ".min", ".low", ".high", ".weight", ".cpus", ".mems", ".group", ".type", ".idle", ".burst", ".partition", ".freeze", ".subtree_control":
			fact("cgroup "+p, read(p))
		}
	}
}

// parameters are the kernel's, of the namespaces for network, IPC and host names. Those that count
// or that a program changes at any time are left out.
func parameters() {
	for _, dir := range []string{"/proc/sys/net", "/proc/sys/fs/mqueue", "/proc/sys/kernel", "/proc/sys/user"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			name := filepath.Base(path)
			switch {
			case err != nil:
				fact("parameter "+path, err)
				return fs.SkipDir
			case d.IsDir() && isOfAnAgent(name):
				return fs.SkipDir
			case d.IsDir() || dir == "/proc/sys/kernel" && !slices.ContainsFunc([]string{"shm", "msg", "sem", "host", "domain"}, func(p string) bool { return strings.HasPrefix(name, p) }):
			case strings.Contains(path, "nf_conntrack_") || name == "stable_secret" || name == "flush":
			default:
				fact("parameter "+path, read(path))
			}
			return nil
		})
		if err != nil {
			fact("parameters of "+dir, err)
		}
	}
}

// accesses are what the process may do: open, read and write what lies at a path.
func accesses() {
	for _, p := range []string{
		"/proc/acpi", "/proc/asound", "/proc/bus", "/proc/fs", "/proc/interrupts", "/proc/irq", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/scsi", "/proc/sched_debug", "/proc/sys", "/proc/sysrq-trigger", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap",
		"/sys/firmware", "/sys/fs/cgroup", "/plain", "/nowhere", "/etc/passwd", "/secret",
	} {
		var st unix.Stat_t
		err := unix.Stat(p, &st)
		kind := fmt.Sprintf("mode %o, device %d:%d, %s", st.Mode&unix.S_IFMT, unix.Major(st.Rdev), unix.Minor(st.Rdev), failure(err))
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			entries, err := os.ReadDir(p)
			kind += fmt.Sprintf("empty %t %s", len(entries) == 0, failure(err))
		} else {
			for _, flag := range []int{unix.O_RDONLY, unix.O_WRONLY} {
				fd, err := unix.Open(p, flag|unix.O_CLOEXEC, 0)
				if err == nil {
					unix.Close(fd)
				}
				kind += fmt.Sprintf("open %d: %s, ", flag, failure(err))
			}
		}
		fact("path "+p, kind)
	}
	folders := []string{"/", "/dev", "/dev/shm", "/dev/mqueue", "/etc", "/proc/sys/kernel", "/sys", "/tmp", "/volume", "/volume/below", "/readonly", "/readonly/below", "/image", "/strict", "/memory"}
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*")
	for _, dir := range append(folders, hierarchies...) {
		if st, err := os.Stat(dir); err == nil && !st.IsDir() {
			continue
		}
		name := filepath.Join(dir, "written-"+strconv.Itoa(os.Getpid()))
		err := os.Mkdir(name, 0o700)
		if err == nil {
			os.Remove(name)
			err = nil
		}
		fact("make a folder in "+dir, strings.ReplaceAll(failure(err), name, dir))
	}
	for _, p := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/console", "/dev/whole", "/dev/thing"} {
		f, err := os.OpenFile(p, os.O_RDWR|syscall.O_NOCTTY, 0)
		if err == nil {
			f.Close()
		}
		fact("open "+p, failure(err))
	}
	fact("make a disk", failure(syscall.Mknod("/tmp/disk", syscall.S_IFBLK|0o600, 8<<8)))
	f, err := os.Open("/tmp/disk")
	if err == nil {
		f.Close()
	}
	fact("open a disk", failure(err))
	os.Remove("/tmp/disk")
	fact("mount", failure(unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "")))
	fact("unmount", failure(unix.Unmount("/tmp", 0)))
	fact("priority", failure(unix.Setpriority(unix.PRIO_PROCESS, 0, -1)))
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	if err == nil {
		unix.Close(s)
	}
	fact("raw socket", failure(err))
}

// keyring: a container must not have the keys of who started it.
func keyring() {
	id, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	if err != nil {
		fact("session keyring", err)
		return
	}
	text, err := unix.KeyctlString(unix.KEYCTL_DESCRIBE, id)
	fact("session keyring", text+failure(err))
}

// processes are all that are seen, by their arguments.
func processes() {
	var seen []string
	found, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range found {
		args := strings.Split(strings.TrimRight(read(dir+"/cmdline"), "\x00"), "\x00")
		seen = append(seen, strings.Join(args[:min(2, len(args))], " "))
	}
	slices.Sort(seen)
	if len(seen) > 20 {
		fact("processes", "those of the host")
		return
	}
	fact("processes", strings.Join(seen, ", "))
	fact("first process's program", read("/proc/1/comm"))
}
