package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"berth/internal/api/server"
	"berth/internal/host/rootlock"
	"berth/internal/localapi"
	"berth/internal/pod"
	"berth/internal/runtime/embedded"
	"berth/internal/sync/drain"
	"berth/internal/sync/leftovers"
)

// newDrain builds what ends all pods, and returns what finds them.
func (a *Agent) newDrain() (find func() []*pod.Status) {
	found := leftovers.New(leftovers.Config{
		Observed: a.pleg.Known, Folders: []func() ([]pod.UID, error){a.syncer.OnDisk, a.runtime.OnDisk}, Cgroups: a.facts,
		Statuses: a.status, Pods: a.pods, Settled: a.storage.volumes.Settled, SparesOthers: a.settings.mode == runMode, Log: a.cfg.Log,
	})
	a.drain = drain.New(drain.Config{
		Pods: a.pods, Workers: a.workers, Observed: a.pleg, Leftovers: found.Find, Cgroups: a.facts,
		ReadOnly: func() bool { return rootlock.IsReadOnly(a.cfg.RootDir) }, Journal: a.journal, Log: a.cfg.Log,
	})
	return found.Find
}

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
	return errors.Join(append(errs, removeFiles(&a.cfg), a.unshareRoot())...)
}

// removeFiles removes what agents leave on the disk.
func removeFiles(cfg *Config) error {
	var own []string
	for _, name := range []string{allocationsFile, probesFile, statusesFile, killsFile, recordsFolder, manifestsDir, imageRecordsDir, localapi.Dir, localapi.RulesFile} {
		own = append(own, filepath.Join(cfg.RootDir, name))
	}
	own = append(own, embedded.APIFolder(cfg.RootDir))
	return drain.RemoveFiles(own, []string{filepath.Join(cfg.RootDir, "pods"), cfg.PodLogsDir, cfg.ContainerLogsDir})
}

// removeLast removes what the agent has in use to its end.
func removeLast(cfg *Config) error {
	own := []string{filepath.Join(cfg.RunDir, "mounts"), filepath.Join(cfg.RunDir, localapi.Kubeconfig), filepath.Join(cfg.RunDir, localapi.ViewDir), filepath.Join(cfg.RunDir, server.LockFile)}
	for _, name := range []string{
		cpuStateFile, memoryStateFile, claimsFile, claimHealthFile, thresholdsFile, shutdownFile, devicePluginsDir, registryDir,
		filepath.Dir(podResourcesSocket), rootlock.File,
	} {
		own = append(own, filepath.Join(cfg.RootDir, name))
	}
	return drain.RemoveFiles(own, nil)
}

// removeFolders removes the root and run directories, unless somebody has put something there.
func removeFolders(cfg *Config) error {
	return drain.RemoveFiles(nil, []string{filepath.Join(cfg.RootDir, "plugins"), cfg.RootDir, cfg.RunDir})
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
