package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// health answers liveness probes, with a path for each pod.
type health struct {
	address string

	mu     sync.Mutex
	failed map[string]time.Time // guarded by mu; failing paths, and the time of the first failure: zero before
}

// serveHealth serves on loopback until ctx is done.
func serveHealth(ctx context.Context) (*health, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &health{address: l.Addr().String(), failed: map[string]time.Time{}}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = s.Close() }) // no more probes
	go func() { _ = s.Serve(l) }()
	return h, nil
}

func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	at, fails := h.failed[r.URL.Path]
	if fails && at.IsZero() {
		h.failed[r.URL.Path] = time.Now()
	}
	h.mu.Unlock()
	if fails {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// fail makes the probes of a path fail until awaited returns, when a replacing container has
// started, and returns the time of the first failure.
func (h *health) fail(path string, awaited func() error) (time.Time, error) {
	h.mu.Lock()
	h.failed[path] = time.Time{}
	h.mu.Unlock()
	err := awaited()
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.failed[path]
	delete(h.failed, path)
	return at, err
}

// probed measures restarts of containers with failing liveness probes in sequence, beginning at the
// failure.
func (a *agent) probed(ctx context.Context, r *report) error {
	say("%s: liveness probes fail", a.kind.name)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h, err := serveHealth(ctx)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(h.address)
	if err != nil {
		return err
	}
	names, began, err := a.write("probed", alone, func(name string) (container, spec string) {
		return fmt.Sprintf(", livenessProbe: {httpGet: {host: %s, port: %s, path: /%s}, periodSeconds: 1, failureThreshold: 1}", host, port, name), ""
	})
	if err != nil {
		return err
	}
	if _, err := a.m.events.awaitStarted(ctx, names, began); err != nil {
		return err
	}
	if _, err := a.awaitReady(ctx, names); err != nil {
		return err
	}
	var starts []time.Duration
	for i, name := range names {
		began := time.Now()
		var started []time.Time
		failed, err := h.fail(fmt.Sprintf("/probed-%d", i), func() (err error) {
			started, err = a.m.events.awaitStarted(ctx, []string{name}, began)
			return err
		})
		if err != nil {
			return err
		}
		if failed.IsZero() {
			return fmt.Errorf("%s was restarted though its probe did not fail", name)
		}
		starts = append(starts, started[0].Sub(failed))
	}
	r.agent(a.kind, "liveness probe fails to replacement started", starts...)
	_, err = a.removeAll(ctx)
	return err
}
