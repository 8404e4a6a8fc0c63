package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/events"
	"berth/internal/images"
	"berth/internal/pod"
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
		var accounts images.Accounts
		if a.member.api != nil {
			accounts = a.member.api.objects
		}
		var err error
		if c.Providers, err = images.LoadProviders(k.ImageCredentialProviderConfig, k.ImageCredentialProviderBinDir, accounts, a.out.Metrics); err != nil {
			return nil, err
		}
	}
	return images.New(c), nil
}

// imageGC are the settings of image garbage collection.
type imageGC struct {
	minAge, maxAge time.Duration
	high, low      int // percent
}

// newCollector builds imageManager's garbage collection. In run mode it leaves what the user brought: nobody could pull that again.
func (a *Agent) newCollector(s settings, recorder *events.Recorder) *images.Collector {
	c := images.GCConfig{
		Store: a.cri, Puller: a.puller, MinAge: s.imageGC.minAge, MaxAge: s.imageGC.maxAge, HighPercent: s.imageGC.high, LowPercent: s.imageGC.low,
		KeepUnrecorded: a.member == nil, Disk: a.out.Disk, HasImageVolumes: a.hasImageVolumes, NodeEvent: recorder.NodeEvent, Metrics: a.out.Metrics, Log: a.cfg.Log,
	}
	if c.Disk == nil {
		c.Disk = diskOf
	}
	return images.NewCollector(c)
}

// diskOf asks the kernel. What is free for root alone is not free for images.
func diskOf(folder string) (capacity, available uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(folder, &st); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", folder, err)
	}
	return st.Blocks * uint64(st.Bsize), st.Bavail * uint64(st.Bsize), nil
}

// hasImageVolumes reports whether the pod mounts images, true if it is not known any more.
func (a *Agent) hasImageVolumes(uid pod.UID) bool {
	p, ok := a.pods.Get(uid)
	return !ok || slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool { return v.Image != nil })
}

// recoverImageRecords brings the records of pulls up to date. Without them pods only have to pull more often.
func (a *Agent) recoverImageRecords(ctx context.Context) error {
	if err := a.puller.Recover(ctx); err != nil {
		a.cfg.Log.Warn("some images must be pulled again before pods may use them", "error", err)
	}
	return nil
}
