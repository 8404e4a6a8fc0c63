//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/api/netns"
)

// Addresses of the two machines of a network of the test, which are for tests and documentation
// (RFC 2544, RFC 3849).
const (
	insideV4, outsideV4 = "198.19.7.1", "198.19.7.2"
	insideV6, outsideV6 = "2001:db8:7::1", "2001:db8:7::2"
)

// ownNetwork is a network namespace for a node, and another for a machine beside it. Folders of the
// node's network plugins are its own, too, so that neither network nor files of the host change.
type ownNetwork struct {
	n               *node
	inside, outside *exec.Cmd // has the namespace; ends with its standard input, and so with the test program
}

// inOwnNetwork has the node's agents that are started from now on run in a network of their own.
// The last one goes on until the test ends.
func (n *node) inOwnNetwork() *ownNetwork {
	n.t.Helper()
	o := &ownNetwork{n: n}
	o.inside = o.namespace(unix.CLONE_NEWNET | unix.CLONE_NEWNS)
	o.outside = o.namespace(unix.CLONE_NEWNET)
	overlay := n.place.Dir + "/etc"
	for _, dir := range []string{overlay, overlay + "/upper", overlay + "/work"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	o.run(o.inside, "mount", "--make-rslave", "/")
	// On a tmpfs, as an overlay does not lie on another.
	o.run(o.inside, "mount", "-t", "tmpfs", "tmpfs", overlay)
	o.run(o.inside, "mkdir", overlay+"/upper", overlay+"/work")
	o.run(o.inside, "mount", "-t", "overlay", "overlay", "-o", fmt.Sprintf("lowerdir=/etc,upperdir=%s/upper,workdir=%[1]s/work", overlay), "/etc")
	o.run(o.inside, "mount", "-t", "tmpfs", "tmpfs", "/opt")
	o.run(o.inside, "ip", "link", "add", "uplink", "type", "veth", "peer", "name", "uplink", "netns", fmt.Sprint(o.outside.Process.Pid))
	for where, addresses := range map[*exec.Cmd][2]string{o.inside: {insideV4 + "/24", insideV6 + "/64"}, o.outside: {outsideV4 + "/24", outsideV6 + "/64"}} {
		o.run(where, "ip", "link", "set", "lo", "up")
		for _, a := range addresses {
			o.run(where, "ip", "address", "add", a, "dev", "uplink", "nodad")
		}
		o.run(where, "ip", "link", "set", "uplink", "up")
	}
	o.run(o.inside, "ip", "route", "add", "default", "via", outsideV4)
	o.run(o.inside, "ip", "-6", "route", "add", "default", "via", outsideV6)
	script := fmt.Sprintf("#!/bin/sh\nexec nsenter --target %d --net --mount -- %s \"$@\"\n", o.inside.Process.Pid, n.binary)
	n.binary = n.place.Dir + "/berth"
	if err := os.WriteFile(n.binary, []byte(script), 0o755); err != nil {
		n.t.Fatal(err)
	}
	// What is mounted there, nobody else sees: the pods are ended from inside, and before the rest.
	n.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience(time.Minute)) // the test's own is done
		defer cancel()
		if a := n.command(ctx, "stop", "--all"); a.code != 0 {
			n.t.Errorf("clean up: %v", a)
		}
	})
	return o
}

// namespace starts a process in namespaces of its own.
func (o *ownNetwork) namespace(flags uintptr) *exec.Cmd {
	o.n.t.Helper()
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: flags}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		o.n.t.Fatal(err)
	}
	o.n.t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait()
	})
	return cmd
}

// run runs a program of the host in namespaces, which must succeed, and returns what it prints.
func (o *ownNetwork) run(where *exec.Cmd, program ...string) string {
	o.n.t.Helper()
	args := []string{"--target", fmt.Sprint(where.Process.Pid), "--net"}
	if where == o.inside {
		args = append(args, "--mount")
	}
	out, err := exec.CommandContext(o.n.ctx, "nsenter", append(append(args, "--"), program...)...).CombinedOutput()
	if err != nil {
		o.n.t.Fatalf("%q: %v: %s", program, err, out)
	}
	return string(out)
}

// netNamespace is the file of the network namespace of a process.
func netNamespace(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// of is the network namespace of a pod.
func (o *ownNetwork) of(p *v1.Pod) string {
	o.n.t.Helper()
	return netNamespace(o.n.pid(containerID(p, "main")))
}

// get asks for the page of a hello server at an address, from within a namespace.
func (o *ownNetwork) get(from, address string) (string, error) {
	ctx, cancel := context.WithTimeout(o.n.ctx, patience(dialLimit))
	defer cancel()
	conn, err := netns.Dial(ctx, from, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: test\r\n\r\n"); err != nil {
		return "", err
	}
	body, err := io.ReadAll(conn)
	return string(body), err
}

// wantGet waits for the answer of the hello server of a pod, which may have just been started.
func (o *ownNetwork) wantGet(what, from, address, pod string) {
	o.n.t.Helper()
	until(o.n.t, what+": "+address+" to answer as pod "+pod, func() bool {
		body, err := o.get(from, address)
		return err == nil && strings.Contains(body, pod)
	})
}

// listen makes a listener in a network namespace. It closes when the test ends.
func (o *ownNetwork) listen(namespace, address string) net.Listener {
	o.n.t.Helper()
	type result struct {
		listener net.Listener
		err      error
	}
	made := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, because it is in the namespace
		file, err := os.Open(namespace)
		if err != nil {
			made <- result{err: err}
			return
		}
		defer file.Close()
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			made <- result{err: fmt.Errorf("enter %s: %w", namespace, err)}
			return
		}
		listener, err := net.Listen("tcp", address)
		made <- result{listener, err}
	}()
	r := <-made
	if r.err != nil {
		o.n.t.Fatal(r.err)
	}
	o.n.t.Cleanup(func() { r.listener.Close() })
	return r.listener
}

// peerOf connects to the machine beside, and returns the address that it sees.
func (o *ownNetwork) peerOf(from string, l net.Listener) netip.Addr {
	o.n.t.Helper()
	ctx, cancel := context.WithTimeout(o.n.ctx, patience(dialLimit))
	defer cancel()
	conn, err := netns.Dial(ctx, from, "tcp", l.Addr().String())
	if err != nil {
		o.n.t.Errorf("%s from %s: %v", l.Addr(), from, err)
		return netip.Addr{}
	}
	defer conn.Close()
	accepted, err := l.Accept()
	if err != nil {
		o.n.t.Fatal(err)
	}
	defer accepted.Close()
	return accepted.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// podAddresses are a pod's addresses of IPv4 and IPv6.
func podAddresses(t *testing.T, p *v1.Pod) (v4, v6 string) {
	t.Helper()
	for _, ip := range p.Status.PodIPs {
		if strings.Contains(ip.IP, ":") {
			v6 = ip.IP
		} else {
			v4 = ip.IP
		}
	}
	if v4 == "" || v6 == "" || len(p.Status.PodIPs) != 2 {
		t.Fatalf("pod %s has the addresses %v, want one of each family", p.Name, p.Status.PodIPs)
	}
	return v4, v6
}
