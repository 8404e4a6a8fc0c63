package agent

import (
	"context"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/cri"
	"berth/internal/oom"
	"berth/internal/pod"
)

// killsFile says which OOM kills were told.
const killsFile = "oom_kills.json"

// amendedRuntime is the runtime for PLEG, whose containers say that they were killed for want of memory also where the runtime does not know.
type amendedRuntime struct {
	*cri.Client
	a *Agent
}

// ReadPod reads one pod.
func (r amendedRuntime) ReadPod(ctx context.Context, uid pod.UID, prev *pod.Status, listed *cri.RuntimePod) (*pod.Status, error) {
	s, err := r.Client.ReadPod(ctx, uid, prev, listed)
	if err == nil && r.a.kills != nil {
		r.a.kills.Amend(s)
	}
	return s, err
}

// newKills builds the watch on OOM kills. A host without cgroups has none.
func (a *Agent) newKills() {
	kernel := a.out.Kernel
	if kernel == nil {
		var err error
		if kernel, err = oom.NewKernel(); err != nil {
			a.cfg.Log.Warn("OOM kills are not told", "error", err)
			return
		}
	}
	a.kills = oom.New(oom.Config{
		Kernel: kernel, Observed: a.pleg.Subscribe(), Newest: a.pleg.Newest, Known: a.pleg.Known, Relisted: a.pleg.Relisted(), Cgroup: a.facts.PodPath,
		Killed: a.oomKilled, System: a.systemOOM, Path: filepath.Join(a.cfg.RootDir, killsFile), Log: a.cfg.Log,
	})
}

// oomKilled records a kill in a container. It is an event of its own even when the container goes on: a parent may survive its child.
func (a *Agent) oomKilled(k oom.Kill) {
	p, ok := a.pods.Get(k.UID)
	if !ok {
		p, ok = a.status.Pod(k.UID)
	}
	if !ok { // an agent that comes back hears of kills before it hears of pods
		p = &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: k.UID, Namespace: k.Namespace, Name: k.Name}}
	}
	a.recorder.Event(p, k.Container, v1.EventTypeWarning, "OOMKilled", k.Message())
	a.pleg.Refresh(k.UID)
}

// systemOOM records that the node had no memory left.
func (a *Agent) systemOOM(process string, pid int) {
	message := "System OOM encountered"
	if process != "" && pid != 0 {
		message = fmt.Sprintf("%s, victim process: %s, pid: %d", message, process, pid)
	}
	a.recorder.NodeEvent(v1.EventTypeWarning, "SystemOOM", message)
}
