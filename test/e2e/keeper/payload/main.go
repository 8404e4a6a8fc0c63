// Payload is the program of the containers that test/e2e/keeper runs.
//
//	payload sleep              nothing, until it is killed
//	payload exit MS CODE       writes "bye" after MS milliseconds, and ends with CODE
//	payload lines N CODE       writes N numbered lines and "bye", and ends with CODE
//	payload write              writes numbered lines until it is killed
//	payload look               writes what a container sees of itself, as JSON
//	payload say OUT ERR CODE   writes OUT and ERR, and ends with CODE
//	payload cat                copies its input to its output
//	payload take               reads a line, and ends with its length
//	payload flood N            writes N bytes
//	payload signal N           sends itself a signal
//	payload reopen             writes to /dev/stdout and /dev/stderr, opened by their names
//	payload leave CODE         leaves a process with its output behind for a moment, and ends with CODE
//	payload tty                tells of its terminal, again when the size changes, and ends after a line of input
//	payload read PATH...       writes what is in files
//	payload owners             tells who files belong to, and what root of a user namespace may do
//	payload swap A B           exchanges two files until it is killed
//	payload key NAME           looks for a key of its session, and ends with 3 if there is none
//	payload traced CODE        has its parent trace it, stops, writes "bye", and ends with CODE
//	payload calls JSON         tells the errno of each system call of a list
//	payload hunt MS            tells of processes beside it that have more rights than itself
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) < 2 || os.Args[1] != "traced" {
		runtime.UnlockOSThread()
	}
	args := append(os.Args[1:], "", "", "")
	first, _ := strconv.Atoi(args[1])
	code, _ := strconv.Atoi(args[2])
	switch args[0] {
	case "sleep":
		for { // a select without cases is a deadlock to the Go runtime
			time.Sleep(time.Hour)
		}
	case "exit":
		time.Sleep(time.Duration(first) * time.Millisecond)
	case "lines":
		lines(first, time.Millisecond)
	case "write":
		lines(1<<30, 2*time.Millisecond)
	case "look":
		if err := json.NewEncoder(os.Stdout).Encode(look()); err != nil {
			panic(err)
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
		for {
			if err := unix.Renameat2(unix.AT_FDCWD, args[1], unix.AT_FDCWD, args[2], unix.RENAME_EXCHANGE); err != nil {
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
	case "say", "cat", "take", "flood", "signal", "reopen", "leave", "tty":
		os.Exit(exec(args))
	default:
		panic(fmt.Sprintf("unknown: %q", os.Args))
	}
	fmt.Println("bye")
	os.Exit(code)
}

func lines(n int, pause time.Duration) {
	for i := range n {
		fmt.Println("line", i)
		time.Sleep(pause)
	}
}

// Seen is what a container sees of itself.
type Seen struct {
	Hostname          string
	PID               int
	UID, GID          int
	Groups            []int
	Cwd               string
	Env               []string
	Status            map[string]string // lines of /proc/self/status
	Score             string
	Files             map[string]string // what is in some files, or the error
	Writes            map[string]string // the error of making a file there
	Devices           map[string]string // the error of opening them
	Mounts            []string
	Root, Dev, Cgroup []string // what is in the folders
	Fds               []string
}

func look() Seen {
	fds := descriptors() // before this program opens some
	s := Seen{Fds: fds, PID: os.Getpid(), UID: os.Getuid(), GID: os.Getgid(), Env: os.Environ(), Status: map[string]string{}}
	s.Files, s.Writes, s.Devices = map[string]string{}, map[string]string{}, map[string]string{}
	s.Hostname, _ = os.Hostname()
	s.Groups, _ = os.Getgroups()
	s.Cwd, _ = os.Getwd()
	s.Score = read("/proc/self/oom_score_adj")
	for line := range strings.Lines(read("/proc/self/status")) {
		k, v, _ := strings.Cut(line, ":")
		s.Status[k] = strings.TrimSpace(v)
	}
	for _, p := range []string{"/etc/hostname", "/etc/resolv.conf", "/proc/keys", "/proc/timer_list", "/volume/file"} {
		s.Files[p] = read(p)
	}
	for _, p := range []string{"/", "/dev/shm", "/proc/sys/kernel", "/sys/fs/cgroup/memory", "/volume", "/readonly", "/tmp"} {
		s.Writes[p] = failure(os.WriteFile(p+"/written", []byte("x"), 0o600))
	}
	for _, p := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/ptmx"} {
		f, err := os.OpenFile(p, os.O_RDWR, 0)
		if err == nil {
			f.Close()
		}
		s.Devices[p] = failure(err)
	}
	s.Devices["mknod of a disk"] = failure(syscall.Mknod("/tmp/disk", syscall.S_IFBLK|0o600, 8<<8))
	if f, err := os.Open("/tmp/disk"); err != nil {
		s.Devices["open of a disk"] = failure(err)
	} else {
		f.Close()
		s.Devices["open of a disk"] = ""
	}
	for line := range strings.Lines(read("/proc/self/mountinfo")) {
		f := strings.Fields(line)
		s.Mounts = append(s.Mounts, f[4]+" "+f[5])
	}
	s.Root, s.Dev, s.Cgroup = names("/"), names("/dev"), names("/sys/fs/cgroup")
	return s
}

// descriptors are the open files beside standard input, output and error.
func descriptors() []string {
	out := []string{}
	for fd := 3; fd < 256; fd++ {
		if at, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err == nil {
			out = append(out, at)
		}
	}
	return out
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
