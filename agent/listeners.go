package agent

import (
	"crypto/x509"
	"fmt"
	"net"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/api/nodelogs"
	"berth/internal/api/server"
	"berth/internal/cluster/certs"
	"berth/internal/cluster/kube"
	"berth/internal/config"
	"berth/internal/runtime/cri"
)

// newListeners creates the ports for clients.
func newListeners(a *Agent) (l listeners, err error) {
	l.listener, l.listen = make(chan net.Listener, 1), a.deps.out.Listen
	if l.listen == nil {
		l.listen = func() (net.Listener, error) { return server.Listen(a.deps.cfg.RunDir, a.deps.cfg.Log) }
	}
	scrapes, err := newMetrics(a)
	if err != nil {
		return l, err
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return l, fmt.Errorf("limit of open files: %w", err)
	}
	cfg := server.Config{
		Handlers: a.Handlers(), Tracer: a.deps.stores.tracer, Scrapes: scrapes, Metrics: a.deps.out.Metrics, SLIs: a.deps.out.SLIs, Debug: debugging(&a.deps.base),
		Listen:    func() (net.Listener, error) { return <-l.listener, nil },
		NodeLogs:  nodeLogsOf(a.deps.cfg.Kubelet),
		OpenFiles: files.Cur, // Go's os package has raised it to the hard limit
		Log:       a.deps.cfg.Log, StreamIdleTimeout: a.deps.settings.streamIdleTimeout,
	}
	if a.deps.settings.mode != runMode {
		if cfg.Kubelet, err = kubeletPorts(&a.deps, &a.serving, a.runtime.cri); err != nil {
			return l, err
		}
	}
	if l.server, err = server.New(cfg); err != nil {
		return l, err
	}
	if a.deps.api.local != nil {
		a.deps.api.local.cfg.Answers = a.answers()
	}
	l.podResources, err = newPodResources(&a.deps, &a.managers, a.lifecycle.allocations)
	return l, err
}

// nodeLogsOf returns the node logs that k enables. In run mode, k is nil and the kubelet's defaults
// apply.
func nodeLogsOf(k *config.Kubelet) server.NodeLogs {
	if k != nil && !*k.EnableSystemLogHandler {
		return server.NodeLogs{}
	}
	return server.NodeLogs{
		Logs:  &nodelogs.Logs{Dir: "/var/log", Journalctl: "journalctl"},
		Query: k != nil && *k.EnableSystemLogQuery && k.FeatureEnabled("NodeLogQuery"),
	}
}

// kubeletPorts returns the ports of kubelet mode.
func kubeletPorts(g *dependencies, s *serving, runtime *cri.Client) (*server.Kubelet, error) {
	k := g.cfg.Kubelet
	d := &server.Kubelet{
		NodeName: g.cfg.NodeName, DisableDebugging: !*k.EnableDebuggingHandlers,
		DisableStatusz: !k.FeatureEnabled("ComponentStatusz"), DisableFlagz: !k.FeatureEnabled("ComponentFlagz"),
	}
	if k.FeatureEnabled("ContainerCheckpoint") {
		d.Checkpoints = server.Checkpoints{Runtime: runtime, Dir: filepath.Join(g.cfg.RootDir, "checkpoints")}
	}
	if *k.HealthzPort > 0 {
		d.ListenHealthz = server.ListenTCP(k.HealthzBindAddress, *k.HealthzPort)
	}
	if !*k.EnableServer {
		return d, nil
	}
	d.ListenSecure = server.ListenTCP(k.Address, k.Port)
	if k.ReadOnlyPort > 0 {
		d.ListenReadOnly = server.ListenTCP(k.Address, k.ReadOnlyPort)
	}
	d.Certificate = s.GetCertificate
	t := k.TLS()
	d.MinTLSVersion, d.CipherSuites, d.Curves = t.MinVersion, t.CipherSuites, t.Curves
	return d, guard(d, g)
}

// guard configures authentication and authorization of the HTTPS port.
func guard(d *server.Kubelet, g *dependencies) error {
	k := g.cfg.Kubelet
	d.Authentication = server.Authentication{Anonymous: *k.Authentication.Anonymous.Enabled, TokenTTL: k.Authentication.Webhook.CacheTTL.Duration}
	if f := k.Authentication.X509.ClientCAFile; f != "" {
		ca := certs.NewClientCA(f, g.cfg.Log)
		if err := ca.Load(); err != nil {
			return err
		}
		d.Authentication.VerifyClient = func(chain []*x509.Certificate) error { return ca.Verify(chain) }
	}
	d.Authorization = server.Authorization{
		Mode: server.AuthorizationMode(k.Authorization.Mode), AllowTTL: k.Authorization.Webhook.CacheAuthorizedTTL.Duration,
		DenyTTL: k.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
	}
	if !g.api.isCluster() {
		return nil
	}
	// Any client of the port can cause reviews; a separate rate limit keeps them from delaying the
	// agent's calls.
	reviews, err := g.api.client.With(kube.Limits{QPS: float32(*k.KubeAPIQPS), Burst: int(k.KubeAPIBurst)})
	if err != nil {
		return err
	}
	d.Authorization.Reviewer = reviews
	if *k.Authentication.Webhook.Enabled {
		d.Authentication.Tokens = reviews
	}
	return nil
}

// debugging returns the debug handlers: profiles, which only root can read in run mode, and the log
// level.
func debugging(b *base) server.Debug {
	d := server.Debug{Profiling: b.settings.profiling}
	if level := b.cfg.LogLevel; level != nil && b.settings.changesLogLevel {
		d.SetVerbosity = func(v uint32) { level.Set(config.LogLevel(v)) }
	}
	return d
}
