package kuberuntime

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"berth/internal/host/safepath"
	"berth/internal/pod"
)

// podFiles are the files of pods below the agent's root. A container may have been given its pod's
// folder, or all of them.
type podFiles struct{ safepath.Root }

func (f podFiles) dir(uid pod.UID) string { return filepath.Join(string(f.Root), "pods", string(uid)) }

// containerDir is the folder of a container, whatever its incarnation.
func (f podFiles) containerDir(uid pod.UID, name string) string {
	return filepath.Join(f.dir(uid), "containers", name)
}

// makeTerminationLog makes the empty file that a container writes its termination message to; each
// incarnation has its own.
func (f podFiles) makeTerminationLog(p *v1.Pod, c *v1.Container) (string, error) {
	if c.TerminationMessagePath == "" {
		return "", nil
	}
	dir := f.containerDir(p.UID, c.Name)
	if err := f.Ensure(dir, 0o750, 0o750); err != nil {
		return "", fmt.Errorf("termination log: %w", err)
	}
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	path := filepath.Join(dir, hex.EncodeToString(b[:]))
	log, err := f.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return "", fmt.Errorf("termination log: %w", err)
	}
	// The process may run as any user: the mode must hold whatever the umask.
	return path, errors.Join(log.Chmod(0o666), log.Close())
}

// removeTerminationLog removes the file, "" for none. One that is in no folder of this agent's pods
// is another agent's.
func (f podFiles) removeTerminationLog(path string) error {
	if !f.Contains(path) {
		return nil
	}
	return f.Unlink(path)
}

// preStopFile is the file in a container's folder that names the incarnation whose preStop hook was
// begun last.
const preStopFile = "prestop"

// noteLimit is how long that file can be, in bytes; an id of a container is shorter.
const noteLimit = 4096

// notePreStop writes to disk that the hook of an incarnation of a container begins. It returns
// false if that is written already. Without the pod's folder nothing can be written, and the hook
// is the first.
func (f podFiles) notePreStop(uid pod.UID, cs *pod.ContainerStatus) (first bool, err error) {
	path := filepath.Join(f.containerDir(uid, cs.Name), preStopFile)
	known, err := f.ReadFile(path, noteLimit)
	if err == nil && string(known) == string(cs.ID) {
		return false, nil
	}
	if _, err := f.Lstat(f.dir(uid)); errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err := f.Ensure(filepath.Dir(path), 0o750, 0o750); err != nil {
		return true, err
	}
	return true, f.Replace(path, 0o600, func(note *os.File) error {
		_, err := note.WriteString(string(cs.ID))
		return err
	})
}
