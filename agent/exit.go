package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/checkpoint"
)

// removeAll ends the embedded runtime and removes what was kept, as far as the agent was told to.
func (a *Agent) removeAll(ctx context.Context) error {
	exit := a.Exit()
	if exit == KeepPods {
		return nil
	}
	ended := a.endRuntime(ctx)
	if err := errors.Join(ended, a.noteEnded()); err != nil {
		return err
	}
	if exit != RemoveAll {
		return a.unshareRoot()
	}
	errs := []error{a.facts.RemoveQoS(), os.RemoveAll(a.recordsDir())}
	if a.embedded != nil {
		errs = append(errs, a.embedded.Remove(ctx))
	}
	for _, name := range []string{allocationsFile, probesFile, statusesFile, killsFile} {
		errs = append(errs, checkpoint.RemoveAll(filepath.Join(a.cfg.RootDir, name)))
	}
	errs = append(errs, os.RemoveAll(filepath.Join(a.cfg.RootDir, manifestsDir)), os.RemoveAll(filepath.Join(a.cfg.RootDir, imageRecordsDir)))
	// Whatever else is there is not ours, and stays.
	for _, d := range []string{filepath.Join(a.cfg.RootDir, "pods"), a.cfg.PodLogsDir, a.cfg.ContainerLogsDir} {
		if err := os.Remove(d); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, a.unshareRoot())...)
}

// endRuntime ends the embedded runtime, and the shims that no container needs any more.
func (a *Agent) endRuntime(ctx context.Context) error {
	if a.embedded == nil {
		return nil
	}
	err := a.embedded.Stop(ctx)
	if err == nil && len(a.left) == 0 {
		end := a.embedded.EndShims
		if isReadOnly(a.cfg.RootDir) {
			end = a.embedded.EndAll // containerd could not
		}
		err = end(ctx)
	}
	if err != nil {
		a.left = append(a.left, err.Error())
	}
	return err
}

// Exit says what becomes of pods and runtime when the agent ends, a client's wish included.
func (a *Agent) Exit() AtExit {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.atExit
}
