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

// podFiles are the files of pods below the agent's root. A container may have its pod's directory,
// or all of them, mounted.
type podFiles struct{ safepath.Root }

func (f podFiles) dir(uid pod.UID) string { return filepath.Join(string(f.Root), "pods", string(uid)) }

// containerDir is the directory of a container, shared by its incarnations.
func (f podFiles) containerDir(uid pod.UID, name string) string {
	return filepath.Join(f.dir(uid), "containers", name)
}

// makeTerminationLog creates the empty termination message file; each incarnation has its own.
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
	// The process may run as any user: the mode must not depend on the umask.
	return path, errors.Join(log.Chmod(0o666), log.Close())
}

// removeTerminationLog removes the file, "" for none. A file outside this agent's pod directories
// belongs to another agent and is skipped.
func (f podFiles) removeTerminationLog(path string) error {
	if !f.Contains(path) {
		return nil
	}
	return f.Unlink(path)
}

// preStopFile is the file in a container's directory that names the incarnation whose preStop hook
// was started last.
const preStopFile = "prestop"

// preStopLimit is the maximum size of that file, in bytes; container IDs are shorter.
const preStopLimit = 4096

// recordPreStop persists that the hook of a container incarnation starts. It returns false if that
// is persisted already. Without the pod's directory nothing can be persisted, and it returns true.
func (f podFiles) recordPreStop(uid pod.UID, cs *pod.ContainerStatus) (first bool, err error) {
	path := filepath.Join(f.containerDir(uid, cs.Name), preStopFile)
	known, err := f.ReadFile(path, preStopLimit)
	if err == nil && string(known) == string(cs.ID) {
		return false, nil
	}
	if _, err := f.Lstat(f.dir(uid)); errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err := f.Ensure(filepath.Dir(path), 0o750, 0o750); err != nil {
		return true, err
	}
	return true, f.Replace(path, 0o600, func(file *os.File) error {
		_, err := file.WriteString(string(cs.ID))
		return err
	})
}
