package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/images"
)

// imageManager pulls images and removes unused ones.
type imageManager struct {
	puller    *images.Puller
	collector *images.Collector
}

// newImageManager also loads the configuration of the credential provider plugins.
func newImageManager(g *dependencies, rt *containerRuntime, o *objectSources) (m imageManager, err error) {
	s := g.settings.images
	c := images.Config{
		Runtime: rt.cri.Images, Recorder: g.recorder, Journal: g.journal, Log: g.cfg.Log, Secrets: o.objects,
		MaxParallel: s.parallelPulls, QPS: s.pullQPS, Burst: s.pullBurst,
		DockerConfigs: images.DockerConfigFiles(g.cfg.RootDir),
		RecordsDir:    g.cfg.inRoot(imageRecordsDir), Verification: s.verification, Metrics: g.out.Metrics,
	}
	if s.providers != "" {
		if c.Providers, err = images.LoadProviders(s.providers, s.providerBinDir, o.accounts, g.out.Metrics); err != nil {
			return m, err
		}
	}
	m.puller = images.New(c)
	gc := images.GCConfig{
		Tracer: g.stores.tracer,
		Store:  rt.cri.Images, Puller: m.puller, MinAge: s.minAge, MaxAge: s.maxAge, HighPercent: s.highPercent, LowPercent: s.lowPercent,
		KeepUnrecorded: s.keepsUnrecorded, Disk: g.out.Disk, HasImageVolumes: func(uid pod.UID) bool { return hasImageVolumes(g.stores.pods, uid) },
		NodeEvent: g.recorder.NodeEvent, Metrics: g.out.Metrics, Log: g.cfg.Log,
	}
	if gc.Disk == nil {
		gc.Disk = diskOf
	}
	m.collector = images.NewCollector(gc)
	return m, nil
}

// PruneImages removes the unused images of a runtime whose agent is not running; rootDir is the
// agent's. It returns a verdict for every image.
func PruneImages(ctx context.Context, rootDir string, rt *cri.Images, o images.PruneOptions) ([]images.Verdict, error) {
	return images.NewCollector(images.GCConfig{
		Store: rt, Puller: images.New(images.Config{Runtime: rt, RecordsDir: filepath.Join(rootDir, imageRecordsDir)}),
		HasImageVolumes: func(pod.UID) bool { return true }, // unknown without an agent
		NodeEvent:       func(string, string, string) {}, Log: slog.New(slog.DiscardHandler),
	}).Prune(ctx, o)
}

// loadPullRecords reconciles the pull records with the runtime. Without records, pods only pull
// more often.
func (m *imageManager) loadPullRecords(log *slog.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := m.puller.Recover(ctx); err != nil {
			log.Warn("some images must be pulled again before pods may use them", "error", err)
		}
		return nil
	}
}

// diskOf reads a file system's size. Space that is reserved for root does not count as available.
func diskOf(folder string) (capacity, available uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(folder, &st); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", folder, err)
	}
	return st.Blocks * uint64(st.Bsize), st.Bavail * uint64(st.Bsize), nil
}

// hasImageVolumes reports whether the pod has image volumes, true for an unknown pod.
func hasImageVolumes(pods *pod.Manager, uid pod.UID) bool {
	p, ok := pods.Get(uid)
	return !ok || slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool { return v.Image != nil })
}
