package shims

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/pkg/sys"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podFileNames are the files that are mounted into the pod's containers.
var podFileNames = []string{"hostname", "hosts", "resolv.conf"}

// createFiles creates the pod's directory: the mount point of its /dev/shm, and the files for its
// containers. These are world-readable; the directory is not accessible to other users of the host.
func (p *pod) createFiles(config *runtime.PodSandboxConfig) error {
	if err := os.MkdirAll(filepath.Join(p.dir, "shm"), 0o700); err != nil {
		return err
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	resolv, err := resolvConf(config.GetDnsConfig())
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"hostname": []byte(p.record.Hostname + "\n"), "hosts": hosts, "resolv.conf": resolv} {
		if err := os.WriteFile(filepath.Join(p.dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return p.labelFiles()
}

// checkFiles returns errDamaged if one of the pod's files cannot be mounted into a container.
func (p *pod) checkFiles() error {
	for _, name := range podFileNames {
		switch fi, err := os.Lstat(filepath.Join(p.dir, name)); {
		case err != nil:
			return fmt.Errorf("%w: %w", errDamaged, err)
		case !fi.Mode().IsRegular():
			return fmt.Errorf("%w: %s is not a regular file", errDamaged, filepath.Join(p.dir, name))
		}
	}
	return nil
}

// resolvConf returns the pod's resolv.conf, which is the host's if the pod has no DNS config.
func resolvConf(d *runtime.DNSConfig) ([]byte, error) {
	if len(d.GetServers())+len(d.GetSearches())+len(d.GetOptions()) == 0 {
		b, err := os.ReadFile("/etc/resolv.conf")
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return b, err
	}
	var b strings.Builder
	if len(d.Searches) > 0 {
		b.WriteString("search " + strings.Join(d.Searches, " ") + "\n")
	}
	for _, s := range d.Servers {
		b.WriteString("nameserver " + s + "\n")
	}
	if len(d.Options) > 0 {
		b.WriteString("options " + strings.Join(d.Options, " ") + "\n")
	}
	return []byte(b.String()), nil
}

// start starts the pod shim, which is not a child of this process when it is ready.
func (p *pod) start(program string) error {
	socket, err := p.listen()
	if err != nil {
		return err
	}
	defer socket.Close()
	netns := p.record.Network
	if netns == "" { // the host's, in which the pod shim runs
		netns = os.DevNull
	}
	network, err := os.Open(netns)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer network.Close()
	files := []*os.File{socket, network}
	if p.rootUID != nil { // containerd has created the network in a user namespace
		user, err := sys.GetUsernsForNamespace(network.Fd())
		if err != nil {
			return fmt.Errorf("user namespace of %s: %w", netns, err)
		}
		defer user.Close()
		files = append(files, user) // becomes plan.UserNamespaceFD
	}
	cmd := exec.Command(program, p.record.Hostname, filepath.Join(p.dir, "shm"), strconv.Itoa(p.namespaces))
	cmd.Env = []string{"SHM=" + p.shmOptions()}
	cmd.ExtraFiles = files
	if _, err := cmd.Output(); err != nil {
		var e *exec.ExitError
		if errors.As(err, &e) {
			return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(e.Stderr)))
		}
		return err
	}
	crashPoint("podshim-made")
	if err := p.connect(); err != nil {
		return err
	}
	if err := p.setSysctls(p.sysctls); err != nil {
		return err
	}
	if err := writeRecord(podFile(p.dir), p.record); err != nil {
		return err
	}
	crashPoint("pod-written")
	return nil
}

// listen opens the pod shim's socket.
func (p *pod) listen() (*os.File, error) {
	var l *net.UnixListener
	err := withSocket(p.dir, func(at *net.UnixAddr) (err error) {
		l, err = net.ListenUnix(at.Net, at)
		return err
	})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	if err := os.Chmod(filepath.Join(p.dir, "socket"), 0o600); err != nil {
		return nil, err
	}
	return l.File()
}
