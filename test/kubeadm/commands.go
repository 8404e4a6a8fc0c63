package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// upCommand is up DIR [--detach].
func upCommand(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("up DIR")
	}
	dir, err := filepath.Abs(args[0])
	if err != nil {
		return err
	}
	if len(args) > 1 && args[1] == "--detach" {
		return upDetached(dir)
	}
	own, err := os.Executable()
	if err != nil {
		return err
	}
	p, err := findPrograms(own, os.Getenv("KUBERNETES_VERSION"), os.Getenv("KUBELET_SERVICE"))
	if err != nil {
		return err
	}
	c := &cluster{dir: dir, programs: p, log: os.Stderr}
	defer func() {
		if err := c.end(); err != nil {
			fmt.Fprintln(os.Stderr, "clean up:", err)
		}
	}()
	if err := c.up(ctx); err != nil {
		return err
	}
	fmt.Printf("export KUBECONFIG='%s'\n", c.kubeconfig())
	<-ctx.Done()
	return nil
}

// up makes the cluster.
func (c *cluster) up(ctx context.Context) error {
	if err := c.start(ctx); err != nil {
		return err
	}
	if err := os.WriteFile(c.dir+"/pid", fmt.Append(nil, os.Getpid()), 0o600); err != nil {
		return err
	}
	if err := c.init(ctx); err != nil {
		return err
	}
	return c.join(ctx, c.nodes[1])
}

// upDetached runs up in a session of its own and returns when it has printed where the kubeconfig
// is.
func upDetached(dir string) error {
	log, err := os.Create(dir + ".log")
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/proc/self/exe", "up", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line := make([]byte, 4096)
	n, err := out.Read(line)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the cluster has ended (%w); see %s", cmd.Wait(), log.Name())
	}
	os.Stdout.Write(line[:n])
	return err
}

// downCommand is down DIR.
func downCommand(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("down DIR")
	}
	dir, err := filepath.Abs(args[0])
	if err != nil {
		return err
	}
	if b, err := os.ReadFile(dir + "/pid"); err == nil {
		if err := endProcess(string(b)); err != nil {
			return err
		}
	}
	var errs []error
	for _, m := range nodes { // those of one that was killed
		errs = append(errs, removeCgroups(cgroupOf(filepath.Join(dir, m.name))))
	}
	return errors.Join(append(errs, os.RemoveAll(dir), os.RemoveAll(dir+".log"))...)
}

// endProcess ends a process of this program and waits until it has ended.
func endProcess(pid string) error {
	number, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(number, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	theirs, err := os.Stat("/proc/" + pid + "/exe")
	if err != nil {
		return nil // it has ended meanwhile
	}
	ours, err := os.Stat("/proc/self/exe")
	if err != nil || !os.SameFile(ours, theirs) {
		return err // the number is another process's
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// runCommand is run DIR NODE ARG…
func runCommand(ctx context.Context, args []string) error {
	if len(args) < 3 {
		return errors.New("run DIR NODE PROGRAM [ARGUMENT…]")
	}
	cmd, err := nodeProgram(ctx, filepath.Join(args[0], args[1]), append([]string{"env"}, args[2:]...)...)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exitCode(exit.ExitCode())
	}
	return err
}
