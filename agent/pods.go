package agent

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/node"
	"berth/internal/cluster/offlinecache"
	"berth/internal/host/hostports"
	"berth/internal/host/inotify"
	"berth/internal/observe/pleg"
	"berth/internal/observe/prober"
	"berth/internal/observe/status"
	"berth/internal/pod"
	"berth/internal/pod/allocation"
	"berth/internal/resources/containermanager"
	"berth/internal/runtime/action"
	"berth/internal/runtime/containerlogs"
	"berth/internal/runtime/crispec"
	"berth/internal/runtime/kuberuntime"
	"berth/internal/runtime/userns"
	"berth/internal/source/manifest"
	"berth/internal/source/podconfig"
	"berth/internal/storage/objects"
	"berth/internal/storage/volumes"
	"berth/internal/sync/admission"
	"berth/internal/sync/podsync"
	"berth/internal/sync/podworkers"
)

// hasEnded reports whether the pod has failed or succeeded.
func (s *stateStores) hasEnded(uid pod.UID) bool {
	st, known := s.status.Get(uid)
	return known && pod.IsTerminal(st.Phase)
}

// keepsEnded reports whether all containers of the pod have terminated for good and remain only for
// inspection. The worker of a pod that is not desired removes them.
func (s *stateStores) keepsEnded(uid pod.UID) bool {
	l, ok := s.states.Get(uid)
	return ok && l.State >= pod.Terminated && !l.Orphan && !l.RuntimeOnly
}

// newContainerLogs creates the log rotation; nil if it is off (a negative containerLogMaxSize).
func newContainerLogs(g *dependencies, rt *containerRuntime, p *pleg.PLEG) *containerlogs.Manager {
	if g.settings.containerLogs.MaxSize < 0 {
		return nil
	}
	watch := g.out.LogWrites
	if watch == nil {
		watch = func() (containerlogs.Writes, error) { return inotify.OpenOnce() }
	}
	return containerlogs.New(containerlogs.Config{
		Limits: g.settings.containerLogs, Runtime: rt.cri, Changed: p.Subscribe(), Newest: p.Newest, Watch: watch, Journal: g.journal, Log: g.cfg.Log,
	})
}

// podNeeds holds what running pods need.
type podNeeds struct {
	users       *userns.Allocator
	allocations *allocation.Allocations
	actions     *action.Actions
	probes      *prober.Manager
}

func newPodNeeds(g *dependencies, rt *containerRuntime) (n podNeeds, err error) {
	if n.users, err = userns.New(userns.Config{
		Root: g.cfg.RootDir, IDsPerPod: g.settings.idsPerPod, MaxPods: g.settings.maxPods, Log: g.cfg.Log,
	}); err != nil {
		return n, err
	}
	kubelet := ""
	if g.settings.manifests.names == manifest.MangleNames {
		kubelet = g.cfg.RootDir
	}
	n.allocations = allocation.New(allocation.Config{
		File: g.cfg.inRoot(allocationsFile), Kubelet: kubelet, Log: g.cfg.Log,
		SetAside: func(message string) { g.recorder.NodeEvent(v1.EventTypeWarning, "AllocationsLost", message) },
	})
	g.api.offline.WasAdmitted = n.allocations.WasAdmitted
	n.actions = action.New(action.Config{CRI: rt.cri.Streaming, Dial: g.out.Dial, Metrics: g.out.Metrics})
	n.probes = prober.New(prober.Config{
		Actions: n.actions, Recorder: g.recorder, Journal: g.journal, Log: g.cfg.Log, Path: g.cfg.inRoot(probesFile),
		HostIPs: g.hostIPs.Current,
	})
	return n, nil
}

// podLife holds the components of pod lifecycles: admission, workers and syncer.
type podLife struct {
	podNeeds
	runtime *kuberuntime.Runtime
	syncer  *podsync.Syncer
	listed  <-chan struct{} // closed after the first list of running pods
	admit   *admission.Chain
	workers *podworkers.PodWorkers
	resized *pod.Inbox[pod.UID]
}

