package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// gcPeriod is the kubelet's. Neither a disk nor an image tells when it is time.
const gcPeriod = 5 * time.Minute

// Store is the runtime's image store, for garbage collection. Its methods must return soon after
// ctx is done.
type Store interface {
	// ListImages returns all images.
	ListImages(ctx context.Context) ([]*runtimeapi.Image, error)
	// ImagesInUse returns the ids of the images of all containers, running or not, and of those
	// that are mounted as volumes into containers of the pods for which withVolumes holds.
	ImagesInUse(ctx context.Context, withVolumes func(pod.UID) bool) (map[string]bool, error)
	// RemoveImage removes the image of the id with all its names. Idempotent.
	RemoveImage(ctx context.Context, id string) error
	// ImageFilesystem returns a folder on the file system of the images.
	ImageFilesystem(ctx context.Context) (string, error)
}

// GCConfig is what a Collector needs.
type GCConfig struct {
	Store Store
	// Puller says which images are looked ahead for, and has the records of pulls.
	Puller *Puller
	// MinAge is how long an image is kept at least after it was first seen (imageMinimumGCAge),
	// MaxAge how long one that nobody uses is kept at most (imageMaximumGCAge); 0 is for ever.
	MinAge, MaxAge time.Duration
	// HighPercent of the disk in use begins a collection, which ends at LowPercent. With 100 the
	// disk begins none.
	HighPercent, LowPercent int
	// KeepUnrecorded keeps images that the agent did not pull: those that somebody imported or
	// pulled by hand.
	KeepUnrecorded bool
	// Disk returns the size and the free part in bytes of the file system that the folder is on.
	Disk func(folder string) (capacity, available uint64, err error)
	// HasImageVolumes reports whether the pod has volumes that are images; true when it is not
	// known.
	HasImageVolumes func(pod.UID) bool
	// NodeEvent records an event about the node. It does not block.
	NodeEvent func(eventtype, reason, message string)
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Collector (imageManager's garbage collection) removes images that no container uses. It is safe
// for concurrent use.
type Collector struct {
	GCConfig
	collected *prometheus.CounterVec
	// one lets one goroutine at a time collect; it holds one token.
	one chan struct{}
	// seen belongs to the holder of the token.
	seen  map[string]seenImage
	began time.Time // when Run began
}

// NewCollector returns a Collector. It asks the runtime nothing until Run or RemoveUnused is
// called.
func NewCollector(c GCConfig) *Collector {
	return &Collector{GCConfig: c, collected: newCollected(c.Metrics), one: make(chan struct{}, 1), seen: map[string]seenImage{}, began: time.Now()}
}

// Run looks at the images at once, and then every five minutes to collect what is to go, until ctx
// ends. When neither the disk nor an age begins a collection, it only waits for that.
//
// Differs from the kubelet: nothing is collected at once, as every image is new then, so that a
// full disk is not told of as one that cannot be helped.
func (c *Collector) Run(ctx context.Context) error {
	if c.HighPercent == 100 && c.MaxAge == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	ticks := time.NewTicker(gcPeriod)
	defer ticks.Stop()
	failed := false
	for round := c.look; ; round = c.collect {
		err := round(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			c.Log.Warn("image garbage collection failed", "error", err)
			if failed {
				c.NodeEvent(v1.EventTypeWarning, "ImageGCFailed", err.Error())
			}
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticks.C:
		}
	}
}

// RemoveUnused removes every image that nobody uses and that is older than MinAge, as for a node
// that runs out of disk, and returns the bytes that they were said to have. An error may come
// beside them.
func (c *Collector) RemoveUnused(ctx context.Context) (freed uint64, err error) {
	c.one <- struct{}{}
	defer func() { <-c.one }()
	began := time.Now()
	candidates, err := c.detect(ctx, began)
	if err != nil {
		return 0, err
	}
	if candidates, err = c.removeOld(ctx, candidates, began); err != nil {
		return 0, err
	}
	freed, err = c.free(ctx, candidates, ^uint64(0), began)
	return freed, errors.Join(err, c.prune(ctx))
}

// look is the first round.
func (c *Collector) look(ctx context.Context) error {
	c.one <- struct{}{}
	defer func() { <-c.one }()
	if _, err := c.detect(ctx, time.Now()); err != nil {
		return err
	}
	return c.prune(ctx)
}

// collect is each further round.
func (c *Collector) collect(ctx context.Context) error {
	c.one <- struct{}{}
	defer func() { <-c.one }()
	now := time.Now()
	candidates, err := c.detect(ctx, now)
	if err != nil {
		return err
	}
	if candidates, err = c.removeOld(ctx, candidates, now); err != nil {
		return err
	}
	if err := c.makeRoom(ctx, candidates, now); err != nil {
		return err
	}
	return c.prune(ctx)
}

// detect brings what is known of images up to date and returns those that may go, the ones that go
// first in front.
func (c *Collector) detect(ctx context.Context, now time.Time) ([]seenImage, error) {
	list, err := c.Store.ListImages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	used, err := c.Store.ImagesInUse(ctx, c.HasImageVolumes)
	if err != nil {
		return nil, fmt.Errorf("images in use: %w", err)
	}
	used = idsOf(list, used)
	c.seen = mergeSeen(c.seen, list, used, now)
	keep := idsOf(list, c.Puller.Pinned())
	if c.KeepUnrecorded {
		for id := range c.seen {
			if recorded, err := c.Puller.recorded(id); err != nil || !recorded {
				keep[id] = true
			}
		}
	}
	return rankUnused(c.seen, used, keep), nil
}

// removeOld removes what nobody has used for MaxAge, and returns the rest. As nobody knows what was
// before, it does nothing until it has run so long.
func (c *Collector) removeOld(ctx context.Context, candidates []seenImage, now time.Time) ([]seenImage, error) {
	if c.MaxAge == 0 || now.Sub(c.began) <= c.MaxAge {
		return candidates, nil
	}
	var rest []seenImage
	for _, i := range candidates {
		if now.Sub(i.lastUsed) <= c.MaxAge {
			rest = append(rest, i)
			continue
		}
		if err := c.remove(ctx, i, "age", "nobody has used it for "+c.MaxAge.String()); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

// makeRoom frees space if the disk is full to HighPercent.
func (c *Collector) makeRoom(ctx context.Context, candidates []seenImage, now time.Time) error {
	if c.HighPercent == 100 {
		return nil
	}
	folder, err := c.Store.ImageFilesystem(ctx)
	if err != nil {
		return fmt.Errorf("image filesystem: %w", err)
	}
	capacity, available, err := c.Disk(folder)
	if err != nil {
		return fmt.Errorf("image filesystem: %w", err)
	}
	if capacity == 0 {
		err := errors.New("invalid capacity 0 on image filesystem")
		c.NodeEvent(v1.EventTypeWarning, "InvalidDiskCapacity", err.Error())
		return err
	}
	percent, wanted := computeRoom(capacity, available, c.HighPercent, c.LowPercent)
	if wanted == 0 {
		return nil
	}
	c.Log.Info("the image filesystem is full: unused images are removed", "used", fmt.Sprintf("%d%%", percent), "free", byteSize(wanted))
	freed, err := c.free(ctx, candidates, wanted, now)
	if err != nil {
		return err
	}
	if freed < wanted {
		message := fmt.Sprintf("Insufficient free disk space on the node's image filesystem (%d%% of %s used). Failed to free sufficient space by deleting unused images (freed %d bytes). "+
			"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.", percent, byteSize(capacity), freed)
		c.NodeEvent(v1.EventTypeWarning, "FreeDiskSpaceFailed", message)
		return errors.New(message)
	}
	return nil
}

// free removes images in their order until wanted bytes are freed, as far as their sizes tell. What
// cannot be removed is left out.
func (c *Collector) free(ctx context.Context, candidates []seenImage, wanted uint64, now time.Time) (freed uint64, err error) {
	var errs []error
	for _, i := range candidates {
		if freed >= wanted {
			break
		}
		if !i.lastUsed.Before(now) || now.Sub(i.first) < c.MinAge {
			continue
		}
		if err := c.remove(ctx, i, "space", "to free disk space"); err != nil {
			errs = append(errs, err)
			continue
		}
		freed += i.size
	}
	return freed, errors.Join(errs...)
}

func (c *Collector) remove(ctx context.Context, i seenImage, reason, why string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.Store.RemoveImage(ctx, i.id); err != nil {
		return fmt.Errorf("remove image %s: %w", i.id, err)
	}
	delete(c.seen, i.id)
	c.collected.WithLabelValues(reason).Inc()
	c.Log.Info("removed an unused image", "image", i.name, "id", i.id, "size", byteSize(i.size), "why", why)
	return nil
}

// prune removes the records of pulls whose images are gone, whoever removed them.
func (c *Collector) prune(ctx context.Context) error {
	if err := c.Puller.PruneRecords(ctx); err != nil {
		return fmt.Errorf("records of pulled images: %w", err)
	}
	return nil
}
