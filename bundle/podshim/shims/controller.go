package shims

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/events/exchange"
	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/typeurl/v2"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/selinux/go-selinux"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/bundle/podshim/plan"
)

// taskVersion is the version of the task service (runtime/task/v3).
const taskVersion = 3

// Register registers the sandbox controller with containerd, under its name and the previous one.
func (m *Manager) Register() {
	var once sync.Once
	var c *controller
	var err error
	for _, id := range []string{sandboxerID, previousSandboxerID} {
		registry.Register(&plugin.Registration{
			Type:     plugins.SandboxControllerPlugin,
			ID:       id,
			Requires: []plugin.Type{plugins.EventPlugin, plugins.SandboxStorePlugin},
			InitFn: func(ic *plugin.InitContext) (any, error) {
				once.Do(func() { c, err = m.newController(ic) })
				return c, err
			},
		})
	}
}

// newController follows containerd's events, and stops the pods that containerd does not know.
func (m *Manager) newController(ic *plugin.InitContext) (*controller, error) {
	p, err := ic.GetByID(plugins.EventPlugin, "exchange")
	if err != nil {
		return nil, err
	}
	source, ok := p.(*exchange.Exchange)
	if !ok {
		return nil, fmt.Errorf("events come from a %T", p)
	}
	if p, err = ic.GetByID(plugins.SandboxStorePlugin, "local"); err != nil {
		return nil, err
	}
	store, ok := p.(sandbox.Store)
	if !ok {
		return nil, fmt.Errorf("sandboxes are in a %T", p)
	}
	unknown, err := m.unknown(ic.Context, store)
	if err != nil {
		return nil, fmt.Errorf("sandboxes: %w", err)
	}
	c := &controller{m}
	m.events.Store(source)
	go m.followDeletes(ic.Context, source)
	go c.stopUnknown(ic.Context, unknown)
	return c, nil
}

// unknown returns the pods that are not in containerd's store, which has been replaced since they
// were created.
func (m *Manager) unknown(ctx context.Context, store sandbox.Store) ([]string, error) {
	known, err := store.List(namespaces.WithNamespace(ctx, namespace))
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for id := range m.pods {
		if !slices.ContainsFunc(known, func(s sandbox.Sandbox) bool { return s.ID == id }) {
			out = append(out, id)
		}
	}
	return out, nil
}

// stopUnknown stops pods that are not in containerd's store.
func (c *controller) stopUnknown(ctx context.Context, ids []string) {
	for _, id := range ids {
		log.L.Warnf("podshim: pod %s is not in containerd's database: stopping it", id)
		if err := c.Shutdown(ctx, id); err != nil {
			log.L.Errorf("podshim: pod %s: %s", id, err)
		}
	}
}

// followDeletes forgets the containers that containerd deletes.
func (m *Manager) followDeletes(ctx context.Context, source *exchange.Exchange) {
	deletes, failed := source.Subscribe(ctx, `topic=="/containers/delete"`)
	for {
		select {
		case e := <-deletes:
			v, err := typeurl.UnmarshalAny(e.Event)
			if d, ok := v.(*events.ContainerDelete); ok && err == nil {
				m.removeExit(d.ID)
			}
		case err := <-failed:
			if ctx.Err() == nil {
				log.L.Errorf("podshim: events of deleted containers: %v", err)
			}
			return
		}
	}
}

// controller is the sandbox controller: a sandbox is a pod, and its process is the pod shim.
type controller struct{ m *Manager }

// hasUserNamespace reports whether a pod has its own user namespace.
func hasUserNamespace(n *runtime.NamespaceOption) bool {
	return n.GetUsernsOptions() != nil && n.GetUsernsOptions().GetMode() == runtime.NamespaceMode_POD
}

// validatePod rejects what a pod requests and the pod shim does not support. The requests of
// containers are validated at their creation.
func validatePod(c *runtime.PodSandboxConfig, netns string) error {
	s := c.GetLinux().GetSecurityContext()
	n := s.GetNamespaceOptions()
	unsupported := func(field, reason string) error {
		return invalidArgument(&plan.FieldError{Field: field, Reason: reason})
	}
	switch {
	case (n.GetNetwork() == runtime.NamespaceMode_NODE) != (netns == ""):
		return unsupported("linux.security_context.namespace_options.network", fmt.Sprintf("is %s, and the network namespace is %q", n.GetNetwork(), netns))
	case n.GetPid() == runtime.NamespaceMode_TARGET:
		return unsupported("linux.security_context.namespace_options.pid", "a pod has no container yet whose PID namespace it could share")
	case hasUserNamespace(n) && slices.Contains([]runtime.NamespaceMode{n.GetNetwork(), n.GetPid(), n.GetIpc()}, runtime.NamespaceMode_NODE):
		return unsupported("linux.security_context.namespace_options.userns_options", "a pod with its own user namespace must also have its own network, PID and IPC namespaces")
	}
	return validateSysctls(c.GetLinux().GetSysctls(), n)
}

