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

// newDrain creates the drain of all pods, and returns the function that finds leftover pods.
func (a *Agent) newDrain() (find func() []*pod.Status) {
	found := leftovers.New(leftovers.Config{
		Observed: a.observation.pleg.Known, Folders: []func() ([]pod.UID, error){a.lifecycle.syncer.OnDisk, a.lifecycle.runtime.OnDisk}, Cgroups: a.runtime.facts,
		Statuses: a.deps.stores.status, Pods: a.deps.stores.pods, Settled: a.storage.volumes.CSI.Settled, SparesOthers: a.deps.settings.mode == runMode, Log: a.deps.cfg.Log,
	})
	a.ending.drain = drain.New(drain.Config{
		Pods: a.deps.stores.pods, Workers: a.lifecycle.workers, Observed: a.observation.pleg, Leftovers: found.Find, Cgroups: a.runtime.facts,
		ReadOnly: func() bool { return rootlock.IsReadOnly(a.deps.cfg.RootDir) }, Journal: a.deps.journal, Log: a.deps.cfg.Log,
	})
	return found.Find
}

// removeAll stops the embedded runtime and removes state according to AtExit.
func (a *Agent) removeAll(ctx context.Context) error {
	exit := a.Exit()
	if exit == KeepPods {
		return nil
	}
	var ended error
	if a.runtime.embedded != nil {
		ended = a.ending.drain.EndRuntime(ctx, a.runtime.embedded)
	}
	if err := errors.Join(ended, a.noteEnded()); err != nil {
		return err
	}
	if exit != RemoveAll {
		return unshareRoot(&a.deps)
	}
	errs := []error{a.runtime.facts.RemoveQoS()}
	if a.runtime.embedded != nil {
		errs = append(errs, a.runtime.embedded.Remove(ctx))
	}
	return errors.Join(append(errs, removeFiles(&a.deps.cfg), unshareRoot(&a.deps))...)
}

// removeFiles removes the agent's files.
func removeFiles(cfg *Config) error {
	var own []string
	for _, name := range []string{allocationsFile, probesFile, statusesFile, killsFile, recordsFolder, manifestsDir, imageRecordsDir, localapi.Dir, localapi.RulesFile} {
		own = append(own, filepath.Join(cfg.RootDir, name))
	}
	own = append(own, embedded.APIFolder(cfg.RootDir))
	return drain.RemoveFiles(own, []string{filepath.Join(cfg.RootDir, "pods"), cfg.PodLogsDir, cfg.ContainerLogsDir})
}

// removeLast removes what the agent uses until its exit.
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

// removeFolders removes the root and run directories if they contain no other files.
func removeFolders(cfg *Config) error {
	return drain.RemoveFiles(nil, []string{filepath.Join(cfg.RootDir, "plugins"), cfg.RootDir, cfg.RunDir})
}

// noteEnded records whether pods are left, for the client that requested the stop and for the next
// agent.
func (a *Agent) noteEnded() error {
	if len(a.ending.drain.Left()) > 0 {
		return a.saveConfig()
	}
	if err := os.Remove(filepath.Join(a.deps.cfg.RunDir, lastFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// drainPods stops all pods unless AtExit is KeepPods. The sync loop, which owns the desired pods,
// has stopped.
func (a *Agent) drainPods(ctx context.Context) error {
	if a.Exit() == KeepPods {
		return nil
	}
	return a.ending.drain.EndPods(ctx)
}

// Exit returns what happens to pods and runtime at exit, including a client's request.
func (a *Agent) Exit() AtExit {
	a.ending.mu.Lock()
	defer a.ending.mu.Unlock()
	return a.ending.atExit
}
