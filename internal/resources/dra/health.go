package dra

import (
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
)

const (
	// freshFor is how long a health report is valid if the driver does not specify it.
	freshFor = 30 * time.Second
	// freshAtMost limits the validity that a driver specifies.
	freshAtMost = 365 * 24 * time.Hour
	// maxDevices is the number of devices up to which devices missing from a driver's list are
	// retained.
	maxDevices = 10000
)

type deviceID struct{ pool, name string }

type deviceHealth struct {
	health  v1.ResourceHealthStatus
	message string
	// until is when the report expires.
	until time.Time
	// timeout is how long the report is valid.
	timeout time.Duration
}

// healths is the health of the devices of all drivers; a missing device is Unknown. It is safe for
// concurrent use.
type healths struct {
	mu      sync.Mutex
	drivers map[string]*driverHealths // guarded by mu
}

// driverHealths is the health of one driver's devices, as reported by its newest endpoint.
type driverHealths struct {
	reporter uint64 // number of the endpoint; 0: restored from the file
	devices  map[deviceID]deviceHealth
}

// healthOf converts a driver's report at the given time.
func healthOf(d *healthapi.DeviceHealth, now time.Time) deviceHealth {
	h := deviceHealth{health: v1.ResourceHealthStatusUnknown, message: cut(d.GetMessage(), v1.ResourceHealthMessageMaxLength), timeout: freshFor}
	switch d.GetHealth() {
	case healthapi.HealthStatus_HEALTHY:
		h.health = v1.ResourceHealthStatusHealthy
	case healthapi.HealthStatus_UNHEALTHY:
		h.health = v1.ResourceHealthStatusUnhealthy
	}
	if s := d.GetHealthCheckTimeoutSeconds(); s > 0 {
		h.timeout = time.Duration(min(s, int64(freshAtMost/time.Second))) * time.Second
	}
	h.until = now.Add(h.timeout)
	return h
}

// cut limits a text to limit bytes, with an ellipsis.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit-3], "") + "..."
}

// update applies a report of a driver's endpoint, and returns the devices that have changed. It
// ignores endpoints older than the last reporter.
// Differs from the kubelet: it also accepts reports of the endpoint that is being replaced.
func (h *healths) update(e *endpoint, list []*healthapi.DeviceHealth, now time.Time) (changed map[deviceID]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.drivers[e.driver]
	if d == nil {
		d = &driverHealths{devices: map[deviceID]deviceHealth{}}
		h.drivers[e.driver] = d
	}
	if d.reporter > e.number {
		return nil
	}
	d.reporter = e.number
	next := map[deviceID]deviceHealth{}
	for _, v := range list {
		next[deviceID{v.GetDevice().GetPoolName(), v.GetDevice().GetDeviceName()}] = healthOf(v, now)
	}
	if len(d.devices) <= maxDevices {
		for id, was := range d.devices { // devices that are not reported any more stay until they expire
			if _, reported := next[id]; !reported && was.until.After(now) {
				next[id] = was
			}
		}
	}
	changed = differences(d.devices, next)
	d.devices = next
	return changed
}

func (h *healths) removeReports(e *endpoint) (changed map[deviceID]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.drivers[e.driver]
	if d == nil || d.reporter != e.number {
		return nil
	}
	delete(h.drivers, e.driver)
	return differences(d.devices, nil)
}

// expire removes expired reports. It returns the devices that have changed, by driver, and the time
// of the next expiry; zero: never.
func (h *healths) expire(now time.Time) (changed map[string]map[deviceID]bool, next time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed = map[string]map[deviceID]bool{}
	for name, d := range h.drivers {
		valid := map[deviceID]deviceHealth{}
		for id, v := range d.devices {
			if v.until.After(now) {
				valid[id] = v
				next = earlier(next, v.until)
			}
		}
		if len(valid) == len(d.devices) {
			continue
		}
		if c := differences(d.devices, valid); len(c) > 0 {
			changed[name] = c
		}
		d.devices = valid
	}
	return changed, next
}

func (h *healths) of(driver string, id deviceID, now time.Time) (v1.ResourceHealthStatus, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.drivers[driver]; d != nil {
		if v, ok := d.devices[id]; ok && v.until.After(now) {
			return v.health, v.message
		}
	}
	return v1.ResourceHealthStatusUnknown, ""
}

// differences returns the devices whose health or message differs.
func differences(a, b map[deviceID]deviceHealth) map[deviceID]bool {
	unknown := deviceHealth{health: v1.ResourceHealthStatusUnknown}
	get := func(in map[deviceID]deviceHealth, id deviceID) deviceHealth {
		if v, ok := in[id]; ok {
			return v
		}
		return unknown
	}
	out := map[deviceID]bool{}
	for _, in := range []map[deviceID]deviceHealth{a, b} {
		for id := range in {
			x, y := get(a, id), get(b, id)
			if x.health != y.health || x.message != y.message {
				out[id] = true
			}
		}
	}
	return out
}

// earlier returns the earlier of two times; a zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
