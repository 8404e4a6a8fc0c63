package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// registryAddress is where each node finds the registry: its own loopback, which a container
// runtime asks without TLS.
const registryAddress = "127.0.0.1:5000"

// nodeCommand is a node from the inside: node DIR NAME. It runs in new namespaces, says "ready" on
// its standard output, and ends with its standard input.
func nodeCommand(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("node DIR NAME is run by up")
	}
	dir, name := args[0], args[1]
	home := filepath.Join(dir, name)
	if err := enterMachine(dir, home, name); err != nil {
		return err
	}
	log, err := os.OpenFile(home+"/kubelet.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	u := newUnit("/etc/systemd/system/kubelet.service", log)
	control, err := net.Listen("unix", unitSocket)
	if err != nil {
		return err
	}
	defer control.Close()
	go u.serve(control)
	go u.run(ctx)
	registry, err := net.Listen("tcp", registryAddress)
	if err != nil {
		return err
	}
	defer registry.Close()
	go forward(registry, "unix", dir+"/registry.sock")
	server, err := net.Listen("unix", home+"/apiserver.sock")
	if err != nil {
		return err
	}
	defer server.Close()
	go forward(server, "tcp", "127.0.0.1:6443")
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// enterMachine makes what the processes of these namespaces see a copy of the machine's files, that
// can be written to and that nobody else sees: an overlay over /, with folders of its own where an
// overlay will not do.
func enterMachine(dir, home, name string) error {
	root, scratch := home+"/root", home+"/scratch"
	steps := []struct {
		what string
		do   func() error
	}{
		{"name", func() error { return unix.Sethostname([]byte(name)) }},
		{"private mounts", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }},
		{"folders", func() error { return mkdirs(root, scratch, home+"/kubelet") }},
		{"scratch", func() error { return unix.Mount("tmpfs", scratch, "tmpfs", 0, "mode=755") }},
		{"upper folders", func() error { return mkdirs(scratch+"/upper", scratch+"/work") }},
		{"root", func() error {
			return unix.Mount("overlay", root, "overlay", 0, fmt.Sprintf("lowerdir=/,upperdir=%s/upper,workdir=%s/work", scratch, scratch))
		}},
		{"folders below root", func() error {
			return mkdirs(root+"/proc", root+"/sys", root+"/dev", root+"/run", root+"/tmp", root+"/var/lib/kubelet", root+dir, root+"/old", root+"/etc/systemd/system")
		}},
		// Files of network plugins of the machine, as podman's, would be taken for the node's.
		{"no network plugins", func() error { return errors.Join(os.RemoveAll(root+"/etc/cni"), os.RemoveAll(root+"/opt/cni")) }},
		{"proc", func() error { return unix.Mount("proc", root+"/proc", "proc", 0, "") }},
		{"sys", func() error { return unix.Mount("sysfs", root+"/sys", "sysfs", 0, "") }}, // of this network
		{"cgroups", func() error {
			return unix.Mount("/sys/fs/cgroup", root+"/sys/fs/cgroup", "", unix.MS_BIND|unix.MS_REC, "")
		}},
		{"dev", func() error { return unix.Mount("/dev", root+"/dev", "", unix.MS_BIND|unix.MS_REC, "") }},
		{"run", func() error { return unix.Mount("tmpfs", root+"/run", "tmpfs", 0, "mode=755") }},
		{"tmp", func() error { return unix.Mount("tmpfs", root+"/tmp", "tmpfs", 0, "mode=1777") }},
		{"dir", func() error { return bindUnder(root, dir, dir) }},
		{"programs", func() error { // a checkout may be in /tmp
			own, err := os.Executable()
			if err != nil {
				return err
			}
			return bindUnder(root, filepath.Dir(own), filepath.Dir(own))
		}},
		{"kubelet", func() error { return bindUnder(root, home+"/kubelet", "/var/lib/kubelet") }},
		{"files", func() error { return writeMachineFiles(root, home) }},
		{"new root", func() error { return unix.PivotRoot(root, root+"/old") }},
		{"chdir", func() error { return os.Chdir("/") }},
		{"old root", func() error { return unix.Unmount("/old", unix.MNT_DETACH) }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("node %s: %s: %w", name, s.what, err)
		}
	}
	path := home + "/bin:" + os.Getenv("PATH")
	return errors.Join(os.Setenv("PATH", path), os.Unsetenv("TMPDIR"))
}

// bindUnder mounts a folder at a path below the new root.
func bindUnder(root, from, to string) error {
	if err := mkdirs(root + to); err != nil {
		return err
	}
	return unix.Mount(from, root+to, "", unix.MS_BIND, "")
}

// writeMachineFiles writes what an administrator would have written: the unit of the kubelet, names
// of the nodes, and a nameserver that nobody is, which is known at once.
func writeMachineFiles(root, home string) error {
	service, err := os.ReadFile(home + "/kubelet.service")
	if err != nil {
		return err
	}
	hosts := "127.0.0.1 localhost\n"
	for _, n := range nodes {
		hosts += n.address + " " + n.name + "\n"
	}
	return errors.Join(
		os.Remove(root+"/etc/resolv.conf"), // it may be a link
		os.WriteFile(root+"/etc/resolv.conf", []byte("nameserver "+nodes[0].address+"\n"), 0o644),
		os.WriteFile(root+"/etc/hosts", []byte(hosts), 0o644),
		os.WriteFile(root+"/etc/systemd/system/kubelet.service", service, 0o644),
		os.Symlink(filepath.Join(home, "bin", "kubelet"), root+"/usr/bin/kubelet"),
	)
}

func mkdirs(dirs ...string) error {
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// forward connects what comes to the listener with an address, until the listener is closed.
func forward(l net.Listener, network, address string) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			upstream, err := net.Dial(network, address)
			if err != nil {
				return // the client sees its connection closed
			}
			defer upstream.Close()
			go func() {
				_, _ = io.Copy(upstream, client)
				closeWrite(upstream)
			}()
			_, _ = io.Copy(client, upstream)
		}()
	}
}

// closeWrite tells the other side that no more comes.
func closeWrite(c net.Conn) {
	if c, ok := c.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite() // a connection that has ended needs no telling
	}
}

// cgroupOf is the cgroup of all pods of a node, named after its folder.
func cgroupOf(home string) string {
	return "/" + strings.ReplaceAll(strings.Trim(home, "/"), "/", "-")
}
