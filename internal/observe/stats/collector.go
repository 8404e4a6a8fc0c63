package stats

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"berth/internal/host/safepath"
)

// Collector measures the resource usage of pods and the node. It is safe for concurrent use.
type Collector struct {
	cfg     Config
	folders folders
	proc    procFS
	// sizes caches the sizes of directories, claimed the usage of volumes that other components
	// report.
	sizes   *cache[string, Size]
	claimed *volumeUses
	layers  layers // writable layers of containers

	// lock has an element while the cgroup reader is free; a context can bound the wait for it. It
	// guards the following fields.
	lock    chan struct{}
	cgroups *cgroupReader
	timer   *time.Timer // closes files and drops caches
}

// New returns a Collector that has not read anything.
func New(cfg Config) *Collector {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	c := &Collector{
		cfg: cfg, folders: folders{safepath.Root(cfg.RootDir), cfg.PodLogsDir}, proc: procFS(cfg.Proc),
		lock: make(chan struct{}, 1),
	}
	c.cgroups = newCgroupReader(&c.cfg)
	c.layers.proc, c.layers.cgroups, c.layers.runtime = c.proc, c.cgroups, cfg.Runtime
	count := newMetrics(cfg.Metrics)
	c.sizes = newCache(cfg.Log, maxWalks, func(ctx context.Context, path string) (Size, error) {
		began := time.Now()
		size, err := c.folders.walk(ctx, path)
		if err == nil && walkedPlugins[filepath.Base(filepath.Dir(path))] {
			count.measured("du", began)
		}
		return size, err
	})
	c.claimed = newVolumeUses(&c.cfg, count)
	c.release()
	return c
}

// Run releases all resources when ctx is done, and waits for running walks.
func (c *Collector) Run(ctx context.Context) error {
	var caches sync.WaitGroup
	caches.Go(func() { c.sizes.run(ctx) })
	caches.Go(func() { c.claimed.uses.run(ctx) })
	caches.Wait()
	<-c.lock // not released: no more reads
	if c.timer != nil {
		c.timer.Stop()
	}
	c.cgroups.closeAll()
	return ctx.Err()
}

// Read returns readings that are at most a second old.
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

// forget releases what no recent request has used.
func (c *Collector) forget() {
	select {
	case <-c.lock:
	default:
		return // a request is in progress
	}
	c.cgroups.closeAll()
	c.layers.forget()
	c.sizes.forget(time.Now())
	c.claimed.uses.forget(time.Now())
	c.release()
}

// postponeForget restarts the timer. The caller holds the lock.
func (c *Collector) postponeForget() {
	if c.timer == nil {
		c.timer = time.AfterFunc(idle, c.forget)
		return
	}
	c.timer.Reset(idle)
}
