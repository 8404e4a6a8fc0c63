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

// lastFile, in the run directory, is what the last agent there was told about the places that its
// pods use, so that they can be ended when no agent runs. A reboot forgets it together with the
// pods.
const lastFile = "agent.json"

// lastConfig is the file's content.
type lastConfig struct {
	RootDir          string `json:"rootDir"`
	NodeName         string `json:"nodeName"`
	RuntimeEndpoint  string `json:"runtimeEndpoint,omitempty"`
	CgroupRoot       string `json:"cgroupRoot,omitempty"`
	PodLogsDir       string `json:"podLogsDir"`
	ContainerLogsDir string `json:"containerLogsDir,omitempty"`
	// Left is what still runs, or is not removed, of pods that the agent was to end: a line each.
	Left []string `json:"left,omitempty"`
}

// LastConfig returns the configuration of the last agent in the run directory that left its pods
// behind, without paths and log. It wraps fs.ErrNotExist when there was none, or when it took its
// pods along.
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

// CheckEnded returns nil when the last agent in the run directory, which was told to take its pods
// along, has done so, and else an error that names what is left.
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
	c := &a.cfg
	b, err := json.Marshal(lastConfig{
		c.RootDir, c.NodeName, c.RuntimeEndpoint, c.CgroupRoot, c.PodLogsDir, c.ContainerLogsDir, a.drain.Left(),
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.RunDir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(c.RunDir, lastFile)
	if err := checkpoint.WriteWarm(path, 0o600, b); err != nil { // a reboot forgets it
		return fmt.Errorf("save the last configuration: %w", err)
	}
	return nil
}

// StartRuntime starts the runtime that berth brings along, leaves it running for the next agent
// with these directories, and returns its endpoint: unix:// and the path of its socket. It fails
// while an agent has the root directory or the run directory.
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
	return a.embedded.Ensure(ctx)
}

// Drain ends the pods that an earlier agent left behind, as AtExit says, and returns when that is
// done. It takes no manifests and serves no API.
func (a *Agent) Drain(ctx context.Context) error {
	if a.embedded != nil && rootlock.IsReadOnly(a.cfg.RootDir) {
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
