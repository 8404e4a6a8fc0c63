package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/api/netns"
	"berth/internal/api/server"
	"berth/internal/cluster/node"
	"berth/internal/host/cgroups"
	"berth/internal/host/preflight"
	"berth/internal/observe/pleg"
	"berth/internal/pod"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/crispec"
	"berth/internal/runtime/embedded"
)

// containerRuntime is the runtime and what it reports about itself.
type containerRuntime struct {
	embedded *embedded.Runtime // nil with a foreign runtime
	ensured  chan struct{}     // closed when the embedded runtime serves
	endpoint string
	// handler is for pods without a RuntimeClass; "" is the runtime's default. prefersPodshims
	// selects the podshim handler once the runtime has answered, unless another one is configured.
	handler         string
	prefersPodshims bool
	cri             *cri.Client
	facts           *runtimeInfo
	log             *slog.Logger
	// logWriters are the handlers whose container logs the runtime does not write. Set when the
	// runtime answers, before any pass.
	logWriters []string
	// driver applies if the runtime does not report its own.
	driver cgroups.Driver
	// networkChanged has an element when the embedded runtime has changed the pod network.
	networkChanged chan struct{} // capacity 1
}

// networkPlugins is the directory of CNI configurations (containerd's and CRI-O's default).
const networkPlugins = "/etc/cni/net.d"

func newContainerRuntime(g *dependencies) (containerRuntime, error) {
	b := &g.base
	cfg, err := &b.cfg, error(nil)
	rt := containerRuntime{
		ensured: make(chan struct{}), endpoint: cfg.RuntimeEndpoint, handler: cfg.RuntimeHandler, facts: newRuntimeInfo(b.out.Cgroups), log: cfg.Log,
		networkChanged: make(chan struct{}, 1), driver: cmp.Or(cgroups.Driver(cfg.CgroupDriver), cgroups.Cgroupfs),
	}
	var recorded map[string]string
	if rt.endpoint == "" && b.out.DialCRI == nil {
		c := embedded.Config{
			Root: cfg.RootDir, RunDir: cfg.RunDir, CgroupDriver: cfg.CgroupDriver, SELinux: cfg.SELinux,
			PullProgressDeadline: cfg.ImagePullProgressDeadline, Cgroups: rt.facts, Log: cfg.Log,
			Assigned: b.settings.mode == memberMode, NetworkChanged: func() { wake(rt.networkChanged) },
			Recovered: func(done embedded.Recovery) {
				g.recorder.NodeEvent(v1.EventTypeWarning, "RuntimeStoreDamaged", done.String())
			},
		}
		if !c.Assigned {
			c.Subnets = splitCIDRs(cfg.PodCIDR)
		}
		if b.settings.mode != runMode {
			c.NetworkPlugins = networkPlugins
		}
		if rt.embedded, err = embedded.New(c); err != nil {
			return rt, err
		}
		rt.endpoint = rt.embedded.Endpoint()
		rt.prefersPodshims, recorded = b.settings.mode == runMode, embedded.RecordedHandlers
		if rt.handler == embedded.DeprecatedPodshimHandler {
			rt.handler = embedded.PodshimHandler
			rt.log.Warn("Runtime handler is deprecated", "handler", embedded.DeprecatedPodshimHandler, "use", embedded.PodshimHandler)
		}
	}
	rt.cri, err = cri.New(cri.Config{
		Endpoint: rt.endpoint, ImageEndpoint: cfg.ImageEndpoint, Timeout: b.settings.runtimeTimeout, Dial: b.out.DialCRI, RecordedHandlers: recorded, Metrics: b.out.Metrics,
	})
	return rt, err
}

// chooseHandler selects the podshim handler of the embedded runtime, unless a handler is configured
// or the machine does not support it.
func (rt *containerRuntime) chooseHandler() {
	if !rt.prefersPodshims || rt.handler != "" {
		return
	}
	if err := preflight.CheckPodshims(); err != nil {
		rt.log.Warn("Pods run with containerd's shims, which need more CPU and memory than pod shims", "error", err)
		return
	}
	rt.handler = embedded.PodshimHandler
}

// handlerFor returns the handler of a pod without a RuntimeClass. Shims run CDI hooks of devices
// and pod shims do not: hasDevices reports which pods may need them.
func (rt *containerRuntime) handlerFor(p *v1.Pod, hasDevices func(*v1.Pod) bool) (handler, why string) {
	if rt.embedded != nil && rt.handler == embedded.PodshimHandler && hasDevices(p) {
		return embedded.ShimHandler, "as it has devices"
	}
	return rt.handler, ""
}

// newRuntimeHealth creates the check of the runtime. A foreign runtime does not report changes of
// its network.
func newRuntimeHealth(b *base, rt *containerRuntime, events *pleg.PLEG, changed func()) *node.RuntimeHealth {
	c := node.RuntimeHealthConfig{Runtime: rt.cri, Changed: changed, Streaming: events.Streaming, Broke: events.Broke(), Log: b.cfg.Log}
	if rt.embedded != nil {
		c.Network = rt.networkChanged
	}
	return node.NewRuntimeHealth(c)
}

