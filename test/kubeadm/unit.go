package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// unitSocket is where the stand-in for systemd is told what to do.
const unitSocket = "/run/kubeadm-cluster.sock"

// restartAfter is the pause before a kubelet that has ended is started again, as RestartSec.
const restartAfter = time.Second

// unit is a stand-in for systemd with one unit, kubelet: it does what docs/kubelet.service says,
// and what kubeadm asks of systemctl.
type unit struct {
	file string // the unit file
	log  io.Writer

	mu      sync.Mutex
	wanted  bool          // guarded by mu
	running *exec.Cmd     // guarded by mu; nil between two lives
	ended   chan struct{} // guarded by mu; closed when running has ended
	wake    chan struct{} // holds one token: wanted or running has changed
}

func newUnit(file string, log io.Writer) *unit {
	return &unit{file: file, log: log, wanted: true, wake: make(chan struct{}, 1)}
}

// run starts the unit whenever it is wanted and does not run.
func (u *unit) run(ctx context.Context) {
	for {
		pause := restartAfter
		if err := u.start(); err != nil {
			fmt.Fprintln(u.log, "kubelet.service:", err)
		}
		u.mu.Lock()
		ended := u.ended
		u.mu.Unlock()
		if ended != nil {
			select {
			case <-ended:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-u.wake:
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

func (u *unit) start() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.wanted || u.running != nil {
		return nil
	}
	cmd, err := unitCommand(u.file)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = u.log, u.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	u.running, u.ended = cmd, ended
	go func() {
		err := cmd.Wait()
		fmt.Fprintln(u.log, "kubelet.service: ended:", err)
		u.mu.Lock()
		defer u.mu.Unlock()
		u.running, u.ended = nil, nil
		close(ended)
	}()
	return nil
}

// stop ends the program and waits for it; pods go on (KillMode=process).
func (u *unit) stop() {
	u.mu.Lock()
	u.wanted = false
	cmd, ended := u.running, u.ended
	u.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Signal(syscall.SIGTERM) // one that has ended is what we want
		<-ended
	}
}

// want has the unit run.
func (u *unit) want() {
	u.mu.Lock()
	u.wanted = true
	u.mu.Unlock()
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// do is what systemctl does with the unit: its output, and whether it exits with 0.
func (u *unit) do(verb string) (out string, ok bool) {
	switch verb {
	case "start":
		u.want()
	case "stop":
		u.stop()
	case "restart":
		u.stop()
		u.want()
	case "daemon-reload", "is-enabled":
	case "is-active", "status":
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.running == nil {
			return "activating\n", false
		}
		return "active\n", true
	default:
		return "unknown verb " + verb + "\n", false
	}
	return "", true
}

// serve answers systemctl.
func (u *unit) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			verb, err := bufio.NewReader(c).ReadString('\n')
			if err != nil {
				return
			}
			out, ok := u.do(strings.TrimSpace(verb))
			fmt.Fprintf(c, "%v\n%s", ok, out)
		}()
	}
}

// systemctl is the client: systemctl VERB [kubelet].
func systemctl(_ context.Context, args []string) error {
	if len(args) == 0 || len(args) > 1 && strings.TrimSuffix(args[1], ".service") != "kubelet" {
		return fmt.Errorf("there is no unit but kubelet here: %q", args)
	}
	c, err := net.Dial("unix", unitSocket)
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Fprintln(c, args[0])
	answer, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	ok, out, _ := bytes.Cut(answer, []byte("\n"))
	os.Stdout.Write(out)
	if string(ok) != "true" {
		return exitCode(3)
	}
	return nil
}

// unitCommand reads a unit file as systemd.exec(5) has it: Environment=, EnvironmentFile=- and
// ExecStart= with $VARIABLES, each of which is split at blanks.
func unitCommand(file string) (*exec.Cmd, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	env, line := map[string]string{}, ""
	for l := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(l), "=")
		switch key {
		case "Environment":
			setVariable(env, value)
		case "EnvironmentFile":
			b, _ := os.ReadFile(strings.TrimPrefix(value, "-")) // one that is not there is left out
			for l := range strings.Lines(string(b)) {
				setVariable(env, strings.TrimSpace(l))
			}
		case "ExecStart":
			line = value
		}
	}
	words := strings.Fields(os.Expand(line, func(name string) string { return env[name] }))
	if len(words) == 0 {
		return nil, fmt.Errorf("%s has no ExecStart", file)
	}
	return exec.Command(words[0], words[1:]...), nil
}

// setVariable takes NAME=VALUE, all of it or the value in quotes.
func setVariable(env map[string]string, assignment string) {
	name, value, ok := strings.Cut(strings.Trim(assignment, `"`), "=")
	if ok {
		env[name] = strings.Trim(value, `"`)
	}
}
