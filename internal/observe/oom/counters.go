package oom

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"berth/internal/host/cgroupstat"
	"berth/internal/pod"
)

// counters watches the kill counters of running containers. Used only by the goroutine of the
// Watcher.
type counters struct {
	kernel Kernel
	watch  Watch
	log    *slog.Logger

	containers map[pod.ContainerID]*counter
	byPath     map[string]pod.ContainerID
}

type counter struct {
	uid   pod.UID
	path  string
	check time.Time // when to compare counter and log; zero: not scheduled
}

func newCounters(kernel Kernel, watch Watch, log *slog.Logger) *counters {
	return &counters{
		kernel: kernel, watch: watch, log: log,
		containers: map[pod.ContainerID]*counter{}, byPath: map[string]pod.ContainerID{},
	}
}

func (c *counters) has(id pod.ContainerID) bool { return c.containers[id] != nil }

// add starts watching a container, and reports whether it is watched.
func (c *counters) add(uid pod.UID, id pod.ContainerID, path string) bool {
	if err := c.watch.Add(path); err != nil {
		if !cgroupstat.IsGone(err) {
			c.log.Warn("OOM kills of a container are read from the kernel log alone", "uid", uid, "container", id, "error", err)
		}
		return false
	}
	c.containers[id] = &counter{uid: uid, path: path}
	c.byPath[path] = id
	return true
}

// remove stops watching a container.
func (c *counters) remove(id pod.ContainerID) {
	t := c.containers[id]
	if t == nil {
		return
	}
	c.watch.Remove(t.path)
	delete(c.containers, id)
	delete(c.byPath, t.path)
}

// schedule schedules the comparison of counter and log for when the kill is certainly done.
func (c *counters) schedule(id pod.ContainerID) {
	if t := c.containers[id]; t.check.IsZero() {
		t.check = time.Now().Add(settle)
	}
}

// next returns the time of the next comparison, zero for none.
func (c *counters) next() time.Time {
	var next time.Time
	for _, t := range c.containers {
		if !t.check.IsZero() && (next.IsZero() || t.check.Before(next)) {
			next = t.check
		}
	}
	return next
}

// due returns the containers whose comparison is due.
func (c *counters) due(now time.Time) []pod.ContainerID {
	var out []pod.ContainerID
	for id, t := range c.containers {
		if !t.check.IsZero() && !now.Before(t.check) {
			t.check = time.Time{}
			out = append(out, id)
		}
	}
	return out
}

// read returns the number of killed processes of the container, 0 if unknown.
func (c *counters) read(id pod.ContainerID) (uid pod.UID, n uint64) {
	t := c.containers[id]
	n, err := c.kernel.Kills(t.path)
	if err != nil && !cgroupstat.IsGone(err) {
		c.log.Warn("OOM kills of a container not counted", "uid", t.uid, "container", id, "error", err)
	}
	if err != nil {
		return t.uid, 0
	}
	return t.uid, n
}

// memory returns the container's peak memory usage and limit, in bytes; 0 is unknown.
func (c *counters) memory(id pod.ContainerID) (used, limit uint64) {
	used, limit, err := c.kernel.Memory(c.containers[id].path)
	if err != nil {
		if !cgroupstat.IsGone(err) {
			c.log.Debug("memory of a container not read", "container", id, "error", errors.Unwrap(err))
		}
		return 0, 0
	}
	if limit == cgroupstat.Unlimited {
		limit = 0
	}
	return used, limit
}

// noWatch replaces a watch that this host does not support.
type noWatch struct{}

// Add does nothing.
func (noWatch) Add(string) error { return nil }

// Remove does nothing.
func (noWatch) Remove(string) {}

// Run waits.
func (noWatch) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
