package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// numbers are those of system calls that are tried. The first ones look at no argument.
var numbers = map[string]uintptr{
	"getpid": syscall.SYS_GETPID, "getppid": syscall.SYS_GETPPID, "getuid": syscall.SYS_GETUID, "geteuid": syscall.SYS_GETEUID, "getgid": syscall.SYS_GETGID,
	"getegid": syscall.SYS_GETEGID, "gettid": syscall.SYS_GETTID, "sched_yield": syscall.SYS_SCHED_YIELD,

	"mount": syscall.SYS_MOUNT, "umount2": syscall.SYS_UMOUNT2, "unshare": syscall.SYS_UNSHARE, "personality": syscall.SYS_PERSONALITY, "ptrace": syscall.SYS_PTRACE,
	"keyctl": syscall.SYS_KEYCTL, "add_key": syscall.SYS_ADD_KEY, "perf_event_open": syscall.SYS_PERF_EVENT_OPEN, "kexec_load": syscall.SYS_KEXEC_LOAD,
	"init_module": syscall.SYS_INIT_MODULE, "reboot": syscall.SYS_REBOOT, "swapon": syscall.SYS_SWAPON, "acct": syscall.SYS_ACCT, "syslog": syscall.SYS_SYSLOG,
	"quotactl": syscall.SYS_QUOTACTL, "fanotify_init": syscall.SYS_FANOTIFY_INIT, "chroot": syscall.SYS_CHROOT, "pivot_root": syscall.SYS_PIVOT_ROOT,
}

// Call is a system call that is tried: by its name, or by its number.
type Call struct {
	Name   string
	Number uintptr
	Args   [6]uint64
}

// calls tells the errno of each call of a list in JSON.
func calls(list string) int {
	var all []Call
	if err := json.Unmarshal([]byte(list), &all); err != nil {
		panic(err)
	}
	for _, c := range all {
		n := c.Number
		if c.Name != "" {
			n = numbers[c.Name]
			if n == 0 {
				panic(c.Name)
			}
		}
		a := c.Args
		_, _, errno := syscall.RawSyscall6(n, uintptr(a[0]), uintptr(a[1]), uintptr(a[2]), uintptr(a[3]), uintptr(a[4]), uintptr(a[5]))
		fmt.Printf("%s %d %x: %d\n", c.Name, c.Number, a, errno)
	}
	for line := range strings.Lines(read("/proc/self/status")) {
		for _, k := range []string{"NoNewPrivs:", "Seccomp", "Speculation", "Cap"} {
			if strings.HasPrefix(line, k) {
				fmt.Print(line)
			}
		}
	}
	return 0
}

// hunt looks at each process that comes to be beside it for a while, as soon as it can be seen. It
// tells of those that have other rights than itself, no filter, or files of the host open.
func hunt(ms int) int {
	own := rights(strconv.Itoa(os.Getpid()))
	seen, worse := map[string]bool{}, map[string]bool{}
	for deadline := time.Now().Add(time.Duration(ms) * time.Millisecond); time.Now().Before(deadline); {
		entries, _ := filepath.Glob("/proc/[0-9]*")
		for _, e := range entries {
			pid := filepath.Base(e)
			if r := rights(pid); r != "" && pid != strconv.Itoa(os.Getpid()) {
				seen[pid] = true
				if r != own {
					worse[fmt.Sprintf("rights %s, not %s", r, own)] = true
				}
				for _, at := range opened(pid) {
					worse["has "+at+" open"] = true
				}
			}
		}
	}
	for w := range worse {
		fmt.Println(w)
	}
	fmt.Printf("seen: %t\n", len(seen) > 0)
	return 0
}

// rights are what a process may do. They are read again until they are of one moment.
func rights(pid string) string {
	var out []string
	for line := range strings.Lines(read("/proc/" + pid + "/status")) {
		for _, k := range []string{"CapPrm:", "CapEff:", "CapBnd:", "Seccomp:"} {
			if strings.HasPrefix(line, k) {
				out = append(out, strings.Join(strings.Fields(line), " "))
			}
		}
	}
	return strings.Join(out, ", ")
}

// opened are what a process has open beside its input and output that is no pipe or socket, and
// that has no name here.
func opened(pid string) []string {
	var out []string
	entries, _ := filepath.Glob("/proc/" + pid + "/fd/*")
	for _, e := range entries {
		at, err := os.Readlink(e)
		if fd, _ := strconv.Atoi(filepath.Base(e)); err != nil || fd < 3 || strings.Contains(at, ":[") {
			continue
		}
		open, gone := os.Stat(e)
		named, err := os.Stat(at)
		if still, _ := os.Readlink(e); gone == nil && still == at && (err != nil || !os.SameFile(open, named)) {
			out = append(out, at)
		}
	}
	return out
}
