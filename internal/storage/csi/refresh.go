package csi

import (
	"context"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
)

// refreshes are when the API server is to be told anew how many volumes this node takes of drivers
// (KEP-4876). It is Run's.
type refreshes struct {
	running sync.WaitGroup
	dues    map[string]due
}

// due is when a driver is asked next, and how often.
type due struct {
	at     time.Time
	period time.Duration
}

// Refresh asks the driver at once how many of its volumes this node takes, if it is asked from time
// to time at all: somebody has seen that the API server was told too many.
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

// refreshDue asks the drivers whose time has come, and returns when the next is due; zero for
// never.
func (d *Drivers) refreshDue(ctx context.Context, r *refreshes, now time.Time) (next time.Time) {
	d.mu.Lock()
	urgent := d.urgent
	d.urgent = map[string]bool{}
	d.mu.Unlock()
	dues := map[string]due{}
	for _, name := range d.Names() {
		period := d.Period(name)
		if period <= 0 {
			continue
		}
		t, known := r.dues[name]
		if !known || t.period != period {
			t = due{now.Add(period), period} // registration has just told, or somebody has changed the period
		}
		if urgent[name] || !now.Before(t.at) {
			t.at = now.Add(period)
			r.running.Go(func() {
				if err := d.refresh(ctx, name); err != nil && ctx.Err() == nil {
					d.Log.Warn("Failed to update the volume limit of a driver", "driver", name, "error", err)
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

// refresh asks the driver what it says of this node, and tells the API server in the CSINode alone.
func (d *Drivers) refresh(ctx context.Context, name string) error {
	driver, err := d.Driver(name)
	if err != nil {
		return err
	}
	info, err := driver.Info(ctx)
	if err != nil {
		return err
	}
	return d.write(ctx, func(ctx context.Context) error {
		if _, err := d.Driver(name); err != nil {
			return nil // gone meanwhile, of which the API server is told by others
		}
		return d.changeCSINode(ctx, func(s *storagev1.CSINodeSpec) { addToCSINode(s, name, info) })
	})
}
