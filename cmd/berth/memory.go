package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// letGo gives back what work took and rest does not need.
func letGo() {
	debug.FreeOSMemory()
	unmapProgram()
}

// unmapProgram takes the pages of the program's file out of the process: most of them were read once,
// by initializers, by a phase of the start, and by neighbours' reads (the kernel maps 64 KiB around each
// page that is read). They stay in the page cache, where the kernel may take them when it needs memory,
// and come back as they are used (madvise(2), MADV_DONTNEED on a file mapping). Pages that can be
// written are left alone.
func unmapProgram() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return // memory that is kept harms nobody
	}
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if from, to, ok := parseProgramMapping(lines.Text(), exe); ok {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}

// parseProgramMapping reads a line of /proc/PID/maps (proc(5)); ok is false unless it maps the program's file, not to be written.
func parseProgramMapping(line, exe string) (from, to uintptr, ok bool) {
	var perms, offset, device, inode string
	if n, err := fmt.Sscanf(line, "%x-%x %s %s %s %s", &from, &to, &perms, &offset, &device, &inode); err != nil || n != 6 {
		return 0, 0, false
	}
	_, path, _ := strings.Cut(line, "/")
	return from, to, "/"+path == exe && from < to && !strings.Contains(perms, "w")
}
