package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"berth/internal/cri"
	"berth/internal/pod"
	"berth/internal/podworkers"
)

// lastFile, in the run directory, is what the last agent there was told about the places that its pods use, so that they can be ended
// when no agent runs. A reboot forgets it together with the pods.
const lastFile = "agent.json"

// lastConfig is the file's content.
type lastConfig struct {
	RootDir          string `json:"rootDir"`
	NodeName         string `json:"nodeName"`
	RuntimeEndpoint  string `json:"runtimeEndpoint,omitempty"`
	CgroupRoot       string `json:"cgroupRoot,omitempty"`
	PodLogsDir       string `json:"podLogsDir"`
	ContainerLogsDir string `json:"containerLogsDir,omitempty"`
}

// LastConfig returns the configuration of the last agent in the run directory that left its pods behind, without paths and log. It wraps
// fs.ErrNotExist when there was none, or when it took its pods along.
func LastConfig(runDir string) (Config, error) {
	b, err := os.ReadFile(filepath.Join(runDir, lastFile))
	if err != nil {
		return Config{}, fmt.Errorf("last agent in %s: %w", runDir, err)
	}
	var l lastConfig
	if err := json.Unmarshal(b, &l); err != nil {
		return Config{}, fmt.Errorf("last agent in %s: %s: %w; start an agent with the flags of the last one, which writes it anew", runDir, lastFile, err)
	}
	return Config{
		RootDir: l.RootDir, RunDir: runDir, NodeName: l.NodeName, RuntimeEndpoint: l.RuntimeEndpoint, CgroupRoot: l.CgroupRoot,
		PodLogsDir: l.PodLogsDir, ContainerLogsDir: l.ContainerLogsDir,
	}, nil
}

func (a *Agent) saveConfig() error {
	c := &a.cfg
	b, err := json.Marshal(lastConfig{c.RootDir, c.NodeName, c.RuntimeEndpoint, c.CgroupRoot, c.PodLogsDir, c.ContainerLogsDir})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.RunDir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(c.RunDir, lastFile)
	if err := errors.Join(os.WriteFile(path+".tmp", b, 0o600), os.Rename(path+".tmp", path)); err != nil {
		return fmt.Errorf("keep what the agent was told: %w", err)
	}
	return nil
}

// Drain ends the pods that an earlier agent left behind, as AtExit says, and returns when that is done. It takes no manifests and serves no API.
func (a *Agent) Drain(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := component{name: "drain", run: waitDone, ready: func(context.Context) error {
		cancel()
		return nil
	}}
	return a.run(ctx, append(a.phases()[:podsPhase+1], phase{"drain", []component{begin}}))
}

// drainPods ends every pod when the agent is not to leave any behind: those of its workers, and what the runtime and the disk have besides.
func (a *Agent) drainPods(ctx context.Context) error {
	if a.Exit() == KeepPods {
		return nil
	}
	for _, p := range a.pods.List() { // the loop, which owns them, has stopped
		a.pods.Remove(p)
	}
	ctx, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	a.workers.SyncKnownPods(nil)
	select {
	case <-a.pleg.Relisted():
	case <-ctx.Done():
		return fmt.Errorf("the runtime did not list its pods within %s: %w", drainLimit, a.pleg.Health())
	}
	for _, s := range a.leftovers() {
		if !a.workers.Has(s.UID) {
			grace := longestGrace(s)
			a.workers.UpdatePod(podworkers.UpdatePodOptions{
				UpdateType: podworkers.SyncPodKill, RunningPod: s, KillPodOptions: &podworkers.KillPodOptions{PodTerminationGracePeriodSecondsOverride: &grace},
			})
		}
	}
	for a.workers.Len() > 0 {
		select {
		case <-a.workers.Finished().Wake():
			a.workers.Finished().Take()
		case <-ctx.Done():
			return fmt.Errorf("%d pods did not end within %s", a.workers.Len(), drainLimit)
		}
	}
	if err := os.Remove(filepath.Join(a.cfg.RunDir, lastFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// longestGrace returns the longest grace period in seconds that the pod's containers were made with.
func longestGrace(s *pod.Status) int64 {
	grace := int64(1)
	for i := range s.Containers {
		if g, ok := cri.TerminationGrace(&s.Containers[i]); ok {
			grace = max(grace, g)
		}
	}
	return grace
}