// component returns the component that runs an embedded runtime and waits for the answer of any
// runtime.
func (rt *containerRuntime) component(connected func(context.Context, cgroups.Driver) (ContainerManager, error)) component {
	connect := func(ctx context.Context) error { return rt.connect(ctx, connected) }
	if rt.embedded == nil {
		return component{name: "container runtime", run: waitDone, ready: connect}
	}
	return component{name: "container runtime", run: rt.supervise, limit: 5 * time.Second, ready: func(ctx context.Context) error {
		if _, err := rt.embedded.Ensure(ctx); err != nil {
			return err
		}
		close(rt.ensured)
		return connect(ctx)
	}}
}

// supervise starts after the runtime's first start.
func (rt *containerRuntime) supervise(ctx context.Context) error {
	select {
	case <-rt.ensured:
		return rt.embedded.Run(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// connect waits for the runtime's answer and reads its properties; newCgroups creates
// containerManager for its cgroup driver.
func (rt *containerRuntime) connect(ctx context.Context, newCgroups func(context.Context, cgroups.Driver) (ContainerManager, error)) error {
	for {
		v, err := rt.cri.Version(ctx)
		var driver cgroups.Driver
		if err == nil {
			driver, err = rt.cgroupDriver(ctx)
		}
		if err == nil {
			rt.logWriters, err = rt.cri.LogWriters(ctx)
		}
		if err == nil {
			rt.chooseHandler()
			if err := rt.checkHandler(ctx); err != nil {
				return err
			}
			if s, err := rt.cri.Status(ctx); err == nil {
				rt.facts.setFeatures(s.GetFeatures())
			}
			return rt.facts.set(v.RuntimeName, v.RuntimeVersion, func() (ContainerManager, error) { return newCgroups(ctx, driver) })
		}
		rt.log.Warn("the container runtime does not answer", "error", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("container runtime: %w; last it said: %v", ctx.Err(), err)
		case <-time.After(time.Second):
		}
	}
}

// cgroupDriver returns the runtime's driver, or the configured one if it does not report it.
func (rt *containerRuntime) cgroupDriver(ctx context.Context) (cgroups.Driver, error) {
	switch d, err := rt.cri.CgroupDriver(ctx); {
	case errors.Is(err, cri.ErrUnimplemented):
		return rt.driver, nil
	case err != nil:
		return "", err
	case d == runtimeapi.CgroupDriver_SYSTEMD:
		return cgroups.Systemd, nil
	default:
		return cgroups.Cgroupfs, nil
	}
}

// writesLogs reports whether the shims of a handler write the container logs.
func (rt *containerRuntime) writesLogs(handler string) bool {
	return slices.Contains(rt.logWriters, handler)
}

// checkHandler rejects a default handler that the runtime does not have.
func (rt *containerRuntime) checkHandler(ctx context.Context) error {
	if rt.handler == "" {
		return nil
	}
	names, err := rt.handlers(ctx)
	if err == nil && !slices.Contains(names, rt.handler) {
		err = fmt.Errorf("runtime handler %q: the runtime has these: %s", rt.handler, strings.Join(slices.DeleteFunc(names, func(n string) bool { return n == "" }), ", "))
	}
	return err
}

func (rt *containerRuntime) handlers(ctx context.Context) ([]string, error) {
	s, err := rt.cri.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("handlers of the runtime: %w", err)
	}
	var names []string
	for _, h := range s.GetRuntimeHandlers() {
		names = append(names, h.GetName())
	}
	return names, nil
}

// nodeImages returns the images in the form of the Node status.
func (rt *containerRuntime) nodeImages(ctx context.Context) ([]v1.ContainerImage, error) {
	images, err := rt.cri.Images.ListImages(ctx)
	if err != nil {
		return nil, err
	}
	return node.ContainerImages(images), nil
}

// podDialer returns a dialer within the sandbox's network namespace, nil if the runtime does not
// report the namespace.
func (rt *containerRuntime) podDialer(ctx context.Context, sandbox *pod.SandboxStatus) (server.Dialer, error) {
	if sandbox.HostNetwork {
		return (&net.Dialer{}).DialContext, nil
	}
	path, err := rt.cri.NetworkNamespace(ctx, sandbox.ID)
	if err != nil || path == "" {
		return nil, err
	}
	if err := netns.Check(path); err != nil { // the runtime is in another mount namespace
		rt.log.Debug("port-forward is left to the runtime", "sandbox", sandbox.ID, "error", err)
		return nil, nil
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return netns.Dial(ctx, path, network, address)
	}, nil
}

// execLimits returns the limits of processes that the runtime starts.
func (rt *containerRuntime) execLimits() crispec.ExecLimits {
	if rt.embedded == nil {
		return crispec.HostExecLimits(os.Getpagesize(), 0)
	}
	return crispec.HostExecLimits(os.Getpagesize(), embedded.StackLimit())
}
