package nodeallocatable

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/host/cgroups"
)

// Groups manages the QoS cgroups and the cgroups of daemons (containerManager).
type Groups interface {
	EnsureQoS(ctx context.Context) error
	EnforceReserved(r cgroups.Reserved) error
}

// Kubepods is the cgroup of all pods.
type Kubepods interface {
	EnforceAllocatable() error
}

// Recorder records events about the Node.
type Recorder interface {
	NodeEvent(eventtype, reason, message string)
}

// Event reasons.
const (
	enforcedReason = "NodeAllocatableEnforced"
	failedReason   = "FailedNodeAllocatableEnforcement"
)

// Enforcer enforces the computed limits, and records an event for each outcome.
type Enforcer struct {
	Resources *Resources
	Recorder  Recorder
}

// EnforceReserved creates the QoS cgroups, and limits the cgroups of daemons to their reservations.
func (e Enforcer) EnforceReserved(ctx context.Context, g Groups) error {
	if err := g.EnsureQoS(ctx); err != nil {
		return err
	}
	for _, r := range e.Resources.Reserved {
		if err := g.EnforceReserved(r); err != nil {
			e.Recorder.NodeEvent(v1.EventTypeWarning, failedReason,
				fmt.Sprintf("Failed to enforce %s Cgroup Limits on %q: %v", reservedName(r.Field), r.Cgroup, err))
			return err
		}
		e.Recorder.NodeEvent(v1.EventTypeNormal, enforcedReason,
			fmt.Sprintf("Updated limits on %s cgroup %s", strings.ToLower(reservedName(r.Field)), r.Cgroup))
	}
	return nil
}

func reservedName(field string) string {
	if strings.HasPrefix(field, "kube") {
		return "Kube Reserved"
	}
	return "System Reserved"
}

// retryPeriod is the delay between tries of EnforceAllocatable.
const retryPeriod = time.Minute

// EnforceAllocatable limits the cgroup of all pods, and retries until it succeeds or ctx is done.
// Pods may start meanwhile.
func (e Enforcer) EnforceAllocatable(ctx context.Context, g Kubepods) error {
	for {
		err := g.EnforceAllocatable()
		if err == nil {
			break
		}
		e.Recorder.NodeEvent(v1.EventTypeWarning, failedReason, "Failed to update Node Allocatable Limits: "+err.Error())
		select {
		case <-time.After(retryPeriod):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if e.Resources.EnforcesPods {
		e.Recorder.NodeEvent(v1.EventTypeNormal, enforcedReason, "Updated Node Allocatable limit across pods")
	}
	return nil
}
