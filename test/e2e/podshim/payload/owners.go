package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// owners tells who the files of a container belong to, and what root of a user namespace may do.
func owners() {
	for _, f := range []string{"uid_map", "gid_map", "setgroups", "oom_score_adj"} {
		fmt.Println(f+":", strings.Join(strings.Fields(read("/proc/self/"+f)), " "))
	}
	for _, pattern := range []string{"/", "/*", "/dev", "/dev/*", "/dev/pts/*", "/etc/*", "/volume/*", "/made", "/made/*", "/made/readonly/*", "/proc/self/status", "/sys/fs/cgroup", "/proc/sys/kernel/*max", "/proc/sys/net/ipv4/ip_forward"} {
		all, _ := filepath.Glob(pattern)
		for _, at := range all {
			var st syscall.Stat_t
			err := syscall.Lstat(at, &st)
			fmt.Printf("%s: %o of %d:%d %v\n", at, st.Mode, st.Uid, st.Gid, err)
		}
	}
	for _, at := range []string{"/volume/file", "/volume/users", "/etc/hostname"} {
		fmt.Println(at+":", read(at))
	}
	for _, at := range []string{"/volume/made", "/made/readonly/made", "/etc/hostname", "/tmp/made", "/made/made", "/made"} {
		fmt.Println(at+":", failure(os.WriteFile(at, []byte("x\n"), 0o600)))
	}
	for _, t := range []struct {
		what string
		try  func() error
	}{
		{"chown", func() error { return os.Chown("/tmp/made", 7, 8) }},
		{"chown far", func() error { return os.Chown("/tmp/made", 70000, 8) }},
		{"mknod", func() error { return syscall.Mknod("/tmp/null", syscall.S_IFCHR|0o666, 1<<8|3) }},
		{"unmount", func() error { return syscall.Unmount("/volume", 0) }},
		{"unmask", func() error { return syscall.Unmount("/proc/keys", 0) }},
		{"mount", func() error { return syscall.Mount("tmpfs", "/tmp", "tmpfs", 0, "") }},
		{"remount", func() error { return syscall.Mount("", "/made/readonly", "", syscall.MS_REMOUNT|syscall.MS_BIND, "") }},
		{"proc", func() error { return syscall.Mount("proc", "/tmp", "proc", 0, "") }},
		{"sys", func() error { return syscall.Mount("sysfs", "/tmp", "sysfs", 0, "") }},
		{"host name", func() error { return syscall.Sethostname([]byte("mine")) }},
		{"machine", func() error { return os.WriteFile("/proc/sys/kernel/panic", []byte("0"), 0) }},
		{"own network", func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }},
		{"priority", func() error { return syscall.Setpriority(syscall.PRIO_PROCESS, 0, -5) }},
	} {
		fmt.Println(t.what+":", failure(t.try()))
	}
}
