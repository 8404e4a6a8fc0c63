package volumes

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/host/safepath"
)

// Permissions for an fsGroup: files are readable and writable; directories are also searchable, and
// new entries inherit the group.
const (
	groupFile = 0o660
	groupDir  = unix.S_ISGID | 0o770
)

// setVolumeOwnership gives the content of the volume to the pod's fsGroup, according to its change
// policy. The root is last, so that an interrupted change is started again. Errors do not fail the
// volume. Pods that use the volume may change it meanwhile: no link is followed.
func (h *host) setVolumeOwnership(p *v1.Pod, dir string) {
	o := &ownershipChange{gid: int(*fsGroup(p))}
	f, err := h.files.Open(dir)
	if err == nil {
		defer f.Close()
		root := int(f.Fd())
		if policy := p.Spec.SecurityContext.FSGroupChangePolicy; policy != nil && *policy == v1.FSGroupChangeOnRootMismatch && isOwned(root, o.gid) {
			return
		}
		stop := h.recordWhileSlow(p, dir, o)
		err = o.changeDirectory(root)
		stop()
	}
	if err != nil {
		h.log.Warn("not all of the volume is the fsGroup's", "pod", p.Namespace+"/"+p.Name, "fsGroup", o.gid, "directory", dir, "error", err)
	}
}

// ownershipChange is a change of a volume's group.
type ownershipChange struct {
	gid   int
	files atomic.Int64 // number of visited files
}

// Delay and interval of the events about a slow change.
const (
	slowAfter = 30 * time.Second
	slowAgain = time.Minute
)

// recordWhileSlow records events about a slow change until stop is called.
func (h *host) recordWhileSlow(p *v1.Pod, dir string, o *ownershipChange) (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	message := fmt.Sprintf("Setting volume ownership for %s is taking longer than expected, consider using OnRootMismatch - "+
		"https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods",
		strings.TrimPrefix(dir, filepath.Join(h.root, "pods")+"/"))
	go func() {
		defer close(stopped)
		timer := time.NewTimer(slowAfter)
		defer timer.Stop()
		for first := true; ; first = false {
			select {
			case <-done:
				return
			case <-timer.C:
			}
			progress := ""
			if !first {
				progress = fmt.Sprintf(", processed %d files.", o.files.Load())
			}
			h.recorder.Event(p, "", v1.EventTypeWarning, "VolumePermissionChangeInProgress", message+progress)
			timer.Reset(slowAgain)
		}
	}()
	return func() {
		close(done)
		<-stopped
	}
}

// isOwned reports whether the directory has the group and its permissions.
func isOwned(fd, gid int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && int(st.Gid) == gid && st.Mode&groupDir == groupDir
}

// changeDirectory gives the content of the directory to the group, then the directory. It continues
// after errors and returns them all.
func (o *ownershipChange) changeDirectory(dir int) error {
	dup, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(dup), "directory")
	defer f.Close()
	var errs []error
	for {
		names, err := f.Readdirnames(safepath.Batch)
		for _, name := range names {
			if err := o.changeEntry(dir, name); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
		if errors.Is(err, io.EOF) || len(errs) >= safepath.Batch { // more errors are of no use
			break
		}
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	return errors.Join(append(errs, o.changeFile(dir))...)
}

func (o *ownershipChange) changeEntry(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return o.changeFile(fd)
	}
	sub, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sub)
	return o.changeDirectory(sub)
}

// changeFile gives one file, which may be open with O_PATH, to the group.
func (o *ownershipChange) changeFile(fd int) error {
	o.files.Add(1)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := unix.Fchownat(fd, "", -1, o.gid, unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	mode := st.Mode&0o7777 | groupFile
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return nil // a link has no mode
	case unix.S_IFDIR:
		mode |= groupDir
	}
	return unix.Chmod(safepath.Self(fd), mode)
}

func fsGroup(p *v1.Pod) *int64 {
	if p.Spec.SecurityContext == nil {
		return nil
	}
	return p.Spec.SecurityContext.FSGroup
}

// groupOf returns the group of the root of a volume.
func (h *host) groupOf(dir string) int64 {
	f, err := h.files.Open(dir)
	if err != nil {
		return 0
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0
	}
	return int64(st.Gid)
}
