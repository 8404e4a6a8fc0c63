package main

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// reach tries to get hold of each process in its PID namespace whose user is outside of its user
// namespace, for some milliseconds. It reports whether there was one, and what it could do.
func reach(ms int) int {
	runtime.LockOSThread()
	seen, could := 0, map[string]bool{}
	for deadline := time.Now().Add(time.Duration(ms) * time.Millisecond); time.Now().Before(deadline); {
		entries, _ := filepath.Glob("/proc/[0-9]*")
		for _, e := range entries {
			dir, err := unix.Open(e, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				continue
			}
			if pid, _ := strconv.Atoi(filepath.Base(e)); outside(dir) {
				seen++
				grip(pid, dir, could)
			}
			unix.Close(dir)
		}
	}
	for c := range could {
		fmt.Println(c)
	}
	fmt.Printf("seen: %t\n", seen > 0)
	return 0
}

// nobody is the id of each user that a user namespace has no id for.
const nobody = "65534"

// outside reports whether the user of a process is outside of the user namespace.
func outside(dir int) bool {
	for line := range strings.Lines(read(fmt.Sprintf("/proc/self/fd/%d/status", dir))) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Uid:" {
			return f[1] == nobody
		}
	}
	return false
}

// grip tries all that gives power over a process, or shows what it has open, and notes what worked.
func grip(pid, dir int, could map[string]bool) {
	try := func(what string, err error) {
		if err == nil {
			could[what] = true
		}
	}
	for _, name := range []string{"mem", "maps", "environ", "auxv", "stack", "syscall", "fd", "map_files"} {
		fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil && (name == "fd" || name == "map_files") {
			_, err = unix.ReadDirent(fd, make([]byte, 4096))
		} else if err == nil {
			n := 0
			if n, err = unix.Read(fd, make([]byte, 64)); err == nil && n == 0 {
				err = unix.ENODATA
			}
		}
		if fd >= 0 {
			unix.Close(fd)
		}
		try("read "+name, err)
	}
	for _, name := range []string{"exe", "cwd", "root", "fd/3", "fd/4", "fd/5", "ns/mnt", "ns/user"} {
		_, err := unix.Readlinkat(dir, name, make([]byte, 256))
		try("read link "+name, err)
	}
	fd, err := unix.Openat(dir, "oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte("1000"))
		unix.Close(fd)
	}
	try("write oom_score_adj", err)
	if pidfd, err := unix.PidfdOpen(pid, 0); err == nil {
		// By the pidfd, as the process may be another one by now.
		if outside(dir) {
			for n := range 8 {
				_, err := unix.PidfdGetfd(pidfd, n, 0)
				try("get file "+strconv.Itoa(n), err)
			}
			try("stop", unix.PidfdSendSignal(pidfd, unix.SIGSTOP, nil, 0))
			try("enter its mounts", unix.Setns(pidfd, unix.CLONE_NEWNS))
		}
		unix.Close(pidfd)
	}
	if outside(dir) {
		_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0)
		if errno == 0 {
			try("trace", nil)
		}
		_, _, errno = unix.Syscall6(unix.SYS_PRLIMIT64, uintptr(pid), unix.RLIMIT_CORE, 0, 0, 0, 0)
		if errno == 0 && outside(dir) {
			could["ask for its limits"] = true
		}
	}
}
