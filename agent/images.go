package agent

import (
	"context"
	"path/filepath"

	"berth/internal/events"
	"berth/internal/images"
)

// newPuller builds imageManager's pull side, and reads the configuration of the node's credential providers.
func (a *Agent) newPuller(s settings, recorder *events.Recorder) (*images.Puller, error) {
	c := images.Config{
		Runtime: a.cri, Recorder: recorder, Journal: a.journal, Log: a.cfg.Log,
		MaxParallel: s.parallelImagePulls, QPS: s.imagePullQPS, Burst: s.imagePullBurst,
		DockerConfigs: images.DockerConfigFiles(a.cfg.RootDir),
		RecordsDir:    filepath.Join(a.cfg.RootDir, imageRecordsDir), Verification: s.imageVerification,
	}
	if o := a.podObjects(); o != nil {
		c.Secrets = o
	}
	if k := a.cfg.Kubelet; k != nil && k.ImageCredentialProviderConfig != "" {
		var err error
		if c.Providers, err = images.LoadProviders(k.ImageCredentialProviderConfig, k.ImageCredentialProviderBinDir); err != nil {
			return nil, err
		}
	}
	return images.New(c), nil
}

// recoverImageRecords brings the records of pulls up to date. Without them pods only have to pull more often.
func (a *Agent) recoverImageRecords(ctx context.Context) error {
	if err := a.puller.Recover(ctx); err != nil {
		a.cfg.Log.Warn("some images must be pulled again before pods may use them", "error", err)
	}
	return nil
}
