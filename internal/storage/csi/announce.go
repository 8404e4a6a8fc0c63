package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"reflect"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"berth/internal/cluster/kube"
	"berth/internal/pod"
)

// retries is the back-off of operations that are retried until they succeed.
var retries = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Cap: 30 * time.Second, Steps: math.MaxInt}

// Run writes to the API server whatever is not part of a registration: the CSINode at the start,
// deregistered drivers, and periodically the volume limits of drivers.
func (d *Drivers) Run(ctx context.Context) error {
	if d.node == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	select {
	case <-d.config.Registered():
	case <-ctx.Done():
		return ctx.Err()
	}
	retry(ctx, d.config.Log, "make the CSINode", func() error {
		return d.node.write(ctx, func(ctx context.Context) error {
			_, err := d.node.ensureCSINode(ctx)
			return err
		})
	})
	d.health.Set(nil)
	d.config.Initialized()
	var refreshing refreshes
	defer refreshing.running.Wait()
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.wake:
			retry(ctx, d.config.Log, "tell of drivers", func() error { return errors.Join(d.addPending(ctx), d.removeDeregistered(ctx)) })
		case <-next.C:
		case <-d.config.PeriodsChanged:
		}
		next.Stop()
		if at := d.refreshDue(ctx, &refreshing, time.Now()); !at.IsZero() {
			next.Reset(time.Until(at))
		}
	}
}

// Health returns an error until the API server has a CSINode of this machine, without which pods
// with volumes must not be scheduled here.
func (d *Drivers) Health() error { return d.health.Err() }

// retry calls try until it succeeds or ctx is done. An error is logged once, and then at debug
// level.
func retry(ctx context.Context, log *slog.Logger, what string, try func() error) {
	last := ""
	for delay := retries.DelayFunc(); ; {
		err := try()
		if err == nil || ctx.Err() != nil {
			return
		}
		next, level := delay(), slog.LevelDebug
		if cause := err.Error(); cause != last {
			level, last = kube.LogLevel(err, slog.LevelWarn), cause
		}
		log.Log(ctx, level, what+": fails, and is tried again", "in", next, "error", err)
		if !pod.Pause(ctx, next) {
			return
		}
	}
}

// addLater makes Run write a driver to the API server.
func (d *Drivers) addLater(name string, info Info) {
	if info.NodeID == "" {
		d.config.Log.Warn("the CSI driver has no name for this node: the CSINode will not show it", "driver", name)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, registered := d.drivers[name]; registered {
		d.pending[name] = info
	}
}

// addPending writes pending drivers to the API server.
func (d *Drivers) addPending(ctx context.Context) error {
	d.mu.Lock()
	pending := maps.Clone(d.pending)
	d.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(pending)) {
		if err := d.node.add(ctx, name, pending[name]); err != nil {
			errs = append(errs, fmt.Errorf("driver %s: %w", name, err))
			continue
		}
		d.mu.Lock()
		if now, still := d.pending[name]; still && reflect.DeepEqual(now, pending[name]) {
			delete(d.pending, name)
		}
		d.mu.Unlock()
	}
	return errors.Join(errs...)
}

// removeDeregistered removes deregistered drivers from the API server.
func (d *Drivers) removeDeregistered(ctx context.Context) error {
	d.mu.Lock()
	deregistered := slices.Collect(maps.Keys(d.deregistered))
	d.mu.Unlock()
	var errs []error
	for _, name := range deregistered {
		err := d.node.write(ctx, func(ctx context.Context) error {
			// A driver that has registered again meanwhile is written by its registration, which
			// waits for the lock of the writer.
			d.mu.Lock()
			still := d.deregistered[name]
			d.mu.Unlock()
			if !still {
				return nil
			}
			if err := d.node.changeCSINode(ctx, func(s *storagev1.CSINodeSpec) { removeFromCSINode(s, name) }); err != nil {
				return err
			}
			return d.node.changeNode(ctx, func(n *v1.Node) error { return removeFromNode(n, name) })
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("driver %s: %w", name, err))
			continue
		}
		d.mu.Lock()
		delete(d.deregistered, name)
		d.mu.Unlock()
	}
	return errors.Join(errs...)
}
