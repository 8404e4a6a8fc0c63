package main

import (
	"fmt"
	"os"
	osexec "os/exec"
	"strings"
	"syscall"
	"time"
)

// limits does what is tried with limits and devices, and returns the exit code.
func limits(args []string) int {
	switch args[0] {
	case "eat":
		for args[1] != "" {
			if _, err := os.Stat(args[1]); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		for kept := [][]byte{}; ; {
			block := make([]byte, 1<<20)
			for i := 0; i < len(block); i += 4096 {
				block[i] = 1
			}
			kept = append(kept, block)
		}
	case "feed":
		err := osexec.Command("/payload", "eat", args[1]).Run()
		fmt.Println("the other ended:", err)
		if args[1] == "" {
			return 0
		}
		for {
			time.Sleep(time.Hour)
		}
	case "spin":
		for n := 0; n >= 0; n = (n + 1) % 1000 {
			_ = n
		}
	}
	return device(args[1])
}

// device tells what a device is, and how it can be opened.
func device(path string) int {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Printf("mode %o owner %d:%d number %d:%d", st.Mode, st.Uid, st.Gid, st.Rdev>>8&0xfff, st.Rdev&0xff)
	for _, how := range []struct {
		name string
		flag int
	}{{"r", os.O_RDONLY}, {"w", os.O_WRONLY}, {"rw", os.O_RDWR}} {
		f, err := os.OpenFile(path, how.flag|syscall.O_NONBLOCK, 0)
		if err == nil {
			f.Close()
		}
		fmt.Printf(" %s:%s", how.name, strings.TrimPrefix(failure(err), "open "+path+": "))
	}
	fmt.Println()
	return 0
}
