package dra

import (
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
)

const (
	// freshFor is how long a device is as healthy as its driver said, if the driver does not say.
	freshFor = 30 * time.Second
	// freshAtMost bounds what a driver says.
	freshAtMost = 365 * 24 * time.Hour
	// maxDevices is how many devices of a driver are remembered that it tells of no more.
	maxDevices = 10000
)

// deviceID is a device of a driver.
type deviceID struct{ pool, name string }

// deviceHealth is what was last heard of a device.
type deviceHealth struct {
	health  v1.ResourceHealthStatus
	message string
	// until is when that is worth nothing any more.
	until time.Time
	// timeout is how long it was worth something.
	timeout time.Duration
}

// healths are those of the devices of all drivers; a device that is missing is Unknown. It is safe
// for concurrent use.
type healths struct {
	mu      sync.Mutex
	drivers map[string]*driverHealths // guarded by mu
}

// driverHealths are those of one driver, as its newest endpoint tells.
type driverHealths struct {
	reporter uint64 // the endpoint's number; 0 is none: they are from the file
	devices  map[deviceID]deviceHealth
}

// healthOf reads what a driver says of a device at a time.
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

// cut shortens a text to so many bytes, the last three of which say so.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit-3], "") + "..."
}

// update takes a driver's list from one of its endpoints, and returns the devices that are another
// way now. Who is older than the last teller is not heard.
// Differs from the kubelet: with it, the endpoint that is being replaced is heard too.
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
		for id, was := range d.devices { // what is told of no more stays what it was, for its time
			if _, told := next[id]; !told && was.until.After(now) {
				next[id] = was
			}
		}
	}
	changed = differences(d.devices, next)
	d.devices = next
	return changed
}

// silence forgets what the endpoint told, whose stream has ended.
func (h *healths) silence(e *endpoint) (changed map[deviceID]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.drivers[e.driver]
	if d == nil || d.reporter != e.number {
		return nil
	}
	delete(h.drivers, e.driver)
	return differences(d.devices, nil)
}

// expire forgets what is too old, and returns the devices by driver that are another way now, and
// when the next is too old; zero for never.
func (h *healths) expire(now time.Time) (changed map[string]map[deviceID]bool, next time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed = map[string]map[deviceID]bool{}
	for name, d := range h.drivers {
		kept := map[deviceID]deviceHealth{}
		for id, v := range d.devices {
			if v.until.After(now) {
				kept[id] = v
				next = earlier(next, v.until)
			}
		}
		if len(kept) == len(d.devices) {
			continue
		}
		if c := differences(d.devices, kept); len(c) > 0 {
			changed[name] = c
		}
		d.devices = kept
	}
	return changed, next
}

// of returns how healthy a device is.
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

// differences returns the devices of which the two say something else.
func differences(a, b map[deviceID]deviceHealth) map[deviceID]bool {
	unknown := deviceHealth{health: v1.ResourceHealthStatusUnknown}
	look := func(in map[deviceID]deviceHealth, id deviceID) deviceHealth {
		if v, ok := in[id]; ok {
			return v
		}
		return unknown
	}
	out := map[deviceID]bool{}
	for _, in := range []map[deviceID]deviceHealth{a, b} {
		for id := range in {
			x, y := look(a, id), look(b, id)
			if x.health != y.health || x.message != y.message {
				out[id] = true
			}
		}
	}
	return out
}

// earlier returns the earlier of two times, of which a zero one is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
