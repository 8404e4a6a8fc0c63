package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// lockRoot makes the root directory and takes the lock on it: two agents on one root would each undo what the other does. The lock ends with the process.
func lockRoot(root string) (unlock func(), err error) {
	if err := os.MkdirAll(root, 0o750); err != nil {
		return nil, fmt.Errorf("root directory: %w", err)
	}
	path := filepath.Join(root, "berth.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path)
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("root directory %s: another agent uses it (pid %s); stop it with \"berth stop\", or give this one its own --root-dir and --run-dir", root, strings.TrimSpace(string(holder)))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := errors.Join(f.Truncate(0), writePID(f)); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

func writePID(f *os.File) error {
	_, err := fmt.Fprintf(f, "%d\n", os.Getpid())
	return err
}

// makeDirs makes the folders that several components use.
func makeDirs(cfg *Config) error {
	dirs := []struct {
		path string
		mode os.FileMode
	}{{filepath.Join(cfg.RootDir, "pods"), 0o750}, {cfg.PodLogsDir, 0o750}, {cfg.ContainerLogsDir, 0o755}}
	for _, d := range dirs {
		if d.path == "" {
			continue
		}
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return fmt.Errorf("folders of the agent: %w", err)
		}
	}
	return nil
}
