package stats

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"berth/internal/host/safepath"
)

// Collector answers what pods and the node use. It is safe for concurrent use.
type Collector struct {
	Config
	folders folders
	proc    procFS
	// sizes are those of directories, claimed what is used of volumes that others keep.
	sizes   *remembered[string, Size]
	claimed *volumeUses
	layers  layers // of containers

	// lock has an element while the reader of cgroups is free; it can be waited for as long as a
	// context lasts. What follows belongs to whoever took it.
	lock    chan struct{}
	cgroups *cgroupReader
	timer   *time.Timer // forgets what is open and remembered
}

// New returns a Collector that has not read anything.
func New(cfg Config) *Collector {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	c := &Collector{
		Config: cfg, folders: folders{safepath.Root(cfg.RootDir), cfg.PodLogsDir}, proc: procFS(cfg.Proc),
		lock: make(chan struct{}, 1),
	}
	c.cgroups = newCgroupReader(&c.Config)
	c.layers.proc, c.layers.cgroups, c.layers.runtime = c.proc, c.cgroups, cfg.Runtime
	count := newMetrics(cfg.Metrics)
	c.sizes = newRemembered(cfg.Log, walksAtOnce, func(ctx context.Context, path string) (Size, error) {
		began := time.Now()
		size, err := c.folders.walk(ctx, path)
		if err == nil && walkedPlugins[filepath.Base(filepath.Dir(path))] {
			count.measured("du", began)
		}
		return size, err
	})
	c.claimed = newVolumeUses(&c.Config, count)
	c.release()
	return c
}

// Run frees everything when ctx is done, and waits for walks under way.
func (c *Collector) Run(ctx context.Context) error {
	var remembering sync.WaitGroup
	remembering.Go(func() { c.sizes.run(ctx) })
	remembering.Go(func() { c.claimed.uses.run(ctx) })
	remembering.Wait()
	<-c.lock // for good: nobody reads any more
	if c.timer != nil {
		c.timer.Stop()
	}
	c.cgroups.closeAll()
	return ctx.Err()
}

// Read returns readings that are a second old at most.
func (c *Collector) Read(ctx context.Context) (*Readings, error) {
	if err := c.acquire(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	c.postponeForget()
	return c.cgroups.current()
}

func (c *Collector) acquire(ctx context.Context) error {
	select {
	case <-c.lock:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("read usage: %w", context.Cause(ctx))
	}
}

func (c *Collector) release() { c.lock <- struct{}{} }

// forget frees what no question has needed for long.
func (c *Collector) forget() {
	select {
	case <-c.lock:
	default:
		return // a question is under way
	}
	c.cgroups.closeAll()
	c.layers.forget()
	c.sizes.forget(time.Now())
	c.claimed.uses.forget(time.Now())
	c.release()
}

// postponeForget has everything forgotten later. The caller has the lock.
func (c *Collector) postponeForget() {
	if c.timer == nil {
		c.timer = time.AfterFunc(idle, c.forget)
		return
	}
	c.timer.Reset(idle)
}
