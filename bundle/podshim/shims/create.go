package shims

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/bundle/podshim/plan"
	"berth/bundle/podshim/wire"
)

// sandboxAnnotation is the annotation with which containerd's CRI names the pod of a container.
const sandboxAnnotation = "io.kubernetes.cri.sandbox-id"

// validID matches valid pod and container IDs: they are part of file names and messages.
var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

const idRule = "must have 1 to 64 letters, digits, dots and dashes, and begin with a letter or digit"

// create creates a container without starting its program.
func (m *Manager) create(ctx context.Context, r *taskapi.CreateTaskRequest) (*task, error) {
	if err := validateRequest(r); err != nil {
		return nil, err
	}
	spec, err := readSpec(r.Bundle)
	if err != nil {
		return nil, err
	}
	p, err := m.pod(spec.Annotations[sandboxAnnotation])
	if err != nil {
		return nil, err
	}
	t := &task{pod: p, done: make(chan struct{}), execs: map[string]*task{}, record: taskRecord{
		Version: recordVersion, ID: r.ID, Bundle: r.Bundle, Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, Terminal: r.Terminal,
		Cgroup: spec.Linux.CgroupsPath,
	}}
	q := createRequest{CreateTaskRequest: r, spec: spec, pids: p.pidSharing(spec)}
	t.record.SharesProcesses = q.pids.shared()
	var done func()
	if q.trees, done, err = openTrees(spec, p.usernsPath()); err != nil {
		return nil, err
	}
	defer done()
	if t.plan, err = t.planFor(q, nil); err != nil { // validate before anything is created
		return nil, err
	}
	if err := t.createInShim(ctx, m, q); err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.tasks[t.record.ID] = t
	m.mu.Unlock()
	return t, nil
}

func validateRequest(r *taskapi.CreateTaskRequest) error {
	unsupported := func(field, reason string) error {
		return invalidArgument(&plan.FieldError{Field: field, Reason: reason})
	}
	switch {
	case !validID.MatchString(r.ID):
		return fmt.Errorf("id %q: %s: %w", r.ID, idRule, errdefs.ErrInvalidArgument)
	case r.Checkpoint != "" || r.ParentCheckpoint != "":
		return unsupported("checkpoint", "the pod shim does not support restore")
	}
	return nil
}

// readSpec reads the specification from the task's directory. It rejects unknown fields, because
// they would have no effect.
func readSpec(bundle string) (*specs.Spec, error) {
	b, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, err
	}
	var spec specs.Spec
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&spec); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	if spec.Linux == nil || spec.Process == nil {
		return nil, fmt.Errorf("config.json: linux or process is missing: %w", errdefs.ErrInvalidArgument)
	}
	return &spec, nil
}

// createRequest is the input of a container's creation.
type createRequest struct {
	*taskapi.CreateTaskRequest
	spec  *specs.Spec
	trees map[int]plan.Tree
	pids  pidSharing
}

// planFor returns the task's plan.
func (t *task) planFor(q createRequest, groups []plan.Cgroup) (*plan.Plan, error) {
	if err := hostModules().validate(q.spec.Process, q.spec.Linux.MountLabel); err != nil {
		return nil, err
	}
	t.pod.mu.Lock()
	podshim, hostname, config := t.pod.record.Pid, t.pod.record.Hostname, t.pod.record.Config
	t.pod.mu.Unlock()
	if err := validateUserNamespace(config, q.spec); err != nil {
		return nil, err
	}
	return plan.New(plan.Container{
		Spec: q.spec, Rootfs: q.Rootfs, Root: filepath.Join(q.Bundle, "rootfs"), Cgroups: groups, Unified: unified(), Log: q.spec.Annotations[plan.LogAnnotation],
		PodFiles: t.pod.dir, Hostname: hostname, Podshim: podshim, Trees: q.trees, SharesProcesses: q.pids.shared(), Proc: q.pids.proc(),
	})
}

// validateUserNamespace rejects a container outside of its pod's user namespace. Such a pod's shim
// briefly has a fully privileged process among those of its containers: c/plan.c, mount_procfs.
func validateUserNamespace(pod *runtime.PodSandboxConfig, spec *specs.Spec) error {
	if hasUserNamespace(pod.GetLinux().GetSecurityContext().GetNamespaceOptions()) && !plan.HasUserNamespace(spec) {
		return invalidArgument(&plan.FieldError{Field: "linux.namespaces", Reason: `has none of type "user", and the pod has one`})
	}
	return nil
}

// createInShim makes the pod shim create the container. After an error, nothing is left.
func (t *task) createInShim(ctx context.Context, m *Manager, r createRequest) error {
	// After a restart, containerd runs the stock shim's delete for each task that it finds,
	// which starts two more programs. This file names another program instead, which exits at
	// once.
	if err := os.WriteFile(filepath.Join(r.Bundle, "shim-binary-path"), []byte(m.programPath), 0o600); err != nil {
		return err
	}
	if err := t.register(); err != nil {
		return err
	}
	group, err := cgroupOf(r.spec)
	if err != nil {
		return errors.Join(err, t.unregister())
	}
	release, err := group.create(m.sealedProgram)
	if err != nil {
		return errors.Join(err, t.unregister())
	}
	defer release()
	crashPoint("task-cgroups")
	f, err := t.openFiles(ctx, r.spec.Linux.MountLabel)
	if err != nil {
		return errors.Join(fmt.Errorf("container %s: %w", t.record.ID, err), t.unregister())
	}
	defer f.close()
	if t.plan, err = t.planFor(r, group.dirs()); err != nil {
		return errors.Join(err, t.unregister())
	}
	t.holdFIFOs()
	q := t.request(wire.Create, 0)
	f.addMemoryEvents(group.dirs())
	if err = f.addStartCgroup(group.dirs()); err == nil {
		err = r.pids.addTo(&q, f, group.dirs())
	}
	if err == nil {
		_, err = t.pod.call(q, t.plan, f)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("container %s: %w", t.record.ID, err), t.unregister())
	}
	crashPoint("task-made")
	return nil
}

// register adds the task to its pod, and persists it for a restart of containerd.
func (t *task) register() error {
	p := t.pod
	p.mu.Lock()
	_, exists := p.tasks[t.record.ID]
	if !exists && p.alive() {
		p.tasks[t.record.ID] = t
	}
	p.mu.Unlock()
	switch {
	case exists:
		return fmt.Errorf("task %s: %w", t.record.ID, errdefs.ErrAlreadyExists)
	case !p.alive():
		return fmt.Errorf("task %s: %w: %w", t.record.ID, errExited, errdefs.ErrNotFound)
	}
	if err := t.save(); err != nil {
		return errors.Join(err, t.unregister())
	}
	crashPoint("task-written")
	return nil
}

// unregister removes a task that could not be created.
func (t *task) unregister() error {
	p := t.pod
	p.mu.Lock()
	delete(p.tasks, t.record.ID)
	if t.state != wire.Stopped {
		t.state = wire.Stopped
		t.markStopped()
	}
	p.mu.Unlock()
	return t.removeFiles()
}
