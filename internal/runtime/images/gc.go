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

// gcPeriod is the kubelet's. Neither a disk nor an image tells when it is time.
const gcPeriod = 5 * time.Minute

// Store is the runtime's image store, for garbage collection. Its methods must return soon after
// ctx is done.
type Store interface {
	// ListImages returns all images.
	ListImages(ctx context.Context) ([]*runtimeapi.Image, error)
	// ImageUsers returns the containers, running or not, by the ids of their images, and by the ids
	// or names of those that are mounted as volumes into containers of the pods for which
	// withVolumes holds.
	ImageUsers(ctx context.Context, withVolumes func(pod.UID) bool) (map[string][]string, error)
	// RemoveImage removes the image of the id with all its names. Idempotent.
	RemoveImage(ctx context.Context, id string) error
	// ImageFilesystem returns a folder on the file system of the images.
	ImageFilesystem(ctx context.Context) (string, error)
}

// GCConfig is what a Collector needs.
type GCConfig struct {
	Store  Store
	Tracer *span.Tracer // of collections; nil: nobody traces
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
// ends. When neither the disk nor an age begins a collection, it only looks, so that RemoveUnused
// knows how old images are.
//
// Differs from the kubelet: nothing is collected at once, as every image is new then, so that a
// full disk is not told of as one that cannot be helped.
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

// RemoveUnused removes every image that nobody uses and that is older than MinAge, as for a node
// that runs out of disk, and returns the bytes that they were said to have. An error may come
// beside them.
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

// PruneOptions say what Prune may do. The zero value removes what is unused and was pulled by an
// agent.
type PruneOptions struct {
	// DryRun: nothing is removed.
	DryRun bool `json:"dryRun,omitempty"`
	// All: images go too that no agent pulled.
	All bool `json:"all,omitempty"`
}

// Prune removes the images that nobody uses because somebody asked for it: none is too young, and
// those that somebody has brought stay, whatever KeepUnrecorded says, unless they are asked for.
// It returns what became of every image. An error tells what kept it from that; of images that
// could not be removed, their verdicts tell.
func (c *Collector) Prune(ctx context.Context, o PruneOptions) (verdicts []Verdict, err error) {
	err = c.alone(ctx, func(done *collection) error {
		if verdicts, err = c.judge(ctx, rules{keepUnrecorded: !o.All}); err != nil || o.DryRun {
			return err
		}
		_, _ = c.free(ctx, verdicts, ^uint64(0), asAsked, done)
		return errors.Join(ctx.Err(), c.prune(ctx))
	})
	return verdicts, err
}

// observe is the first round.
func (c *Collector) observe(ctx context.Context) error {
	return c.alone(ctx, func(*collection) error {
		if _, err := c.judge(ctx, rules{}); err != nil {
			return err
		}
		return c.prune(ctx)
	})
}

// collect is each further round.
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
		if err := c.makeRoom(ctx, verdicts, done); err != nil {
			return err
		}
		return c.prune(ctx)
	})
}

// alone runs one collection while there is no other, and tells of what it removed.
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

// judge brings what is known of images up to date and says what is to become of each, the ones that
// go first in front.
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

// removeOld removes what nobody has used for MaxAge. As nobody knows what was before, it does
// nothing until it has run so long.
//
// Differs from the kubelet: an image that was never used is as old as it is known, so that a new
// one does not go at once.
func (c *Collector) removeOld(ctx context.Context, verdicts []Verdict, done *collection) error {
	now := time.Now()
	if c.MaxAge == 0 || now.Sub(c.began) <= c.MaxAge {
		return nil
	}
	for i := range verdicts {
		if v := &verdicts[i]; now.Sub(v.idleSince) > c.MaxAge && c.mayGo(v) {
			if err := c.remove(ctx, v, cause{metric: "age", why: "that exceeded imageMaximumGCAge (" + c.MaxAge.String() + ")"}, done); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeRoom frees space if the disk is full to HighPercent.
func (c *Collector) makeRoom(ctx context.Context, verdicts []Verdict, done *collection) error {
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

// free removes unused images in their order until wanted bytes are freed, as far as their sizes
// tell. What cannot be removed is left out.
func (c *Collector) free(ctx context.Context, verdicts []Verdict, wanted uint64, by cause, done *collection) (freed uint64, err error) {
	var errs []error
	for i := range verdicts {
		v := &verdicts[i]
		if freed >= wanted || ctx.Err() != nil {
			break
		}
		if v.Removed || !c.mayGo(v) {
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

// mayGo reports whether the image goes. Since it was judged a container may have been given it.
func (c *Collector) mayGo(v *Verdict) bool {
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
	metric string // the reason that it is counted under; "": it is not the agent's
	why    string
}

var (
	forSpace = cause{metric: "space", why: "to free disk space"}
	asAsked  = cause{why: "on request"}
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

// prune removes the records of pulls whose images are gone, whoever removed them.
func (c *Collector) prune(ctx context.Context) error {
	if err := c.Puller.PruneRecords(ctx); err != nil {
		return fmt.Errorf("records of pulled images: %w", err)
	}
	return nil
}
