package csi

import (
	"context"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
)

// refreshes schedules the writes of drivers' volume limits to the API server (KEP-4876). It is
// owned by Run.
type refreshes struct {
	running sync.WaitGroup
	dues    map[string]due
}

// due is the time of a driver's next refresh, and the interval.
type due struct {
	at     time.Time
	period time.Duration
}

// Refresh reads the driver's volume limit at once, if its Period is not 0. Call it when the API
// server's limit has proved too high.
func (d *Drivers) Refresh(name string) {
	d.mu.Lock()
	d.urgent[name] = true
	d.mu.Unlock()
	d.wakeUp()
}

func (d *Drivers) wakeUp() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// refreshDue refreshes the drivers that are due, and returns the time of the next one; zero for
// never.
func (d *Drivers) refreshDue(ctx context.Context, r *refreshes, now time.Time) (next time.Time) {
	d.mu.Lock()
	urgent := d.urgent
	d.urgent = map[string]bool{}
	d.mu.Unlock()
	dues := map[string]due{}
	for _, name := range d.Names() {
		period := d.config.Period(name)
		if period <= 0 {
			continue
		}
		t, known := r.dues[name]
		if !known || t.period != period {
			t = due{now.Add(period), period} // just registered, or the period has changed
		}
		if urgent[name] || !now.Before(t.at) {
			t.at = now.Add(period)
			r.running.Go(func() {
				if err := d.refresh(ctx, name); err != nil && ctx.Err() == nil {
					d.config.Log.Warn("Failed to update the volume limit of a driver", "driver", name, "error", err)
				}
			})
		}
		dues[name] = t
		if next.IsZero() || t.at.Before(next) {
			next = t.at
		}
	}
	r.dues = dues
	return next
}

// refresh calls NodeGetInfo of the driver, and writes the result to the CSINode only.
func (d *Drivers) refresh(ctx context.Context, name string) error {
	driver, err := d.Driver(name)
	if err != nil {
		return err
	}
	info, err := driver.Info(ctx)
	if err != nil {
		return err
	}
	return d.node.write(ctx, func(ctx context.Context) error {
		if _, err := d.Driver(name); err != nil {
			return nil // deregistered meanwhile, which removeDeregistered handles
		}
		return d.node.changeCSINode(ctx, func(s *storagev1.CSINodeSpec) { addToCSINode(s, name, info) })
	})
}