// sources returns the configuration of the pod sources.
func sources(g *dependencies, o *objectSources, syncer *podsync.Syncer) podconfig.Config {
	m := g.settings.manifests
	c := podconfig.Config{
		NodeName: g.cfg.NodeName, Log: g.cfg.Log, Journal: g.journal, Paths: g.cfg.Paths, Names: m.names,
		StateDir: g.cfg.inRoot(manifestsDir), Watch: g.out.Watch, Transport: g.out.Transport,
		Rescan: m.rescan, Poll: m.poll, Header: m.header, Objects: o.define, Event: podEvents(g.recorder),
		AllowUnknownFields: g.cfg.AllowUnknownFields,
	}
	if g.cfg.Source != nil {
		c.Program = programSource(g.cfg.Source)
	}
	if m.names == manifest.MangleNames {
		c.KubeletLogs = g.cfg.PodLogsDir
	}
	c.API = func(changed func()) podconfig.PodWatch {
		return g.api.offline.Watch(func(changed func()) offlinecache.ServerPods {
			return kube.NewWatchOf[*v1.Pod](g.api.client, kube.OfNode(g.cfg.NodeName), func() []pod.UID { return expectPods(g, syncer) }, changed)
		}, changed)
	}
	return c
}

// expectPods returns the pods whose directories an earlier agent left. The API server is expected
// to list them, except static pods, which it has under the UIDs of their mirrors; a private API
// starts empty.
func expectPods(g *dependencies, syncer *podsync.Syncer) []pod.UID {
	if g.api.isPrivate() {
		return nil
	}
	uids, err := syncer.OnDisk()
	if err != nil {
		g.cfg.Log.Warn("folders of earlier pods not read: the first list of pods is believed", "error", err)
	}
	return uids
}

// checkHostPorts returns a check of pods against the sockets of this machine, unless another table
// is given.
func checkHostPorts(t hostports.Table) func(*v1.Pod) error {
	if t == nil {
		t = hostports.Host{Proc: "/proc"}
	}
	return func(p *v1.Pod) error { return hostports.Check(t, p) }
}

// reporting holds what writes to the API server about pods.
type reporting struct {
	// patcher and compare are nil if only the agent reaches the API server: it does not read pod
	// statuses there, and writing them takes as many allocations as the rest of the start.
	patcher *status.Patcher
	mirrors *status.Mirrors
	// followNode watches the Node.
	followNode func(context.Context) error
	// compare compares a pod from the API server.
	compare func(*v1.Pod)
}

// newReporting creates reporting. known reports whether the desired pods are known.
func newReporting(g *dependencies, l *podLife, known func() bool, v *volumes.Manager, addressesChanged func()) reporting {
	var r reporting
	published := func(pod.UID) {}
	if !g.api.isPrivate() {
		r.patcher = status.NewPatcher(status.PatcherConfig{
			API: g.api.client, Manager: g.stores.status, Pods: g.stores.pods, States: g.stores.states, Metrics: g.statuses, Journal: g.journal, Log: g.cfg.Log,
			BeforePatch: func(ctx context.Context) { // only this agent has it for static pods
				l.probes.Write(ctx)
				g.stores.statusRecords.Write(ctx)
			},
		})
		r.compare, published = r.patcher.Compare, r.patcher.Recheck
	}
	nodeChanged := make(chan struct{}, 1)
	r.mirrors = status.NewMirrors(status.MirrorsConfig{
		API: g.api.client, Pods: g.stores.pods, Changed: g.api.static, NodeChanged: nodeChanged,
		Node: func() (string, pod.UID) { return g.cfg.NodeName, g.api.current.UID() },
		Ending: func(n pod.FullName) bool {
			first, ok := l.workers.FirstOfName(n)
			p, wanted := g.stores.pods.GetByFullName(n)
			_, ending := l.workers.TerminatingPod(first)
			return ok && (!wanted || p.UID != first || ending)
		},
		Complete: known, Published: published, Event: podEvents(g.recorder), Log: g.cfg.Log,
	})
	r.followNode = func(ctx context.Context) error {
		g.api.client.FollowNode(ctx, g.cfg.NodeName, func(n *v1.Node) {
			g.api.current.Observe(n)
			l.admit.NodeChanged()
			v.CSI.NodeChanged()
			wake(nodeChanged)
			addressesChanged()
		})
		return ctx.Err()
	}
	return r
}