func (c *controller) Create(_ context.Context, s sandbox.Sandbox, opts ...sandbox.CreateOpt) error {
	var o sandbox.CreateOptions
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return err
		}
	}
	v, err := typeurl.UnmarshalAny(o.Options)
	if err != nil {
		return fmt.Errorf("options of sandbox %s: %w", s.ID, err)
	}
	config, ok := v.(*runtime.PodSandboxConfig)
	if !ok {
		return fmt.Errorf("options of sandbox %s are a %T", s.ID, v)
	}
	if err := validatePod(config, o.NetNSPath); err != nil {
		return err
	}
	if _, err := c.m.sealedProgram(); err != nil { // before anything of the pod exists
		return err
	}
	if !validID.MatchString(s.ID) { // it is the name of a directory, which is removed in the end
		return fmt.Errorf("sandbox %q: %s: %w", s.ID, idRule, errdefs.ErrInvalidArgument)
	}
	p := newPod(filepath.Join(c.m.dir, s.ID))
	n := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	p.namespaces, p.sysctls = ownNamespaces(config), computeSysctls(config.GetLinux().GetSysctls(), n)
	if u := n.GetUsernsOptions(); hasUserNamespace(n) && len(u.GetUids()) == 1 {
		p.rootUID = &u.Uids[0].HostId
	}
	p.record = podRecord{
		Version: recordVersion, ID: s.ID, Hostname: config.GetHostname(), Created: time.Now(),
		HostPID: n.GetPid() == runtime.NamespaceMode_NODE,
		Network: o.NetNSPath, Runtime: s.Runtime.Name, Config: config,
	}
	if p.record.Hostname == "" {
		if p.record.Hostname, err = os.Hostname(); err != nil {
			return err
		}
	}
	if err := createParent(config.GetLinux().GetCgroupParent()); err != nil {
		return err
	}
	if err := p.label(config.GetLinux().GetSecurityContext().GetSelinuxOptions()); err != nil {
		return err
	}
	if err := p.createFiles(config); err != nil {
		return errors.Join(fmt.Errorf("directory of sandbox %s: %w", s.ID, err), os.RemoveAll(p.dir))
	}
	c.m.mu.Lock()
	c.m.pods[s.ID] = p
	c.m.mu.Unlock()
	crashPoint("pod-created")
	return nil
}

func (c *controller) Start(ctx context.Context, id string) (sandbox.ControllerInstance, error) {
	p, err := c.m.pod(id)
	if err != nil {
		return sandbox.ControllerInstance{}, err
	}
	program, err := c.m.sealedProgram()
	if err == nil {
		err = p.start(program)
	}
	if err != nil {
		// containerd does not shut down a sandbox that failed to start.
		return sandbox.ControllerInstance{}, errors.Join(fmt.Errorf("start the pod shim of sandbox %s: %w", id, err), c.Shutdown(ctx, id))
	}
	return sandbox.ControllerInstance{SandboxID: id, Pid: p.record.Pid, CreatedAt: p.record.Created, Address: c.m.address(), Version: taskVersion, Labels: map[string]string{"selinux_label": p.record.Label}}, nil
}

func (c *controller) Platform(context.Context, string) (imagespec.Platform, error) {
	return imagespec.Platform{OS: "linux", Architecture: goruntime.GOARCH}, nil
}

func (c *controller) Stop(_ context.Context, id string, _ ...sandbox.StopOpt) error {
	p, err := c.m.pod(id)
	if err != nil {
		return err
	}
	if err := p.stop(); err != nil {
		return err
	}
	crashPoint("pod-stopped")
	return nil
}

func (c *controller) Wait(ctx context.Context, id string) (sandbox.ExitStatus, error) {
	p, err := c.m.pod(id)
	if err != nil {
		return sandbox.ExitStatus{}, err
	}
	select {
	case <-p.exited:
		return sandbox.ExitStatus{ExitStatus: killedExitCode, ExitedAt: p.exitedAt}, nil
	case <-ctx.Done():
		return sandbox.ExitStatus{}, ctx.Err()
	}
}

func (c *controller) Status(_ context.Context, id string, verbose bool) (sandbox.ControllerStatus, error) {
	p, err := c.m.pod(id)
	if err != nil {
		return sandbox.ControllerStatus{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := sandbox.ControllerStatus{
		SandboxID: id, Pid: p.record.Pid, State: runtime.PodSandboxState_SANDBOX_READY.String(),
		CreatedAt: p.record.Created, Address: c.m.address(), Version: taskVersion,
	}
	if !p.alive() {
		s.State, s.ExitedAt, s.Pid = runtime.PodSandboxState_SANDBOX_NOTREADY.String(), p.exitedAt, 0
	}
	if verbose {
		if s.Info, err = p.record.info(s.Pid); err != nil {
			return sandbox.ControllerStatus{}, err
		}
	}
	return s, nil
}

func (c *controller) Shutdown(_ context.Context, id string) error {
	p, err := c.m.pod(id)
	if err != nil {
		return err
	}
	if err := p.stop(); err != nil {
		return err
	}
	p.mu.Lock()
	var ids, groups []string
	for _, t := range p.tasks {
		ids, groups = append(ids, t.record.ID), append(groups, t.record.Cgroup)
	}
	p.mu.Unlock()
	for _, g := range groups {
		err := removeCgroup(g)
		if err != nil && p.forceStop { // its record may be damaged
			log.L.Warnf("podshim: pod %s: %s", id, err)
			err = nil
		}
		if err != nil {
			return err
		}
	}
	if err := os.RemoveAll(p.dir); err != nil {
		return err
	}
	selinux.ReleaseLabel(p.record.Label)
	crashPoint("pod-folder-gone")
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	delete(c.m.pods, id)
	for _, id := range ids {
		delete(c.m.tasks, id)
	}
	return nil
}

func (c *controller) Metrics(context.Context, string) (*types.Metric, error) {
	return nil, errdefs.ErrNotImplemented
}

// Update ignores changed labels and extensions of the sandbox, which only containerd uses.
func (c *controller) Update(context.Context, string, sandbox.Sandbox, ...string) error { return nil }
