package eviction

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/observe/stats"
	"berth/internal/pod"
)

const (
	// walksAtOnce bounds the pods whose files are walked at a time, walkLimit how long one walk may
	// take.
	walksAtOnce, walkLimit = 4, 20 * time.Second
)

// disks reads what is left of disks, frees them, and ranks pods by their files. It belongs to one
// loop.
type disks struct {
	*Manager
	places *stats.Places // nil: the runtime was not asked yet
	layout layout
}

// read reads what is left of the file systems. The first reading finds out which they are.
func (d *disks) read(ctx context.Context) (rooms, error) {
	if d.places == nil {
		places, err := d.Readings.Places(ctx)
		if err != nil {
			return nil, err
		}
		d.places = &places
	}
	out := rooms{}
	var devices [3]uint64
	for i, of := range []struct {
		path          string
		space, inodes Signal
	}{
		{d.places.Node, NodeFsAvailable, NodeFsInodesFree},
		{d.places.Images, ImageFsAvailable, ImageFsInodesFree},
		{d.places.Containers, ContainerFsAvailable, ContainerFsInodesFree},
	} {
		fs, err := d.Readings.FileSystem(of.path)
		if err != nil {
			d.places = nil // they may be others now
			return nil, err
		}
		devices[i] = fs.Device
		if fs.Space.Capacity > 0 {
			out[of.space] = fs.Space
		}
		if fs.Inodes.Capacity > 0 { // btrfs has no number of inodes
			out[of.inodes] = fs.Inodes
		}
	}
	d.layout = computeLayout(devices[0], devices[1], devices[2])
	thresholds := d.layout.withContainerFs(d.disks.thresholds)
	d.mu.Lock()
	d.disks.thresholds = thresholds
	d.mu.Unlock()
	return out, nil
}

// reclaim removes what nobody needs from the file system that is short.
func (d *disks) reclaim(ctx context.Context, m *met) bool {
	r := d.layout.remedyOf(m.Signal)
	if r.containers {
		if err := d.Garbage.RemoveDead(ctx); err != nil && ctx.Err() == nil {
			d.Log.Warn("dead containers are not all removed", "threshold", m.Threshold.String(), "error", err)
		}
	}
	if r.images {
		freed, err := d.Garbage.RemoveUnused(ctx)
		if err != nil && ctx.Err() == nil {
			d.Log.Warn("unused images are not all removed", "threshold", m.Threshold.String(), "error", err)
		}
		if freed > 0 {
			d.Log.Info("removed unused images", "threshold", m.Threshold.String(), "size", quantity(storage, freed))
		}
	}
	return r.containers || r.images
}

// rankPods ranks pods by the files that they have now where the disk is short. What takes too long
// to measure counts as nothing.
func (d *disks) rankPods(ctx context.Context, m *met) ([]candidate, error) {
	what, r := m.Signal.resource(), d.layout.remedyOf(m.Signal)
	out := d.candidates(what)
	slots := make(chan struct{}, walksAtOnce)
	var walks sync.WaitGroup
	for i := range out {
		slots <- struct{}{}
		walks.Go(func() {
			defer func() { <-slots }()
			d.measurePod(ctx, what, r.rank, &out[i])
		})
	}
	walks.Wait()
	rank(what, out)
	return out, ctx.Err()
}

// measurePod adds what the pod's files take.
func (d *disks) measurePod(ctx context.Context, what v1.ResourceName, of files, c *candidate) {
	s, ok := d.Observed(c.pod.UID)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, walkLimit)
	defer cancel()
	extent := stats.Extent{Containers: of&(rootfs|logs) != 0}
	for i := range c.pod.Spec.Volumes {
		if v := &c.pod.Spec.Volumes[i]; of&volumes != 0 && stats.IsEphemeral(v) {
			extent.Volumes = append(extent.Volumes, v.Name)
		}
	}
	used, err := d.Storage.Local(ctx, c.pod, s, extent)
	if err != nil && !errors.Is(err, context.Canceled) {
		d.Log.Warn("files of a pod cannot be measured: they count as nothing", "pod", pod.Describe(c.pod), "error", err)
	}
	c.addFiles(what, of, &used)
}
