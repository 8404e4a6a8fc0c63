package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/safepath"
	"berth/internal/record/journal"
	"berth/internal/runtime/crispec"
)

// subpathsDir is the directory in a pod's directory with the mount points
// <volume>/<container>/<index> of subPaths.
const subpathsDir = "volume-subpaths"

// SubpathError is the failure of a container's subPath. Its text contains nothing from outside the
// volume; Err, which the journal records, may.
type SubpathError struct {
	Step              string // the failed step
	Volume, Container string
	Err               error
}

func (e *SubpathError) Error() string {
	text := fmt.Sprintf("failed to %s for volumeMount %q of container %q", e.Step, e.Volume, e.Container)
	if errors.Is(e.Err, safepath.ErrNoOpenat2) {
		text += ": " + safepath.ErrNoOpenat2.Error()
	}
	return text
}

func (e *SubpathError) Unwrap() error { return e.Err }

// Steps of a subPath's preparation, as errors name them.
const (
	createSubpath  = "create subPath directory"
	prepareSubpath = "prepare subPath"
)

// BindSubpath mounts the subPath at a path below the agent's root, which it returns: later changes
// by containers do not affect it. Missing directories are created with the mode of the volume's
// root. An existing mount, for an earlier instance of the container, is replaced. Filesystems that
// are mounted inside the subPath are not included. The error is a *SubpathError; Teardown undoes
// everything.
func (m *Manager) BindSubpath(ctx context.Context, p *v1.Pod, s crispec.Subpath) (string, error) {
	target, err := m.bindSubpath(ctx, p, s)
	if err == nil {
		return target, nil
	}
	m.journal.Record(journal.Entry{
		Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
		Component: "volume",
		Decision:  fmt.Sprintf("container %s does not get the subPath %q of volume %s", s.Container, s.Path, s.Volume),
		Error:     journal.Error(err.Err),
	})
	return "", err
}

func (m *Manager) bindSubpath(ctx context.Context, p *v1.Pod, s crispec.Subpath) (string, *SubpathError) {
	fail := func(step string, err error) (string, *SubpathError) {
		return "", &SubpathError{Step: step, Volume: s.Volume, Container: s.Container, Err: err}
	}
	if ctx.Err() != nil {
		return fail(prepareSubpath, context.Cause(ctx))
	}
	podDir, err := m.host.podDir(p.UID)
	if err != nil {
		return fail(prepareSubpath, err)
	}
	if !safepath.IsElement(s.Volume) || !safepath.IsElement(s.Container) {
		return fail(prepareSubpath, errors.New("the names of volume and container must be file names"))
	}
	root, err := safepath.OpenRoot(s.Root)
	if err != nil {
		return fail(prepareSubpath, err)
	}
	defer unix.Close(root)
	// Only the result of this lookup is mounted, even if directories were created for it.
	part, err := safepath.Lookup(root, s.Path, unix.O_PATH)
	for try := 0; try < safepath.LookupTries && errors.Is(err, unix.ENOENT); try++ {
		if err := safepath.MakeDirs(root, s.Path); err != nil {
			return fail(createSubpath, err)
		}
		part, err = safepath.Lookup(root, s.Path, unix.O_PATH)
	}
	if err != nil {
		return fail(prepareSubpath, err)
	}
	defer unix.Close(part)
	target := filepath.Join(podDir, subpathsDir, s.Volume, s.Container, strconv.Itoa(s.Index))
	if err := bindAt(m.host.files, part, target, s.Propagation); err != nil {
		return fail(prepareSubpath, err)
	}
	return target, nil
}

// bindAt mounts the descriptor's file at the target and replaces an existing mount.
func bindAt(files safepath.Root, part int, target string, propagation runtimeapi.MountPropagation) error {
	f, err := files.Make(filepath.Dir(target), 0o750, 0o750)
	if err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	defer f.Close()
	dir, name := int(f.Fd()), filepath.Base(target)
	if err := detach(dir, name, target); err != nil {
		return err
	}
	if err := makeTarget(part, dir, name); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	tree, err := unix.OpenTree(part, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", dir, name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount on %s: %w", target, err)
	}
	if propagation == runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL {
		return nil
	}
	// Host mounts still propagate in; mounts here do not propagate to the host.
	if err := unix.Mount("", safepath.Self(tree), "", unix.MS_SLAVE, ""); err != nil {
		return errors.Join(fmt.Errorf("make the mount on %s a slave: %w", target, err), detach(dir, name, target))
	}
	return nil
}

// makeTarget creates the mount point in the directory: a directory for a directory, a file for
// anything else.
func makeTarget(part, dir int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(part, &st); err != nil {
		return err
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		kind := st.Mode & unix.S_IFMT
		if kind == unix.S_IFDIR && isDir || kind == unix.S_IFREG && !isDir {
			return nil
		}
		flags := 0
		if kind == unix.S_IFDIR {
			flags = unix.AT_REMOVEDIR
		}
		if err := unix.Unlinkat(dir, name, flags); err != nil {
			return &fs.PathError{Op: "remove", Path: name, Err: err}
		}
	}
	if isDir {
		return unix.Mkdirat(dir, name, 0o750)
	}
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o640)
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return unix.Close(fd)
}

// detach unmounts everything at and below the name in the directory, if anything. Mounts that were
// propagated from elsewhere stay at their origin. The path is for errors only.
func detach(dir int, name, path string) error {
	for {
		fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return &fs.PathError{Op: "open", Path: path, Err: err}
		}
		mounted, err := detachTop(fd)
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
		if !mounted {
			return nil
		}
	}
}

// detachTop unmounts the descriptor's mount, and reports whether it is one.
func detachTop(fd int) (mounted bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return false, err
	}
	// Make it private first: otherwise the host would lose each mount below that it shares with
	// this one.
	err = unix.Mount("", safepath.Self(fd), "", unix.MS_PRIVATE|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("separate it from its peers: %w", err)
	}
	return true, unix.Unmount(safepath.Self(fd), unix.MNT_DETACH)
}

// unbindSubpaths unmounts the subPaths of the pod's containers, including those of an earlier
// agent, and removes their directory.
func unbindSubpaths(ctx context.Context, files safepath.Root, podDir string) error {
	top := filepath.Join(podDir, subpathsDir)
	if err := detachBelow(ctx, files, top, 2); err != nil {
		return fmt.Errorf("unmount subPaths: %w", err)
	}
	return files.Remove(top)
}

// detachBelow unmounts the entries of the directories that are levels below dir.
func detachBelow(ctx context.Context, files safepath.Root, dir string, levels int) error {
	f, err := files.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		path := filepath.Join(dir, e.Name())
		switch {
		case levels == 0:
			err = detach(int(f.Fd()), e.Name(), path)
		case e.IsDir():
			err = detachBelow(ctx, files, path, levels-1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
