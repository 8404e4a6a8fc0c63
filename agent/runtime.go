package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroups"
	"berth/internal/cri"
)

func (a *Agent) startEmbedded(ctx context.Context) error {
	if _, err := a.embedded.Ensure(ctx); err != nil {
		return err
	}
	close(a.ensured)
	return a.connect(ctx)
}

// superviseEmbedded begins when the runtime was started for the first time.
func (a *Agent) superviseEmbedded(ctx context.Context) error {
	select {
	case <-a.ensured:
		return a.embedded.Run(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// connect waits for the runtime's answer and learns what can only be learned from it.
func (a *Agent) connect(ctx context.Context) error {
	for {
		v, err := a.cri.Version(ctx)
		var driver cgroups.Driver
		if err == nil {
			driver, err = a.cgroupDriver(ctx)
		}
		if err == nil {
			if s, err := a.cri.Status(ctx); err == nil {
				a.facts.setFeatures(s.GetFeatures())
			}
			return a.facts.set(v.RuntimeName, v.RuntimeVersion, func() (ContainerManager, error) {
				return a.newCgroups(ctx, driver)
			})
		}
		a.cfg.Log.Warn("the container runtime does not answer", "error", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("container runtime: %w; last it said: %v", ctx.Err(), err)
		case <-time.After(time.Second):
		}
	}
}

// cgroupDriver returns the driver that the runtime uses, and the configured one when it does not tell.
func (a *Agent) cgroupDriver(ctx context.Context) (cgroups.Driver, error) {
	switch d, err := a.cri.CgroupDriver(ctx); {
	case errors.Is(err, cri.ErrUnimplemented):
		return cmp.Or(cgroups.Driver(a.cfg.CgroupDriver), cgroups.Cgroupfs), nil
	case err != nil:
		return "", err
	case d == runtimeapi.CgroupDriver_SYSTEMD:
		return cgroups.Systemd, nil
	default:
		return cgroups.Cgroupfs, nil
	}
}

// runtimeHandlers returns the names of the runtime's handlers.
func (a *Agent) runtimeHandlers(ctx context.Context) ([]string, error) {
	s, err := a.cri.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("handlers of the runtime: %w", err)
	}
	var names []string
	for _, h := range s.GetRuntimeHandlers() {
		names = append(names, h.GetName())
	}
	return names, nil
}
