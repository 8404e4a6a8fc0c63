package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/record/span"
)

// gcPeriod is the kubelet's. Neither disk usage nor image age is signalled.
const gcPeriod = 5 * time.Minute

// Store is the runtime's image store, for garbage collection. Its methods must return soon after
// ctx is done.
type Store interface {
	ListImages(ctx context.Context) ([]*runtimeapi.Image, error)
	// ImageUsers returns the containers, running or not, by the IDs of their images, and by the IDs
	// or names of image volumes that containers mount, of the pods for which withVolumes returns
	// true.
	ImageUsers(ctx context.Context, withVolumes func(pod.UID) bool) (map[string][]string, error)
	// RemoveImage removes the image with the ID, including all its names. Idempotent.
	RemoveImage(ctx context.Context, id string) error
	// ImageFilesystem returns a directory on the image file system.
	ImageFilesystem(ctx context.Context) (string, error)
}

// GCConfig configures a Collector.
type GCConfig struct {
	Store  Store
	Tracer *span.Tracer // of collections; nil: no tracing
	// Puller provides the pinned images and the pull records.
	Puller *Puller
	// MinAge is the minimum age of an image, since it was first seen, to be collected
	// (imageMinimumGCAge), MaxAge the age at which an unused image is collected
	// (imageMaximumGCAge); 0 disables it.
	MinAge, MaxAge time.Duration
	// HighPercent of disk usage starts a collection, which stops at LowPercent. 100 disables
	// collection by disk usage.
	HighPercent, LowPercent int
	// KeepUnrecorded retains images that the agent did not pull: those imported or pulled manually.
	KeepUnrecorded bool
	// Disk returns the capacity and the available bytes of the directory's file system.
	Disk func(folder string) (capacity, available uint64, err error)
	// HasImageVolumes reports whether the pod has image volumes; true if unknown.
	HasImageVolumes func(pod.UID) bool
	// NodeEvent records an event about the node. It must not block.
	NodeEvent func(eventtype, reason, message string)
	// Metrics is the registry for metrics; nil: they are not registered.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Collector garbage-collects images that no container uses. It is safe for concurrent use.
type Collector struct {
	GCConfig
	collected *prometheus.CounterVec
	// one serializes collections; it holds one token.
	one chan struct{}
	// seen is guarded by the token.
	seen  map[string]seenImage
	began time.Time // start of Run
}

// NewCollector returns a Collector. It makes no runtime calls until Run or RemoveUnused is called.
func NewCollector(c GCConfig) *Collector {
	return &Collector{GCConfig: c, collected: newCollected(c.Metrics), one: make(chan struct{}, 1), seen: map[string]seenImage{}, began: time.Now()}
}

// Run lists the images at once, and then collects every five minutes until ctx is done. If neither
// disk usage nor age starts collections, it only lists the images once, so that RemoveUnused has
// their ages.
//
// Differs from the kubelet: the first iteration collects nothing, since every image is new then and
// a full disk would be reported as a failure to free space.
func (c *Collector) Run(ctx context.Context) error {
	ticks := time.NewTicker(gcPeriod)
	defer ticks.Stop()
	failed := false
	for round := c.observe; ; round = c.collect {
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
		if c.HighPercent == 100 && c.MaxAge == 0 {
			ticks.Stop()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticks.C:
		}
	}
}

// RemoveUnused removes every unused image that is older than MinAge, to reclaim disk space, and
// returns the reported size of the removed images in bytes. It may return both a size and an error.
func (c *Collector) RemoveUnused(ctx context.Context) (freed uint64, err error) {
	err = c.alone(ctx, func(done *collection) error {
		verdicts, err := c.judge(ctx, rules{minAge: c.MinAge, keepUnrecorded: c.KeepUnrecorded})
		if err != nil {
			return err
		}
		freed, err = c.free(ctx, verdicts, ^uint64(0), forSpace, done)
		return errors.Join(err, c.prune(ctx))
	})
	return freed, err
}

// PruneOptions are the options of Prune. The zero value removes unused images that an agent pulled.
type PruneOptions struct {
	// DryRun removes nothing.
	DryRun bool `json:"dryRun,omitempty"`
	// All also removes images that no agent pulled.
	All bool `json:"all,omitempty"`
}

// Prune removes unused images on request: MinAge is ignored, and images that no agent pulled are
// retained, whatever KeepUnrecorded, unless o.All is set. It returns a verdict on every image.
// Images that could not be removed have an error in their verdict; other errors are returned.
func (c *Collector) Prune(ctx context.Context, o PruneOptions) (verdicts []Verdict, err error) {
	err = c.alone(ctx, func(done *collection) error {
		if verdicts, err = c.judge(ctx, rules{keepUnrecorded: !o.All}); err != nil || o.DryRun {
			return err
		}
		_, _ = c.free(ctx, verdicts, ^uint64(0), onRequest, done)
		return errors.Join(ctx.Err(), c.prune(ctx))
	})
	return verdicts, err
}

// observe is the first iteration.
func (c *Collector) observe(ctx context.Context) error {
	return c.alone(ctx, func(*collection) error {
		if _, err := c.judge(ctx, rules{}); err != nil {
			return err
		}
		return c.prune(ctx)
	})
}

// collect is each later iteration.
func (c *Collector) collect(ctx context.Context) (err error) {
	ctx, ended := c.Tracer.Begin(ctx, "Images/GarbageCollect")
	defer func() { ended(err) }()
	return c.alone(ctx, func(done *collection) error {
		verdicts, err := c.judge(ctx, rules{minAge: c.MinAge, keepUnrecorded: c.KeepUnrecorded})
		if err != nil {
			return err
		}
		if err := c.removeOld(ctx, verdicts, done); err != nil {
			return err
		}
		if err := c.freeSpace(ctx, verdicts, done); err != nil {
			return err
		}
		return c.prune(ctx)
	})
}

// alone runs one collection exclusively, and records an event about removed images.
func (c *Collector) alone(ctx context.Context, collect func(*collection) error) error {
	select {
	case c.one <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.one }()
	var done collection
	err := collect(&done)
	if len(done.names) > 0 {
		c.NodeEvent(v1.EventTypeNormal, "ImagesRemoved", done.String())
	}
	return err
}

// judge updates the image state and returns a verdict on each image, in order of removal.
func (c *Collector) judge(ctx context.Context, r rules) ([]Verdict, error) {
	list, err := c.Store.ListImages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	users, err := c.Store.ImageUsers(ctx, c.HasImageVolumes)
	if err != nil {
		return nil, fmt.Errorf("images in use: %w", err)
	}
	r.now = time.Now()
	e := evidence{users: usersOf(list, users), ahead: idsOf(list, c.Puller.Pinned()), recorded: map[string]bool{}}
	c.seen = mergeSeen(c.seen, list, e.users, r.now)
	if r.keepUnrecorded {
		for id := range c.seen {
			e.recorded[id], err = c.Puller.recorded(id)
			e.recorded[id] = e.recorded[id] && err == nil
		}
	}
	return computeVerdicts(c.seen, e, r), nil
}

// removeOld removes images that were unused for MaxAge. Usage before the agent's start is unknown,
// so it does nothing until it has been running that long.
//
// Differs from the kubelet: the age of an image that was never used counts since it was first seen,
// so that a new one is not removed at once.
func (c *Collector) removeOld(ctx context.Context, verdicts []Verdict, done *collection) error {
	now := time.Now()
	if c.MaxAge == 0 || now.Sub(c.began) <= c.MaxAge {
		return nil
	}
	for i := range verdicts {
		if v := &verdicts[i]; now.Sub(v.idleSince) > c.MaxAge && c.isRemovable(v) {
			if err := c.remove(ctx, v, cause{metric: "age", why: "that exceeded imageMaximumGCAge (" + c.MaxAge.String() + ")"}, done); err != nil {
				return err
			}
		}
	}
	return nil
}

// freeSpace frees disk space if usage has reached HighPercent.
func (c *Collector) freeSpace(ctx context.Context, verdicts []Verdict, done *collection) error {
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
	freed, err := c.free(ctx, verdicts, wanted, forSpace, done)
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

// free removes unused images in order until wanted bytes are freed, according to their sizes.
// Failures are skipped.
func (c *Collector) free(ctx context.Context, verdicts []Verdict, wanted uint64, by cause, done *collection) (freed uint64, err error) {
	var errs []error
	for i := range verdicts {
		v := &verdicts[i]
		if freed >= wanted || ctx.Err() != nil {
			break
		}
		if v.Removed || !c.isRemovable(v) {
			continue
		}
		if err := c.remove(ctx, v, by, done); err != nil {
			errs = append(errs, err)
			continue
		}
		freed += v.Size
	}
	return freed, errors.Join(append(errs, ctx.Err())...)
}

// isRemovable reports whether the image may be removed. It may have been pinned since the verdict.
func (c *Collector) isRemovable(v *Verdict) bool {
	if v.Fate != Unused {
		return false
	}
	ahead := c.Puller.Pinned()
	if slices.ContainsFunc(v.calls, func(name string) bool { return ahead[name] }) {
		v.Fate = LookedAhead
	}
	return v.Fate == Unused
}

// cause is why a collection removes images.
type cause struct {
	metric string // the value of the reason label; "": not counted
	why    string
}

var (
	forSpace  = cause{metric: "space", why: "to free disk space"}
	onRequest = cause{why: "on request"}
)

func (c *Collector) remove(ctx context.Context, v *Verdict, by cause, done *collection) error {
	if err := c.Store.RemoveImage(ctx, v.ID); err != nil {
		v.Error = err.Error()
		return fmt.Errorf("remove image %s: %w", v.ID, err)
	}
	v.Removed = true
	delete(c.seen, v.ID)
	if by.metric != "" {
		c.collected.WithLabelValues(by.metric).Inc()
	}
	done.add(v, by.why)
	c.Log.Info("removed an unused image", "image", v.name(), "id", v.ID, "size", byteSize(v.Size), "why", by.why)
	return nil
}

// prune removes pull records whose images do not exist any more.
func (c *Collector) prune(ctx context.Context) error {
	if err := c.Puller.PruneRecords(ctx); err != nil {
		return fmt.Errorf("records of pulled images: %w", err)
	}
	return nil
}
