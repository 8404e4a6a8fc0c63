package agent

import (
	"context"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"berth/internal/cluster/certs"
	"berth/internal/cluster/node"
	"berth/internal/config"
	"berth/internal/observe/status"
	"berth/internal/pod"
	"berth/internal/record/span"
	"berth/internal/resources/nodeallocatable"
	"berth/internal/sync/eviction"
	"berth/internal/sync/nodeshutdown"
	"berth/internal/sync/quarantine"
)

// base is the common base of all component groups.
type base struct {
	cfg      Config
	out      Environment
	settings settings
	// member is the KubeletConfiguration of a cluster member, or its substitute with an API server
	// within the agent.
	member  *config.Kubelet
	started time.Time
	metricFamilies
	// resources and hostIPs describe the machine. wire sets them after the runtime.
	resources *nodeallocatable.Resources
	hostIPs   *node.HostIPs
}

// dependencies are the shared dependencies of all component groups.
type dependencies struct {
	base
	api apiServer
	records
	stores stateStores
}

// stateStores are the state of all pods: desired pods, lifecycle states, statuses, node pressure
// and node shutdown.
type stateStores struct {
	pods          *pod.Manager
	states        *pod.States
	status        *status.Manager
	statusRecords *status.Records
	pressures     *eviction.Pressures
	shutdown      *nodeshutdown.State
	tracer        *span.Tracer // nil: tracing is off
}

// newDependencies opens the API server, if any, and creates records and stores.
func newDependencies(cfg Config, out Environment) (g dependencies, err error) {
	g.base = newBase(cfg, out)
	if g.api, err = openAPI(&g.base); err != nil {
		return g, err
	}
	g.stores.pods, g.stores.states, g.stores.pressures, g.stores.shutdown = pod.NewManager(), pod.NewStates(), eviction.NewPressures(), &nodeshutdown.State{}
	if rate := g.settings.tracing.PerMillion; rate > 0 {
		g.stores.tracer = span.New(rate)
	}
	g.records = newRecords(&g.base, &g.api)
	if g.api.local != nil {
		c := &g.api.local.cfg
		c.Recovered, c.Journal, c.Shutdown = reportRecovery(g.recorder), g.journal, g.stores.shutdown
	}
	if g.api.offline, err = newOfflineCache(&g.base, &g.api, g.journal); err != nil {
		return g, err
	}
	g.stores.status = status.NewManager(cfg.Log, g.journal)
	g.stores.statusRecords = status.NewKept(g.stores.status, filepath.Join(cfg.RootDir, statusesFile), cfg.Log)
	g.quarantine = quarantine.New(quarantine.Config{
		Dir: filepath.Join(cfg.RootDir, recordsFolder), Journal: g.journal, Events: g.recorder, Pod: g.stores.lastPod, Log: cfg.Log,
	})
	return g, nil
}

// lastPod returns the desired pod, or else the last reported one.
func (s *stateStores) lastPod(uid pod.UID) (*v1.Pod, bool) {
	if p, ok := s.pods.Get(uid); ok {
		return p, true
	}
	return s.status.Pod(uid)
}

func newBase(cfg Config, out Environment) base {
	for _, r := range []*Registry{&out.Metrics, &out.SLIs} {
		if *r == nil {
			*r = prometheus.NewRegistry()
		}
	}
	return base{
		cfg: cfg, out: out, settings: settingsOf(&cfg), member: memberSettings(&cfg), started: time.Now(), metricFamilies: newMetricFamilies(out.Metrics),
	}
}

// metricFamilies are metric families that are exposed even if there is nothing to count.
type metricFamilies struct {
	clientCert, servingCert *certs.Metrics
	statuses                *status.Metrics
}

func newMetricFamilies(r prometheus.Registerer) metricFamilies {
	return metricFamilies{
		clientCert: certs.ClientMetrics(r), servingCert: certs.ServingMetrics(r), statuses: status.NewMetrics(r),
	}
}

// inRoot returns the path of a file or directory below the root directory.
func (c *Config) inRoot(name string) string { return filepath.Join(c.RootDir, name) }

// machineReader returns the function that reads the machine.
func machineReader(b *base) func() (node.Machine, error) {
	if b.out.Machine != nil {
		return b.out.Machine
	}
	return node.Host{Root: "/", Dir: b.cfg.RootDir}.Read
}

// readMachine reads the machine; unreadable values are zero.
func readMachine(b *base) node.Machine {
	m, err := machineReader(b)()
	if err != nil {
		b.cfg.Log.Warn("not all of the machine could be read; pods that ask for what is not known are refused", "error", err)
	}
	return m
}

// loaded adapts a load from disk to a readiness function.
func loaded(load func()) func(context.Context) error {
	return func(context.Context) error {
		load()
		return nil
	}
}
