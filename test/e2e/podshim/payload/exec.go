package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// exec does what is tried by execs, and returns the exit code.
func exec(args []string) int {
	n, _ := strconv.Atoi(args[1])
	switch args[0] {
	case "save":
		if err := os.WriteFile(args[1], []byte(args[2]), 0o644); err != nil {
			fmt.Println(err)
			return 1
		}
		n, _ = strconv.Atoi(args[3])
		return n
	case "once":
		f, err := os.OpenFile(args[1], os.O_CREATE|os.O_EXCL, 0o644)
		if err == nil {
			f.Close()
			n, _ = strconv.Atoi(args[2])
			return n
		}
		if args[3] == "sleep" {
			sleep()
		}
		return 0
	case "ignore":
		signal.Ignore(syscall.Signal(n))
		sleep()
	case "say":
		fmt.Fprint(os.Stdout, args[1])
		fmt.Fprint(os.Stderr, args[2])
		n, _ = strconv.Atoi(args[3])
		return n
	case "cat":
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			return 1
		}
		fmt.Fprint(os.Stderr, "end")
		return 4
	case "take":
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		return len(line)
	case "flood":
		for block := bytes.Repeat([]byte("x"), 64<<10); n > 0; n -= len(block) {
			if _, err := os.Stdout.Write(block[:min(n, len(block))]); err != nil {
				return 1
			}
		}
		return 0
	case "signal":
		if err := syscall.Kill(os.Getpid(), syscall.Signal(n)); err != nil {
			return 1
		}
		select {}
	case "kill":
		sig, _ := strconv.Atoi(args[2])
		if err := syscall.Kill(n, syscall.Signal(sig)); err != nil {
			return 1
		}
		return 0
	case "chmod":
		mode, _ := strconv.ParseUint(args[2], 8, 32)
		if err := os.Chmod(args[1], os.FileMode(mode)); err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	case "touch":
		if err := os.WriteFile(args[1], nil, 0o600); err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	case "look":
		if _, err := os.Stat(args[1]); err != nil {
			return 1
		}
		return 0
	case "reopen":
		for _, path := range []string{"/dev/stdout", "/dev/stderr"} {
			if err := os.WriteFile(path, []byte(path), 0); err != nil {
				fmt.Println(err)
				return 1
			}
		}
		return 0
	case "leave":
		cmd := osexec.Command("/payload", "exit", "300", "0")
		cmd.Stdout = os.Stdout
		if err := cmd.Start(); err != nil {
			return 1
		}
		return n
	}
	return tty()
}

// tty tells of the terminal.
func tty() int {
	changed, lines := make(chan os.Signal, 8), make(chan string)
	signal.Notify(changed, syscall.SIGWINCH)
	name, err := os.Readlink("/proc/self/fd/0")
	group, e := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	fmt.Printf("%s %v, foreground %t %v, TERM %s\n", name, err, group == os.Getpid(), e, os.Getenv("TERM"))
	go func() {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		lines <- line
	}()
	for {
		size, err := unix.IoctlGetWinsize(1, unix.TIOCGWINSZ)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Printf("size %d %d\n", size.Row, size.Col)
		select {
		case <-changed:
		case line := <-lines:
			fmt.Printf("read %q\n", line)
			return 6
		}
	}
}

// abandon leaves processes behind with their output: some that sleep, and one that is another one
// every moment, each in a session of its own.
func abandon() {
	for _, what := range []string{"sleep", "sleep", "chain"} {
		start(what)
	}
}

// chain has another process do what this one does.
func chain() { start("chain") }

func start(what string) {
	cmd := osexec.Command("/payload", what)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
}
