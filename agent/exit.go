package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"berth/internal/drain"
)

// removeAll ends the embedded runtime and removes what was kept, as far as the agent was told to.
func (a *Agent) removeAll(ctx context.Context) error {
	exit := a.Exit()
	if exit == KeepPods {
		return nil
	}
	var ended error
	if a.embedded != nil {
		ended = a.drain.EndRuntime(ctx, a.embedded)
	}
	if err := errors.Join(ended, a.noteEnded()); err != nil {
		return err
	}
	if exit != RemoveAll {
		return a.unshareRoot()
	}
	errs := []error{a.facts.RemoveQoS()}
	if a.embedded != nil {
		errs = append(errs, a.embedded.Remove(ctx))
	}
	return errors.Join(append(errs, remainsOf(&a.cfg).Remove(), a.unshareRoot())...)
}

// remainsOf returns what an agent leaves on the disk.
func remainsOf(cfg *Config) drain.Remains {
	inRoot := func(names ...string) (paths []string) {
		for _, name := range names {
			paths = append(paths, filepath.Join(cfg.RootDir, name))
		}
		return paths
	}
	return drain.Remains{
		Files:   inRoot(allocationsFile, probesFile, statusesFile, killsFile),
		Folders: inRoot(recordsFolder, manifestsDir, imageRecordsDir),
		Shared:  append(inRoot("pods"), cfg.PodLogsDir, cfg.ContainerLogsDir),
	}
}

// noteEnded leaves to who asked for the end of all pods, and to the next agent, whether there is
// something left.
func (a *Agent) noteEnded() error {
	if len(a.drain.Left()) > 0 {
		return a.saveConfig()
	}
	if err := os.Remove(filepath.Join(a.cfg.RunDir, lastFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// drainPods ends every pod when the agent is not to leave any behind. The loop, which owns the
// desired pods, has stopped.
func (a *Agent) drainPods(ctx context.Context) error {
	if a.Exit() == KeepPods {
		return nil
	}
	return a.drain.EndPods(ctx)
}

// Exit says what becomes of pods and runtime when the agent ends, a client's wish included.
func (a *Agent) Exit() AtExit {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.atExit
}
