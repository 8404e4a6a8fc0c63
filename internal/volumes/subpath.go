package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/crispec"
	"berth/internal/journal"
)

// subpathsDir is the folder in a pod's directory that holds <volume>/<container>/<index>, on each of which a part of a volume is mounted.
const subpathsDir = "volume-subpaths"

// SubpathError says that a container cannot be given a part of a volume. Its text does not tell what lies outside the volume; Err, which the
// journal shows, may.
type SubpathError struct {
	Step              string // what failed
	Volume, Container string
	Err               error
}

func (e *SubpathError) Error() string {
	text := fmt.Sprintf("failed to %s for volumeMount %q of container %q", e.Step, e.Volume, e.Container)
	if errors.Is(e.Err, errNoOpenat2) {
		text += ": " + errNoOpenat2.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *SubpathError) Unwrap() error { return e.Err }

// Steps of the preparation of a subPath, as errors call them.
const (
	createSubpath  = "create subPath directory"
	prepareSubpath = "prepare subPath"
)

// BindSubpath shows the part of the volume at a path of the agent's own, which it returns: whatever a container makes of its volume
// afterwards, that path stays what it is. Missing directories are made, with the mode of the volume's own. What was shown there before, to an
// earlier incarnation of the container, gives way. Filesystems that are mounted inside the part already are not shown. The error is a *SubpathError; Teardown undoes it all.
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
	podDir, err := m.podDir(p.UID)
	if err != nil {
		return fail(prepareSubpath, err)
	}
	if !isElement(s.Volume) || !isElement(s.Container) {
		return fail(prepareSubpath, errors.New("the names of volume and container must be file names"))
	}
	root, err := openRoot(s.Root)
	if err != nil {
		return fail(prepareSubpath, err)
	}
	defer unix.Close(root)
	// What is bound comes out of this lookup and no other, also where directories were made for it.
	part, err := openBeneath(root, s.Path, unix.O_PATH)
	for try := 0; try < lookupTries && errors.Is(err, unix.ENOENT); try++ {
		if err := makeBeneath(root, s.Path); err != nil {
			return fail(createSubpath, err)
		}
		part, err = openBeneath(root, s.Path, unix.O_PATH)
	}
	if err != nil {
		return fail(prepareSubpath, err)
	}
	defer unix.Close(part)
	target := filepath.Join(podDir, subpathsDir, s.Volume, s.Container, strconv.Itoa(s.Index))
	if err := bindAt(part, target, s.Propagation); err != nil {
		return fail(prepareSubpath, err)
	}
	return target, nil
}

// bindAt mounts what the descriptor refers to at the target, in place of what is there.
func bindAt(part int, target string, propagation runtimeapi.MountPropagation) error {
	if err := detach(target); err != nil {
		return err
	}
	if err := makeTarget(part, target); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	tree, err := unix.OpenTree(part, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(tree)
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount on %s: %w", target, err)
	}
	if propagation == runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL {
		return nil
	}
	// Mounts of the host still come in; nothing that happens here reaches the host.
	if err := unix.Mount("", target, "", unix.MS_SLAVE, ""); err != nil {
		return errors.Join(fmt.Errorf("make the mount on %s a slave: %w", target, err), detach(target))
	}
	return nil
}

// makeTarget makes what the part can be mounted on: a directory for a directory, a file for anything else.
func makeTarget(part int, target string) error {
	var st unix.Stat_t
	if err := unix.Fstat(part, &st); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if have, err := os.Lstat(target); err == nil && (have.IsDir() != isDir || have.Mode()&fs.ModeSymlink != 0) {
		if err := os.Remove(target); err != nil {
			return err
		}
	}
	if isDir {
		return makeDir(target, 0o750, 0o750)
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

// detach unmounts everything that is mounted on the path, with all below it; where nothing is mounted, it does nothing. What was mounted
// elsewhere and has come in by propagation stays where it came from.
func detach(path string) error {
	for {
		// First apart from its peers: else the host would lose each mount below that it shares with this one.
		err := unix.Mount("", path, "", unix.MS_PRIVATE|unix.MS_REC, "")
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // not a mount point; not there
			return nil
		}
		if err != nil {
			return fmt.Errorf("separate the mount on %s: %w", path, err)
		}
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// unbindSubpaths unmounts the parts of volumes that the pod's containers were given, by whatever agent, and removes the folder that they were
// shown in.
func unbindSubpaths(ctx context.Context, podDir string) error {
	targets, err := fs.Glob(os.DirFS(podDir), subpathsDir+"/*/*/*")
	if err != nil {
		return fmt.Errorf("list subPath mounts: %w", err)
	}
	for _, target := range targets {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := detach(filepath.Join(podDir, target)); err != nil {
			return err
		}
	}
	return removeTree(podDir, subpathsDir)
}
