package volumes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"
)

const (
	// mountLimit is how long the mount of a network filesystem may take. mount.nfs gives up by itself after two minutes (nfs(5), retry) and says why,
	// unless the kernel waits for a server that it has known before.
	mountLimit = 3 * time.Minute
	// unmountLimit is how long the unmount of a network filesystem may wait for its server, before it is done without.
	unmountLimit = time.Minute
	// answerLimit is how long a server may take to answer, when something else keeps the filesystem from being unmounted.
	answerLimit = 15 * time.Second
)

// errNoAnswer says that a server did not answer in time.
var errNoAnswer = errors.New("the server does not answer")

// setupNFS mounts a directory of a server. Who owns what is the server's business, so an fsGroup is not applied.
func (m *Manager) setupNFS(ctx context.Context, podDir, name string, src *v1.NFSVolumeSource, readOnly bool, options []string) outcome {
	readOnly = readOnly || src.ReadOnly
	options = slices.Clone(options)
	if readOnly {
		options = append(options, "ro")
	}
	slices.Sort(options)
	server := src.Server
	if strings.HasPrefix(server, "-") { // mount(8) would take it for an option
		return outcome{err: fmt.Errorf("NFS server %q: must be the name or address of a machine", server)}
	}
	if ip := net.ParseIP(server); ip != nil && ip.To4() == nil {
		server = "[" + server + "]"
	}
	dir := filepath.Join(podDir, "volumes", nfsPlugin, name)
	fresh, err := m.ensureMount(ctx, dir, mountSource{source: server + ":" + src.Path, fsType: "nfs", options: slices.Compact(options)})
	if err != nil {
		return outcome{err: err}
	}
	return outcome{mounted: Mounted{HostPath: dir, ReadOnly: readOnly}, fresh: fresh}
}

// isRemote reports whether filesystems of the type have a server, which may never answer.
func isRemote(fsType string) bool { return strings.HasPrefix(fsType, "nfs") }

// mountsHere reports whether mounts are made by the programs of this host.
func (m *Manager) mountsHere() bool {
	_, here := m.mounter.(*mount.Mounter)
	return here
}

// mountRemote mounts what a server has, and gives up when ctx is done.
func mountRemote(ctx context.Context, s mountSource, dir string) error {
	args := mount.MakeMountArgs(s.source, dir, s.fsType, s.options)
	out, err := runFor(ctx, mountLimit, "mount", args...)
	if err != nil {
		return fmt.Errorf("mount failed: %w\nMounting command: mount\nMounting arguments: %s\nOutput: %s", err, strings.Join(args, " "), out)
	}
	return nil
}

func (m *Manager) unmount(path, fsType string) error {
	if isRemote(fsType) && m.mountsHere() {
		return unmountRemote(path)
	}
	return m.mounter.Unmount(path)
}

// unmountRemote unmounts what a server has. Where that does not answer, what waits for it fails, and what was not written there is lost: it may be what
// keeps the filesystem busy, and then the next try succeeds.
func unmountRemote(path string) error {
	ctx := context.Background()
	out, err := runFor(ctx, unmountLimit, "umount", path)
	gone := errors.Is(err, errNoAnswer)
	if err != nil && !gone {
		_, answer := runFor(ctx, answerLimit, "stat", "--file-system", path)
		gone = errors.Is(answer, errNoAnswer)
	}
	if gone {
		out, err = runFor(ctx, unmountLimit, "umount", "--force", path)
	}
	if err != nil {
		return fmt.Errorf("unmount failed: %w\nUnmounting arguments: %s\nOutput: %s", err, path, out)
	}
	return nil
}

// runFor runs a program that waits for a server, and returns what it said. When ctx is done, or the limit is over, it is killed with the programs that it
// runs: what they wait for in the kernel is then given up.
func runFor(ctx context.Context, limit time.Duration, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("given up after %s: %w", limit, errNoAnswer))
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		if err := unix.Kill(-cmd.Process.Pid, unix.SIGKILL); !errors.Is(err, unix.ESRCH) {
			return err
		}
		return os.ErrProcessDone
	}
	out, err := cmd.CombinedOutput()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out, err
}
