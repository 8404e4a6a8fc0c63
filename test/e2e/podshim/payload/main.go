// Payload is the program of the containers that test/e2e/podshim runs.
//
//	payload sleep              nothing, until it is killed
//	pause                      the same: the process of a pod by stock shims
//	payload exit MS CODE       writes "bye" after MS milliseconds, and ends with CODE
//	payload lines N CODE       writes N numbered lines and "bye", and ends with CODE
//	payload write              writes numbered lines until it is killed
//	payload probe [sleep]      writes what a process sees of its container, a fact on each line, and sleeps if asked to
//	payload say OUT ERR CODE   writes OUT and ERR, and ends with CODE
//	payload cat                copies its input to its output
//	payload take               reads a line, and ends with its length
//	payload flood N            writes N bytes
//	payload kill PID N         sends a process a signal
//	payload chmod PATH MODE    changes the mode of a file
//	payload touch PATH         makes a file
//	payload look PATH          ends with 1 if there is no such file
//	payload signal N           sends itself a signal
//	payload reopen             writes to /dev/stdout and /dev/stderr, opened by their names
//	payload leave CODE         leaves a process with its output behind for a moment, and ends with CODE
//	payload eat FILE           takes memory without end, when there is such a file
//	payload feed FILE          has another process do so, and tells how that ended
//	payload spin               takes a processor
//	payload device PATH        tells what a device is, and how it can be opened
//	payload abandon MS CODE    leaves processes behind that do not end, and ends with CODE after MS milliseconds
//	payload chain              starts itself, and ends
//	payload mount PATH         mounts something on PATH, and sleeps
//	payload tty                tells of its terminal, again when the size changes, and ends after a line of input
//	payload read PATH...       writes what is in files
//	payload owners             tells who files belong to, and what root of a user namespace may do
//	payload swap A B...        exchanges files, two by two, until it is killed
//	payload key NAME           looks for a key of its session, and ends with 3 if there is none
//	payload traced CODE        has its parent trace it, stops, writes "bye", and ends with CODE
//	payload calls JSON         tells the errno of each system call of a list
//	payload confined           tells of its AppArmor profile, and what it may do
//	payload masks PATH...      tells what is at paths, and whether it can be written to
//	payload program FILE       changes the program file of each process that is a pod shim's, until there is such a file
//	payload groups             writes to the cgroups that it sees
//	payload lend SOCKET        gives its output to who borrows, and ends
//	payload borrow SOCKET      writes to the output of another one as long as it is read
//	payload save PATH TEXT N   writes the text to a file, and exits with code N
//	payload once PATH N [sleep]  creates a file and exits with code N; if the file exists, exits with code 0, or sleeps
//	payload ignore N           ignores a signal, and sleeps
//	payload reach MS           reports what it can do to processes of users outside of its user namespace
//	payload hunt MS            tells of processes beside it that have more rights than itself
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) < 2 || os.Args[1] != "traced" && os.Args[1] != "program" {
		runtime.UnlockOSThread()
	}
	args := append(os.Args[1:], "", "", "")
	if os.Args[0] == "/pause" {
		args[0] = "sleep"
	}
	first, _ := strconv.Atoi(args[1])
	code, _ := strconv.Atoi(args[2])
	switch args[0] {
	case "sleep":
		sleep()
	case "exit":
		time.Sleep(time.Duration(first) * time.Millisecond)
	case "lines":
		lines(first, time.Millisecond)
	case "write":
		lines(1<<30, 2*time.Millisecond)
	case "abandon":
		abandon()
		time.Sleep(time.Duration(first) * time.Millisecond)
	case "chain":
		chain()
		return
	case "mount":
		if err := unix.Mount("tmpfs", args[1], "tmpfs", 0, ""); err != nil {
			panic(err)
		}
		sleep()
	case "probe":
		probe()
		if args[1] == "sleep" {
			sleep()
		}
		return
	case "read":
		for _, p := range os.Args[2:] {
			fmt.Printf("%s: %s", p, read(p))
		}
		return
	case "owners":
		owners()
		return
	case "swap":
		for i := 2; ; i = max(2, (i+2)%len(os.Args)) {
			if err := unix.Renameat2(unix.AT_FDCWD, os.Args[i], unix.AT_FDCWD, os.Args[i+1], unix.RENAME_EXCHANGE); err != nil {
				panic(err)
			}
		}
	case "key":
		if _, err := unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, "user", args[1], 0); errors.Is(err, unix.ENOKEY) {
			os.Exit(3)
		}
		return
	case "traced":
		syscall.RawSyscall(syscall.SYS_PTRACE, syscall.PTRACE_TRACEME, 0, 0)
		syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(syscall.SIGCONT))
		code = first
	case "calls":
		os.Exit(calls(args[1]))
	case "hunt":
		os.Exit(hunt(first))
	case "reach":
		os.Exit(reach(first))
	case "save", "once", "ignore", "say", "cat", "take", "flood", "signal", "reopen", "leave", "kill", "chmod", "touch", "look", "tty":
		os.Exit(exec(args))
	case "confined", "masks", "program", "groups", "lend", "borrow":
		os.Exit(attack(args))
	case "eat", "feed", "spin", "device":
		os.Exit(limits(args))
	default:
		panic(fmt.Sprintf("unknown: %q", os.Args))
	}
	fmt.Println("bye")
	os.Exit(code)
}

func sleep() {
	for { // a select without cases is a deadlock to the Go runtime
		time.Sleep(time.Hour)
	}
}

func lines(n int, pause time.Duration) {
	for i := range n {
		fmt.Println("line", i)
		time.Sleep(pause)
	}
}

func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func failure(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

func names(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
