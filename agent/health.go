package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"berth/internal/cluster/node"
	"berth/internal/health"
	"berth/internal/observe/podview"
	"berth/internal/source/manifest"
	"berth/internal/sync/quarantine"
)

// newConditions assigns checks to the declared conditions. Conditions that do not apply to this
// agent are not in the table.
func (a *Agent) newConditions() (*health.Table, error) {
	owners := map[health.Code]health.Check{
		health.ContainerRuntime: a.node.runtimeHealth.Ready,
		health.ContainerNetwork: networkReady(&a.runtime, a.node.runtimeHealth),
		health.PLEG:             named("PLEG is not healthy", a.observation.pleg.Health),
		health.EventStream:      a.observation.pleg.StreamHealth,
		health.Clock:            a.node.nodeObject.ClockHealth,
		health.Plugins:          a.storage.plugins.Health,
		health.DevicePlugins:    a.managers.devices.Health,
		health.ContainerCPUs:    a.managers.cpus.Health,
		health.Persistence: all(
			a.deps.journal.Health, a.deps.events.Health, a.deps.stores.statusRecords.Health, a.lifecycle.probes.Health, a.lifecycle.allocations.Health, a.observation.kills.Health, a.desired.source.Health, a.usage.eviction.Health,
			a.managers.persistence, a.deps.api.offline.Health,
		),
		health.Manifests:  func() error { return refused(a.desired.source.Problems()) },
		health.Quarantine: func() error { return quarantined(a.usage.view, a.deps.quarantine) },
	}
	if a.runtime.embedded != nil {
		owners[health.EmbeddedRuntime] = named("the embedded runtime is not healthy", a.runtime.embedded.Health)
		owners[health.RuntimeStore] = a.runtime.embedded.StoreHealth
	}
	if len(a.usage.atShutdown.Groups) > 0 {
		owners[health.Shutdown] = a.deps.stores.shutdown.Err
	}
	if a.serving.Serving != nil {
		owners[health.ServingCertificate] = a.serving.Health
	}
	if a.serving.rotation != nil {
		owners[health.ServingCertificate] = a.serving.rotation.Health
	}
	if a.deps.api.identity != nil {
		owners[health.ClientCertificate] = a.deps.api.identity.Rotation.Health
	}
	if a.deps.api.isCluster() {
		owners[health.APIServer] = func() error { return a.deps.api.offline.Describe(a.deps.api.client.Health()) }
		owners[health.CSINode] = a.storage.drivers.Health
	}
	if a.deps.api.local != nil {
		owners[health.LocalAPI] = a.deps.api.local.Health
	}
	return health.New(owners)
}

// networkReady returns why pods get no network, as reported by the runtime and, if embedded, its
// network component.
func networkReady(rt *containerRuntime, h *node.RuntimeHealth) health.Check {
	return func() error {
		err := h.NetworkReady()
		if err == nil || rt.embedded == nil {
			return err
		}
		if why := rt.embedded.Network.Health(); why != nil {
			return fmt.Errorf("%w: %w", err, why)
		}
		return err
	}
}

// named prefixes the errors of a check with a name.
func named(name string, check health.Check) health.Check {
	return func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
}

// all combines checks.
func all(checks ...health.Check) health.Check {
	return func() error {
		var errs []error
		for _, check := range checks {
			errs = append(errs, check())
		}
		return errors.Join(errs...)
	}
}

// refused names the manifest that was rejected first and the number of others; nil if there is
// none.
func refused(problems []manifest.Problem) error {
	problems = slices.DeleteFunc(slices.Clone(problems), func(p manifest.Problem) bool { return p.Severity != manifest.SeverityError })
	if len(problems) == 0 {
		return nil
	}
	first := slices.MinFunc(problems, func(x, y manifest.Problem) int { return x.Since.Compare(y.Since) })
	err := fmt.Errorf("%s: %s", first.Path, first.Message)
	if others := len(problems) - 1; others > 0 {
		err = fmt.Errorf("%w; and %d more", err, others)
	}
	return health.Since(err, first.Since)
}

// quarantined names the pods in quarantine; nil if there are none.
func quarantined(v podview.View, q *quarantine.Quarantine) error {
	var names []string
	for _, p := range v.List() {
		if _, ok := q.Why(p.UID); ok {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	if names == nil {
		return nil
	}
	return fmt.Errorf("set aside after crashes of the agent: %s", strings.Join(names, ", "))
}
