package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"berth/agent"
	"berth/internal/config"
	"berth/internal/host/systemd"
	"berth/internal/runtime/embedded"
)

// blockProfileRate returns the nanoseconds of blocking per profile sample; 0 disables the profile.
func blockProfileRate(k *config.Kubelet) int {
	if *k.EnableProfilingHandler && k.EnableContentionProfiling {
		return 1
	}
	return 0
}

// runKubelet runs the agent as a kubelet until a signal stops it. Pods keep running.
func runKubelet(ctx context.Context, g *globalFlags, k *config.Kubelet, level *slog.LevelVar, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("the kubelet must be root, as it mounts volumes and makes cgroups and networks")
	}
	klog.SetSlogLogger(log) // for client-go
	cfg, err := kubeletConfig(g, k, log)
	if err != nil {
		return err
	}
	cfg.LogLevel = level
	runtime.SetBlockProfileRate(blockProfileRate(k))
	limitMemory(&cfg, log)
	a, err := agent.Build(cfg)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	if k.LockFile == "" {
		return a.Run(ctx)
	}
	if err := lockFile(ctx, k.LockFile); err != nil {
		if ctx.Err() != nil {
			return nil // stopped while it waited
		}
		return err
	}
	if k.ExitOnLockContention {
		if ctx, err = cancelOnContention(ctx, k.LockFile); err != nil {
			return err
		}
	}
	err = a.Run(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, errLockWanted) {
		log.Info("the agent ends", "why", cause)
	}
	return err
}

// foreignEndpoint returns the endpoint, or "" if it is the socket of the embedded runtime. kubeadm
// passes its criSocket to the kubelet.
func foreignEndpoint(endpoint, runDir string) string {
	if endpoint == embedded.EndpointIn(runDir) {
		return ""
	}
	return endpoint
}

// kubeletConfig converts the kubelet's configuration to the agent's.
func kubeletConfig(g *globalFlags, k *config.Kubelet, log *slog.Logger) (agent.Config, error) {
	fail := func(err error) (agent.Config, error) { return agent.Config{}, err }
	host, err := os.Hostname()
	if err != nil {
		return fail(fmt.Errorf("name of the host: %w; name the node with --hostname-override", err))
	}
	name, err := k.NodeName(host)
	if err != nil {
		return fail(err)
	}
	runDir, err := filepath.Abs(g.runDir)
	if err != nil {
		return fail(err)
	}
	runtimeEndpoint, imageEndpoint := foreignEndpoint(k.RuntimeEndpoint(), runDir), foreignEndpoint(k.ImageEndpoint(), runDir)
	if runtimeEndpoint == "" && !embedded.Available() {
		return fail(errors.New(`there is no runtime inside this build of berth: build one with "make build", or name a running one as containerRuntimeEndpoint`))
	}
	service, err := systemd.Asked()
	if err != nil {
		return fail(err)
	}
	cfg := agent.Config{
		RootDir: k.RootDir, RunDir: runDir, NodeName: name, RuntimeEndpoint: runtimeEndpoint, ImageEndpoint: imageEndpoint, RuntimeHandler: k.RuntimeHandler, CgroupRoot: k.CgroupRoot,
		PodLogsDir: k.PodLogsDir, ContainerLogsDir: "/var/log/containers", SELinux: k.SELinux, ImagePullProgressDeadline: k.ImagePullProgressDeadline, PodCIDR: k.PodCIDR, Service: service, Kubelet: k, Version: config.KubeletVersion(version), Log: log,
	}
	// The kubelet's default is for runtimes that do not report a driver. The embedded runtime only
	// gets an explicitly configured one.
	if k.Origins.Of("cgroupDriver").Kind != config.FromDefault {
		cfg.CgroupDriver = k.CgroupDriver
	}
	for _, path := range []string{k.StaticPodPath, k.StaticPodURL} {
		if path != "" {
			cfg.Paths = append(cfg.Paths, path)
		}
	}
	return cfg, nil
}
