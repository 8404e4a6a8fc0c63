package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"berth/internal/checkpoint"
	"berth/internal/host/rootlock"
	"berth/internal/sync/drain"
)

// lastFile, in the run directory, stores the directories of the last agent, so that its pods can be
// stopped when no agent runs. A reboot deletes it together with the pods.
const lastFile = "agent.json"

type lastConfig struct {
	RootDir          string `json:"rootDir"`
	NodeName         string `json:"nodeName"`
	RuntimeEndpoint  string `json:"runtimeEndpoint,omitempty"`
	CgroupRoot       string `json:"cgroupRoot,omitempty"`
	PodLogsDir       string `json:"podLogsDir"`
	ContainerLogsDir string `json:"containerLogsDir,omitempty"`
	// Left lists, one a line, pods that the agent was to stop and that still run or are not
	// removed.
	Left []string `json:"left,omitempty"`
}

// LastConfig returns the configuration of the last agent in the run directory that left its pods
// running, without paths and log. The error wraps fs.ErrNotExist if there was none, or if it
// stopped its pods.
func LastConfig(runDir string) (Config, error) {
	l, err := readLast(runDir)
	if err != nil {
		return Config{}, err
	}
	return Config{
		RootDir: l.RootDir, RunDir: runDir, NodeName: l.NodeName, RuntimeEndpoint: l.RuntimeEndpoint, CgroupRoot: l.CgroupRoot,
		PodLogsDir: l.PodLogsDir, ContainerLogsDir: l.ContainerLogsDir,
	}, nil
}

func readLast(runDir string) (l lastConfig, err error) {
	b, err := os.ReadFile(filepath.Join(runDir, lastFile))
	if err != nil {
		return l, fmt.Errorf("last agent in %s: %w", runDir, err)
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return l, fmt.Errorf("last agent in %s: %s: %w; start an agent with the flags of the last one, which rewrites the file",
			runDir, lastFile, err)
	}
	return l, nil
}

// CheckEnded returns nil if the last agent in the run directory, which was to stop its pods, did
// so. Otherwise the error names what is left.
func CheckEnded(runDir string) error {
	l, err := readLast(runDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(l.Left) == 0:
		return errors.New("the agent ended before it had ended its pods, which may go on running; " +
			`run "berth stop --all" again`)
	}
	return drain.Left(l.Left).Err()
}

func (a *Agent) saveConfig() error {
	c := &a.deps.cfg
	b, err := json.Marshal(lastConfig{
		c.RootDir, c.NodeName, c.RuntimeEndpoint, c.CgroupRoot, c.PodLogsDir, c.ContainerLogsDir, a.ending.drain.Left(),
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.RunDir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(c.RunDir, lastFile)
	if err := checkpoint.WriteWarm(path, 0o600, b); err != nil { // a reboot deletes it
		return fmt.Errorf("save the last configuration: %w", err)
	}
	return nil
}

// StartRuntime starts the embedded runtime, leaves it running for the next agent with these
// directories, and returns its endpoint: unix:// and the path of its socket. It fails while an
// agent holds the root or run directory.
func StartRuntime(ctx context.Context, cfg Config) (endpoint string, err error) {
	a, err := Build(cfg)
	if err != nil {
		return "", err
	}
	_, release, err := a.claimFolders()
	if err != nil {
		return "", err
	}
	defer release()
	if err := a.saveConfig(); err != nil {
		return "", err
	}
	return a.runtime.embedded.Ensure(ctx)
}

// Drain stops the pods of an earlier agent according to AtExit, and returns when that is done. It
// reads no manifests and serves no API.
func (a *Agent) Drain(ctx context.Context) error {
	if a.runtime.embedded != nil && rootlock.IsReadOnly(a.deps.cfg.RootDir) {
		return a.drainReadOnly(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := component{name: "drain", run: waitDone, ready: func(context.Context) error {
		cancel()
		return nil
	}}
	return a.run(ctx, append(a.podPhases(), phase{"drain", []component{begin}}))
}
