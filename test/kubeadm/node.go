package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// machine is what a node is called, and where it and its pods are, by both families: nodes are in
// the network between the two (RFC 2544, RFC 4193).
type machine struct{ name, address, podCIDR, address6, podCIDR6 string }

var nodes = []machine{
	{"berth-1", "198.18.250.1", "10.244.0.0/24", "fd00:18::1", "fd00:244::/64"},
	{"berth-2", "198.18.250.2", "10.244.1.0/24", "fd00:18::2", "fd00:244:0:1::/64"},
}

// node is a node from the outside.
type node struct {
	machine
	home    string
	process *exec.Cmd // the first process of its namespaces; ends with its standard input
	stdin   io.Closer
}

// startNode makes the namespaces of a node, with nothing running in them but the stand-in for
// systemd, which tries to start the kubelet.
func startNode(c *cluster, m machine) (*node, error) {
	n := &node{machine: m, home: filepath.Join(c.dir, m.name)}
	if err := n.prepare(c); err != nil {
		return nil, err
	}
	// A shell, which reaps the processes that others leave behind, as the first process of a
	// machine must.
	n.process = exec.Command("/bin/sh", "-c", `exec 3<&0; "$@" <&3 & wait $!`, "init", c.programs.own, "node", c.dir, m.name)
	n.process.Stderr = c.log
	n.process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWPID, Setsid: true}
	stdin, err := n.process.StdinPipe()
	if err != nil {
		return nil, err
	}
	n.stdin = stdin
	out, err := n.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := n.process.Start(); err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		return nil, errors.Join(fmt.Errorf("node %s says %q: %w", m.name, line, err), n.end())
	}
	return n, os.WriteFile(n.home+"/pid", fmt.Append(nil, n.process.Process.Pid), 0o600)
}

// prepare writes what the node finds on its disk.
func (n *node) prepare(c *cluster) error {
	if err := mkdirs(n.home+"/bin", n.home+"/patches"); err != nil {
		return err
	}
	p := c.programs
	for name, program := range map[string]string{
		"kubelet": p.berth, "berth": p.berth, "kubeadm": p.kubeadm, "kubectl": p.kubectl, "systemctl": p.own,
	} {
		if err := os.Symlink(program, filepath.Join(n.home, "bin", name)); err != nil {
			return err
		}
	}
	patch := "cgroupRoot: " + cgroupOf(n.home) + "\n"
	return errors.Join(
		os.WriteFile(n.home+"/patches/kubeletconfiguration+strategic.yaml", []byte(patch), 0o644),
		os.WriteFile(n.home+"/kubelet.service", p.service, 0o644),
	)
}

// end ends everything that runs on the node.
func (n *node) end() error {
	if n.process == nil {
		return nil
	}
	n.stdin.Close()
	_ = n.process.Process.Kill() // the kernel kills all of its namespace
	_ = n.process.Wait()         // killed
	return removeCgroups(cgroupOf(n.home))
}

// command is a program on a node, given by the folder of its cluster.
func nodeProgram(ctx context.Context, home string, program ...string) (*exec.Cmd, error) {
	pid, err := os.ReadFile(home + "/pid")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", string(pid), "--mount", "--net", "--uts", "--pid", "--wd=/", "--"}, program...)...)
	cmd.Env = append(os.Environ(), "PATH="+home+"/bin:"+os.Getenv("PATH"), "TMPDIR=/tmp", "KUBECONFIG=/etc/kubernetes/admin.conf")
	return cmd, nil
}

// run runs a program on the node and returns what it prints.
func (n *node) run(ctx context.Context, program ...string) (string, error) {
	cmd, err := nodeProgram(ctx, n.home, append([]string{"env"}, program...)...)
	if err != nil {
		return "", err
	}
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("%s: %q: %w: %s\n%s", n.name, program, err, tail(out.String(), 2000), tail(problems.String(), 4000))
	}
	return out.String(), err
}

func tail(s string, most int) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-most):]
}

// removeCgroups removes a cgroup of every hierarchy, with those below it. What ran there was killed
// and takes a moment to be gone.
func removeCgroups(cgroup string) error {
	var last error
	for range 100 {
		last = nil
		found, err := filepath.Glob("/sys/fs/cgroup/*" + cgroup)
		if err != nil {
			return err
		}
		for _, top := range append(found, "/sys/fs/cgroup"+cgroup) {
			last = errors.Join(last, removeCgroup(top))
		}
		if last == nil {
			return nil
		}
		<-time.After(100 * time.Millisecond)
	}
	return last
}

func removeCgroup(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for i := len(dirs) - 1; i >= 0 && err == nil; i-- {
		if err = unix.Rmdir(dirs[i]); errors.Is(err, unix.ENOENT) {
			err = nil
		}
	}
	return err
}

// connect joins two nodes by a cable, each the other's way to everywhere, and makes machines of
// them that forward packets, which kubeadm wants of an administrator. Each knows the way to the
// pods of the other.
func connect(ctx context.Context, a, b *node) error {
	cmd := exec.CommandContext(ctx, "ip", "link", "add", "eth0", "netns", strconv.Itoa(a.process.Process.Pid),
		"type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(b.process.Process.Pid))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%q: %w: %s", cmd.Args, err, out)
	}
	for _, end := range []struct{ near, far *node }{{a, b}, {b, a}} {
		near, far := end.near.machine, end.far.machine
		script := strings.NewReplacer("NEAR6", near.address6, "NEAR", near.address, "FAR6", far.address6, "FAR", far.address, "PODS6", far.podCIDR6, "PODS", far.podCIDR).Replace(`set -e
ip link set lo up
ip address add NEAR/24 dev eth0
ip address add NEAR6/64 dev eth0 nodad
ip link set eth0 up
ip route add default via FAR
ip route add default via FAR6
ip route add PODS via FAR
ip route add PODS6 via FAR6
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1`)
		if _, err := end.near.run(ctx, "sh", "-c", script); err != nil {
			return err
		}
	}
	return nil
}
