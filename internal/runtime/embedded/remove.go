package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
)

// Remove stops the runtime and deletes everything that it created: remaining containers and shims,
// the pod network, mounts, directories, the bundle. If containers, mounts or the network cannot be
// removed, it deletes no directories. It is idempotent, and does not require Ensure.
func (r *Runtime) Remove(ctx context.Context) error {
	if err := r.lock.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.lock.Release(1)
	if err := r.stopAll(ctx); err != nil {
		// Directories with mounts or running processes must not be deleted.
		return err
	}
	p := r.paths
	var errs []error
	for _, name := range []string{p.store.dir, p.store.corrupt, p.state, p.runc, p.shimSockets, p.network.leases, p.socket, p.ttrpcSocket, p.settings, p.bundles} {
		errs = append(errs, os.RemoveAll(name))
	}
	errs = append(errs, unclaim(r.Network.claims, p.network.file))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("embedded runtime: remove: %w", err)
	}
	return nil
}

// EndAll stops the runtime, and kills all pod processes and removes their mounts and network. It
// does so without containerd, which cannot stop pods if its disk is not writable; files on disk are
// retained. It is idempotent, and does not require Ensure.
func (r *Runtime) EndAll(ctx context.Context) error {
	if err := r.lock.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.lock.Release(1)
	return r.stopAll(ctx)
}

func (r *Runtime) stopAll(ctx context.Context) error {
	if err := r.stop(ctx); err != nil {
		return err
	}
	p := r.paths
	err := errors.Join(
		removeContainers(ctx, p),
		killAll(ctx, p),
		removeAttachments(ctx, p),
		removeAllRules(ctx, p.network.bridge),
		removeNetwork(ctx, p),
		removeBridges(p),
		unmountBelow(p.store.dir, p.state),
	)
	if err != nil {
		return fmt.Errorf("embedded runtime: end all: %w", err)
	}
	return nil
}

// EndShims kills remaining shims after the runtime was stopped and no container is running: some
// outlive their sandbox if an agent is killed during a change.
func (r *Runtime) EndShims(ctx context.Context) error {
	if err := r.lock.Acquire(ctx, 1); err != nil {
		return err
	}
	defer r.lock.Release(1)
	if err := killAll(ctx, r.paths); err != nil {
		return fmt.Errorf("embedded runtime: end shims: %w", err)
	}
	return nil
}

// removeContainers kills and deletes the remaining containers of runc and pod shims, including
// their cgroups.
func removeContainers(ctx context.Context, p paths) error {
	folders, err := filepath.Glob(filepath.Join(p.runc, "*", "*"))
	if err != nil {
		return err
	}
	return errors.Join(deleteContainers(ctx, p, folders), killPodshims(ctx, p))
}

// deleteContainers kills and deletes the containers with these runc state directories, as far as
// their state exists.
func deleteContainers(ctx context.Context, p paths, folders []string) error {
	var errs []error
	for _, dir := range folders {
		if damagedState(dir) != nil {
			errs = append(errs, killContainer(ctx, filepath.Base(dir)), os.RemoveAll(dir))
			continue
		}
		cmd := exec.CommandContext(ctx, p.current+"/bin/runc", "--root", filepath.Dir(dir), "delete", "--force", filepath.Base(dir))
		if out, err := cmd.CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("container %s: runc delete: %w: %s", filepath.Base(dir), err, strings.TrimSpace(string(out))))
		}
	}
	return errors.Join(errs...)
}

// damagedState returns an error if runc's state of a container is damaged. runc can neither signal
// nor delete such a container.
func damagedState(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "state.json"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && !json.Valid(b):
		return errors.New("it is not JSON")
	}
	return err
}

// killContainer kills the processes in the cgroup of a sandbox or container.
func killContainer(ctx context.Context, id string) error {
	if !isID(id) {
		return nil
	}
	all, err := pids("/proc")
	if err != nil {
		return err
	}
	var errs []error
	for _, pid := range all {
		one, err := openProcess(pid, func() (bool, error) { return inCgroupOf("/proc", pid, id) })
		if one != nil {
			err = errors.Join(one.terminate(ctx, 0), one.close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// inCgroupOf reports whether a process is in the cgroup of a sandbox or container, or in one below.
func inCgroupOf(proc string, pid int, id string) (bool, error) {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "cgroup"))
	if isExited(err) {
		return false, nil
	}
	return strings.Contains(string(b), id), err
}

// killAll kills the processes that run programs of our bundles, mainly shims, and pod shims, and
// returns when they have exited.
func killAll(ctx context.Context, p paths) error {
	all, err := pids("/proc")
	if err != nil {
		return err
	}
	var errs []error
	prefix := real(p.bundles) + "/"
	for _, pid := range all {
		fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
		if err != nil {
			continue
		}
		one := &process{record: record{PID: pid}, fd: fd}
		exe, err := executable("/proc", pid)
		ours := err == nil && strings.HasPrefix(exe, prefix)
		if !ours {
			id, err := shimID(p, "/proc", pid)
			ours = err == nil && id != ""
		}
		if ours && pid != os.Getpid() {
			errs = append(errs, one.terminate(ctx, 0))
		}
		errs = append(errs, one.close())
	}
	return errors.Join(errs...)
}

func removeBridges(p paths) error {
	var errs []error
	for _, name := range p.network.bridges {
		errs = append(errs, removeBridge(name))
	}
	return errors.Join(errs...)
}

func removeBridge(name string) error {
	if !isUp(name) {
		return nil
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("remove bridge %s: %w", name, err)
	}
	defer unix.Close(s)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return fmt.Errorf("remove bridge %s: %w", name, err)
	}
	// Without flags, in particular IFF_UP: a bridge that is up cannot be removed.
	request.SetUint16(0)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("take bridge %s down: %w", name, err)
	}
	if err := deleteBridge(s, name); err != nil {
		return fmt.Errorf("remove bridge %s: %w", name, err)
	}
	return nil
}

// unmountBelow unmounts everything below the directories, the deepest mounts first.
func unmountBelow(dirs ...string) error {
	mounts, err := mount.ParseMountInfo("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	slices.SortStableFunc(mounts, func(a, b mount.MountInfo) int { return len(b.MountPoint) - len(a.MountPoint) })
	var errs []error
	for _, m := range mounts {
		if !slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(m.MountPoint, real(dir)+"/") }) {
			continue
		}
		// A mount hidden by another one is not found before that is unmounted; it is unmounted with
		// its parent.
		if err := unix.Unmount(m.MountPoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m.MountPoint, err))
		}
	}
	return errors.Join(errs...)
}
