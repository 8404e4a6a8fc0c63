package dra

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"berth/internal/checkpoint"
	"berth/internal/pod"
)

// listenAgain is the delay before a failed health stream is reopened.
const listenAgain = 5 * time.Second

// healthWatcher follows, persists and publishes the health of devices.
type healthWatcher struct {
	healths    *healths
	claimCache *claimCache
	changed    *pod.Publisher[pod.UID] // pods whose devices' health has changed
	wake       chan struct{}           // Manager.wake
	log        *slog.Logger

	path     string
	file     *checkpoint.Writer
	fileWake chan struct{} // capacity 1: the file is out of date
}

func newHealthWatcher(path string, cc *claimCache, changed *pod.Publisher[pod.UID], wake chan struct{}, log *slog.Logger) *healthWatcher {
	h := &healthWatcher{
		healths: &healths{drivers: map[string]*driverHealths{}}, claimCache: cc, changed: changed, wake: wake, log: log, path: path, fileWake: make(chan struct{}, 1),
	}
	h.file = checkpoint.NewWriter(checkpoint.WriterConfig{What: "health of devices", Wake: h.fileWake, Write: h.write, Log: log})
	return h
}

func (h *healthWatcher) load() {
	err := checkpoint.Read(h.path, "health of devices", func(content []byte) error { return h.healths.decode(content, time.Now()) })
	if err != nil {
		h.log.Warn("health of devices is not known until drivers tell it", "error", err)
	}
}

// watch follows the endpoint's health reports until it is deregistered. If the driver does
// not implement the service, it returns (KEP-4680).
func (h *healthWatcher) watch(ctx context.Context, e *endpoint) {
	client, logged := healthapi.NewDRAResourceHealthClient(e.conn), ""
	for {
		err := h.listen(ctx, e, client)
		if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errDeregistered) {
			return // the agent stops: the next agent restores the reports
		}
		h.publish(e.driver, h.healths.removeReports(e))
		if status.Code(err) == codes.Unimplemented || ctx.Err() != nil {
			return
		}
		if err.Error() != logged {
			logged = err.Error()
			h.log.Warn("Failed to watch the health of devices, will retry", "driver", e.driver, "endpoint", e.address, "error", shorten(err))
		}
		if !pod.Pause(ctx, listenAgain) {
			return
		}
	}
}

// listen reads one stream until it fails, and returns the error.
func (h *healthWatcher) listen(ctx context.Context, e *endpoint, client healthapi.DRAResourceHealthClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.NodeWatchResources(ctx, &healthapi.NodeWatchResourcesRequest{}, grpc.WaitForReady(true))
	for err == nil {
		var list *healthapi.NodeWatchResourcesResponse
		if list, err = stream.Recv(); err == nil {
			h.publish(e.driver, h.healths.update(e, list.GetDevices(), time.Now()))
			wakeUp(h.wake) // to schedule the expiry
		}
	}
	return err
}

// publish wakes the writer of the health file and notifies the affected pods.
func (h *healthWatcher) publish(driver string, changed map[deviceID]bool) {
	if len(changed) == 0 {
		return
	}
	wakeUp(h.fileWake)
	for _, uid := range h.claimCache.podsWith(driver, changed) {
		h.changed.Publish(uid)
	}
}

// expire removes expired reports, and returns the time of the next expiry; zero: never.
func (h *healthWatcher) expire(now time.Time) time.Time {
	changed, next := h.healths.expire(now)
	for driver, devices := range changed {
		h.publish(driver, devices)
	}
	return next
}

type driverHealthForm struct{ Devices map[string]deviceHealthForm }

type deviceHealthForm struct {
	PoolName           string
	DeviceName         string
	Health             v1.ResourceHealthStatus
	LastUpdated        time.Time
	HealthCheckTimeout time.Duration
	Message            string
}

// encode returns the content of the health file: JSON, by driver and device.
func (h *healths) encode() ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]driverHealthForm{}
	for name, d := range h.drivers {
		f := driverHealthForm{map[string]deviceHealthForm{}}
		for id, v := range d.devices {
			f.Devices[id.pool+"/"+id.name] = deviceHealthForm{id.pool, id.name, v.health, v.until.Add(-v.timeout), v.timeout, v.message}
		}
		out[name] = f
	}
	return json.Marshal(out)
}

// decode decodes the content of the health file. The file is written when a health changes and not
// at each report, so the validity of its reports starts anew from now.
func (h *healths) decode(content []byte, now time.Time) error {
	var in map[string]driverHealthForm
	if err := json.Unmarshal(content, &in); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, f := range in {
		d := &driverHealths{devices: map[deviceID]deviceHealth{}}
		for key, v := range f.Devices {
			id := deviceID{v.PoolName, v.DeviceName}
			if id == (deviceID{}) {
				id.pool, id.name, _ = strings.Cut(key, "/")
			}
			timeout := min(v.HealthCheckTimeout, freshAtMost)
			if timeout <= 0 {
				timeout = freshFor
			}
			if v.Health == v1.ResourceHealthStatusHealthy || v.Health == v1.ResourceHealthStatusUnhealthy {
				d.devices[id] = deviceHealth{v.Health, cut(v.Message, v1.ResourceHealthMessageMaxLength), now.Add(timeout), timeout}
			}
		}
		h.drivers[name] = d
	}
	return nil
}

func (h *healthWatcher) write() error {
	content, err := h.healths.encode()
	if err != nil {
		return err
	}
	return checkpoint.WriteWarm(h.path, 0o600, content)
}
