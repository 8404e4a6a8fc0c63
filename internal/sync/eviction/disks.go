package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/observe/stats"
	"berth/internal/pod"
)

const (
	// maxWalks limits the pods whose files are measured concurrently, walkLimit the time for one
	// of them, and rankLimit the time for all: the disk fills meanwhile.
	maxWalks, walkLimit, rankLimit = 4, 20 * time.Second, time.Minute
)

// disks reads free disk space, reclaims it, and ranks pods by their files. It belongs to one loop.
type disks struct {
	evaluator *evaluator
	readings  Readings
	garbage   Garbage
	storage   Storage
	observed  func(uid pod.UID) (*pod.Status, bool)
	log       *slog.Logger

	places *stats.Places // nil: to be read from the runtime
	layout layout
}

// measure reads what is available on the file systems. The first reading determines which they are.
func (d *disks) measure(ctx context.Context) (reading, error) {
	if d.places == nil {
		places, err := d.readings.Places(ctx)
		if err != nil {
			return reading{}, err
		}
		d.places = &places
	}
	out := observed{}
	var devices [3]uint64
	for i, of := range []struct {
		path          string
		space, inodes Signal
	}{
		{d.places.Node, NodeFsAvailable, NodeFsInodesFree},
		{d.places.Images, ImageFsAvailable, ImageFsInodesFree},
		{d.places.Containers, ContainerFsAvailable, ContainerFsInodesFree},
	} {
		fs, err := d.readings.FileSystem(of.path)
		if err != nil {
			d.places = nil // they may have changed
			return reading{}, err
		}
		devices[i] = fs.Device
		if fs.Space.Capacity > 0 {
			out[of.space] = fs.Space
		}
		if fs.Inodes.Capacity > 0 { // btrfs has no inode count
			out[of.inodes] = fs.Inodes
		}
	}
	d.layout = computeLayout(devices[0], devices[1], devices[2])
	d.evaluator.setThresholds(d.layout.withContainerFs(d.evaluator.thresholds))
	return reading{left: out}, nil
}

// reclaim removes dead containers and unused images from the file system that is short.
func (d *disks) reclaim(ctx context.Context, m *met) bool {
	r := d.layout.remedyOf(m.threshold.Signal)
	if r.containers {
		if err := d.garbage.RemoveDead(ctx); err != nil && ctx.Err() == nil {
			d.log.Warn("dead containers are not all removed", "threshold", m.threshold.String(), "error", err)
		}
	}
	if r.images {
		freed, err := d.garbage.RemoveUnused(ctx)
		if err != nil && ctx.Err() == nil {
			d.log.Warn("unused images are not all removed", "threshold", m.threshold.String(), "error", err)
		}
		if freed > 0 {
			d.log.Info("removed unused images", "threshold", m.threshold.String(), "size", quantity(storage, freed))
		}
	}
	return r.containers || r.images
}

// rank ranks pods by their current files on the file system that is short. A measurement that
// times out counts with its partial result.
func (d *disks) rank(ctx context.Context, m *met, candidates func() []candidate) ([]candidate, error) {
	what, r := m.threshold.Signal.resource(), d.layout.remedyOf(m.threshold.Signal)
	out := candidates()
	limited, cancel := context.WithTimeout(ctx, rankLimit)
	defer cancel()
	slots := make(chan struct{}, maxWalks)
	errs := make([]error, len(out))
	var walks sync.WaitGroup
	for i := range out {
		slots <- struct{}{}
		walks.Go(func() {
			defer func() { <-slots }()
			errs[i] = d.measurePod(limited, what, r.rank, &out[i])
		})
	}
	walks.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) > 0 {
		d.log.Warn("files of pods are not all measured: what was not seen of them counts as nothing", "pods", len(errs), "error", errs[0])
	}
	rank(what, out)
	return out, nil
}

func (d *disks) measurePod(ctx context.Context, what v1.ResourceName, of files, c *candidate) error {
	s, ok := d.observed(c.pod.UID)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, walkLimit)
	defer cancel()
	extent := stats.Extent{Containers: of&(rootfs|logs) != 0}
	for i := range c.pod.Spec.Volumes {
		if v := &c.pod.Spec.Volumes[i]; of&volumes != 0 && stats.IsEphemeral(v) {
			extent.Volumes = append(extent.Volumes, v.Name)
		}
	}
	used, err := d.storage.Local(ctx, c.pod, s, extent)
	c.addFiles(what, of, &used)
	if err != nil {
		return fmt.Errorf("pod %s: %w", pod.Describe(c.pod), err)
	}
	return nil
}
