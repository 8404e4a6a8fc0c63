package agenttest

import (
	"context"
	"fmt"
	"maps"
	"sync"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/runtime/cri/critest"
)

// Cgroups is an in-memory containerManager.
type Cgroups struct {
	mu   sync.Mutex
	pods map[pod.UID]*podCgroup // guarded by mu

	runtime *critest.Runtime
	deaf    map[string]bool // guarded by mu; names of pods whose processes ignore all signals

	resized []string // guarded by mu; changes of pods' cgroups
	usage   int64    // guarded by mu; bytes of every pod
}

type podCgroup struct {
	values map[cgroups.PodPart]int64
	known  bool // this agent has written its values: afterwards only a resize does
}

var podParts = []cgroups.PodPart{cgroups.MemoryLimit, cgroups.CPULimit, cgroups.CPURequest}

// EnsurePod creates the pod's cgroup. It also writes the values of one from an earlier agent.
func (c *Cgroups) EnsurePod(_ context.Context, p *v1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.pods[p.UID]
	if g == nil {
		g = &podCgroup{values: map[cgroups.PodPart]int64{}}
		c.pods[p.UID] = g
	}
	if !g.known {
		for _, part := range podParts {
			g.values[part] = cgroups.PodValue(p, part)
		}
		g.known = true
	}
	return nil
}

// forget marks all cgroups as those of an earlier agent.
func (c *Cgroups) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.pods {
		g.known = false
	}
}

// Values returns the values of pod cgroups; 0 is no limit.
func (c *Cgroups) Values() map[pod.UID]map[cgroups.PodPart]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[pod.UID]map[cgroups.PodPart]int64{}
	for uid, g := range c.pods {
		out[uid] = maps.Clone(g.values)
	}
	return out
}

// PodParent returns the pod's cgroup.
func (c *Cgroups) PodParent(p *v1.Pod) string { return "/kubepods/pod" + string(p.UID) }

// ResizePod records a change of the pod's cgroup.
func (c *Cgroups) ResizePod(_ context.Context, p *v1.Pod, part cgroups.PodPart) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	value := cgroups.PodValue(p, part)
	if g := c.pods[p.UID]; g != nil {
		g.values[part] = value
	}
	c.resized = append(c.resized, fmt.Sprintf("%s %s %d", p.Name, part, value))
	return nil
}

// PodMemoryUsage returns the value of SetMemoryUsage.
func (c *Cgroups) PodMemoryUsage(*v1.Pod) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.usage, nil
}

// SetMemoryUsage sets the memory usage of every pod in bytes.
func (c *Cgroups) SetMemoryUsage(usage int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.usage = usage
}

// TakeResized returns and clears the recorded changes of pods' cgroups, such as "web memory limit
// 67108864".
func (c *Cgroups) TakeResized() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.resized = nil }()
	return c.resized
}

// KillPod kills all processes of the pod.
func (c *Cgroups) KillPod(ctx context.Context, uid pod.UID) error {
	for _, cr := range c.runtime.ContainersOf(string(uid)) {
		if err := c.KillContainer(ctx, uid, pod.ContainerID(cr.ID)); err != nil {
			return err
		}
	}
	for _, sb := range c.runtime.SandboxesOf(string(uid)) {
		_ = c.runtime.KillSandbox(sb.ID) // it may have exited
	}
	return nil
}

// KillContainer kills the container's process.
func (c *Cgroups) KillContainer(_ context.Context, _ pod.UID, id pod.ContainerID) error {
	cr, ok := c.runtime.Find(string(id))
	if !ok || cr.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil
	}
	c.mu.Lock()
	deaf := c.deaf[cr.Pod.GetName()]
	c.mu.Unlock()
	if deaf {
		return fmt.Errorf("process 4711 (%s) in state D", cr.Name)
	}
	return c.runtime.Kill(cr.ID, 137)
}

// SetDeaf makes the processes of the named pod ignore all signals, or resets that.
func (c *Cgroups) SetDeaf(podName string, deaf bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deaf[podName] = deaf
}

// Processes returns the running processes of the pod.
func (c *Cgroups) Processes(uid pod.UID) ([]cgroups.Process, error) {
	var out []cgroups.Process
	for _, cr := range c.runtime.ContainersOf(string(uid)) {
		if cr.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			out = append(out, cgroups.Process{PID: 4711, Command: cr.Name, Container: pod.ContainerID(cr.ID)})
		}
	}
	return out, nil
}

// RemovePod removes the pod's cgroup.
func (c *Cgroups) RemovePod(_ context.Context, uid pod.UID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, uid)
	return nil
}

// Len returns the number of pod cgroups.
func (c *Cgroups) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pods)
}

// PodPath returns "": there is no cgroup tree to read.
func (c *Cgroups) PodPath(pod.UID) string { return "" }

// QoSPath returns "".
func (c *Cgroups) QoSPath(v1.PodQOSClass) string { return "" }

// List returns none: the leftovers of an earlier agent are found through the runtime and the disk.
func (c *Cgroups) List() ([]pod.UID, error) { return nil, nil }

// IsOccupied returns false.
func (c *Cgroups) IsOccupied(pod.UID) (bool, error) { return false, nil }

// EmptyContainers returns none.
func (c *Cgroups) EmptyContainers() (map[string][]string, error) { return nil, nil }

// RemoveEmpty is a no-op.
func (c *Cgroups) RemoveEmpty([]string) error { return nil }

// EnforceAllocatable succeeds.
func (c *Cgroups) EnforceAllocatable() error { return nil }

// RemoveQoS is a no-op.
func (c *Cgroups) RemoveQoS() error { return nil }