// lifeInputs are the dependencies of podLife.
type lifeInputs struct {
	runtime      *containerRuntime
	images       *imageManager
	objects      *objects.Objects
	volumes      *volumes.Manager
	shared       *containermanager.ContainerManager
	node         nodeSource
	pleg         *pleg.PLEG
	runtimeState func() node.RuntimeState
	execLimits   crispec.ExecLimits
}

// newPodLife creates the components that start, sync and terminate pods.
func newPodLife(g *dependencies, in lifeInputs) (l podLife, err error) {
	if l.podNeeds, err = newPodNeeds(g, in.runtime); err != nil {
		return l, err
	}
	s, p := &g.settings, in.pleg
	l.runtime = kuberuntime.New(kuberuntime.Config{
		CRI: in.runtime.cri, Images: in.images.puller, Recorder: g.recorder, Journal: g.journal, Log: g.cfg.Log,
		Folders:   kuberuntime.Folders{Root: g.cfg.RootDir, PodLogs: g.cfg.PodLogsDir, ContainerLogs: g.cfg.ContainerLogsDir},
		Resources: g.resources.Containers, HostIPs: g.hostIPs.Current, Objects: in.objects, Actions: l.actions, Pods: p.Known, HasEnded: g.stores.keepsEnded,
		Cgroups: in.runtime.facts, Allocations: l.allocations, Assignments: in.shared, Metrics: g.out.Metrics,
		MaxRestartPeriod: s.maxRestartPeriod, Garbage: s.garbage,
		Sandboxes: kuberuntime.SandboxConfig{
			Handler: func(p *v1.Pod) (handler, why string) { return in.runtime.handlerFor(p, in.shared.HasDevices) },
			DNS:     s.dns, ResolvConf: s.resolvConf, UserNamespaces: l.users,
			CheckHostPorts: checkHostPorts(g.out.HostPorts),
		},
		Containers: kuberuntime.ContainerConfig{
			Volumes: in.volumes, ExecLimits: in.execLimits, SeccompDefault: s.seccompDefault, WritesLogs: in.runtime.writesLogs,
			Allocatable: func() v1.ResourceList { return allocatable(in.node) },
		},
	})
	l.syncer = podsync.New(podsync.Config{
		Runtime: l.runtime, Remover: l.runtime, Cgroups: in.runtime.facts, Volumes: in.volumes, Objects: in.objects, Status: g.stores.status, Checkpoint: g.stores.statusRecords.Write,
		Allocations: l.allocations, Probes: l.probes, Resources: in.shared,
		Observe: func(ctx context.Context, uid pod.UID) (*pod.Status, error) {
			return p.Observe(ctx, uid, p.BeginReading())
		},
		WithTerminationMessages: l.runtime.WithTerminationMessages,
		Event:                   g.recorder.Event, Journal: g.journal, Log: g.cfg.Log,
		RootDir: g.cfg.RootDir, RuntimeName: in.runtime.facts.runtimeName, HostIPs: g.hostIPs.Current, MaxRestartPeriod: s.maxRestartPeriod,
	})
	l.listed, l.resized = p.Relisted(), pod.NewInbox[pod.UID]()
	l.admit = newAdmission(g, l.podNeeds, l.resized, in)
	l.workers = podworkers.New(podworkers.Config{
		Syncer: g.quarantine.Guard(l.syncer), Observer: p, Admitter: l.admit, Resizer: l.admit, States: g.stores.states, Evicted: g.stores.status.Evicted, Journal: g.journal,
		Unobserved: recordUnobserved(g.recorder), Log: g.cfg.Log, Metrics: g.out.Metrics, Tracer: g.stores.tracer,
	})
	return l, nil
}
