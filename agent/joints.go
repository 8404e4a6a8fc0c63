package agent

import (
	v1 "k8s.io/api/core/v1"

	"berth/internal/action"
	"berth/internal/admission"
	"berth/internal/certs"
	"berth/internal/cgroups"
	"berth/internal/containerlogs"
	"berth/internal/cri"
	"berth/internal/csi"
	"berth/internal/drain"
	"berth/internal/embedded"
	"berth/internal/events"
	"berth/internal/eviction"
	"berth/internal/images"
	"berth/internal/inotify"
	"berth/internal/journal"
	"berth/internal/kube"
	"berth/internal/kuberuntime"
	"berth/internal/leftovers"
	"berth/internal/metrics"
	"berth/internal/node"
	"berth/internal/objects"
	"berth/internal/oom"
	"berth/internal/pleg"
	"berth/internal/plugins"
	"berth/internal/pod"
	"berth/internal/podconfig"
	"berth/internal/podsync"
	"berth/internal/podworkers"
	"berth/internal/prober"
	"berth/internal/quarantine"
	"berth/internal/server"
	"berth/internal/stats"
	"berth/internal/status"
	"berth/internal/syncloop"
	"berth/internal/tracing"
	"berth/internal/volumes"
)

// Every joint of the agent: who is given to whom as what.
var (
	_ oom.Runtime              = (*cri.Client)(nil)
	_ oom.Recorder             = (*events.Recorder)(nil)
	_ images.Runtime           = (*cri.Client)(nil)
	_ images.Store             = (*cri.Client)(nil)
	_ images.Recorder          = (*events.Recorder)(nil)
	_ kuberuntime.Recorder     = (*events.Recorder)(nil)
	_ podsync.ContainerRuntime = (*kuberuntime.Runtime)(nil)
	_ podsync.Remover          = (*kuberuntime.Runtime)(nil)
	_ ContainerManager         = (*cgroups.Manager)(nil)
	_ podsync.Volumes          = (*volumes.Manager)(nil)
	_ kuberuntime.Volumes      = (*volumes.Manager)(nil)
	_ podObjects               = (*objects.Local)(nil)
	_ podObjects               = (*objects.Objects)(nil)
	_ podsync.Probes           = (*prober.Manager)(nil)
	_ prober.Actions           = (*action.Actions)(nil)
	_ prober.Recorder          = (*events.Recorder)(nil)
	_ tracing.Statuses         = (*status.Manager)(nil)
	_ tracing.Stories          = (*journal.Journal)(nil)
	_ podworkers.PodSyncer     = (*podsync.Syncer)(nil)
	_ drain.Workers            = (*podworkers.PodWorkers)(nil)
	_ drain.Observations       = (*pleg.PLEG)(nil)
	_ drain.Pods               = (*pod.Manager)(nil)
	_ drain.Cgroups            = (*runtimeInfo)(nil)
	_ drain.Runtime            = (*embedded.Runtime)(nil)
	_ leftovers.Cgroups        = (*runtimeInfo)(nil)
	_ leftovers.Statuses       = (*status.Manager)(nil)
	_ leftovers.Pods           = (*pod.Manager)(nil)
	_ quarantine.Recorder      = (*events.Recorder)(nil)
	_ quarantine.Pods          = (*pod.Manager)(nil)
	_ quarantine.Workers       = (*podworkers.PodWorkers)(nil)
	_ podworkers.Observer      = (*pleg.PLEG)(nil)
	_ podworkers.Admitter      = (*admission.Chain)(nil)
	_ podworkers.Resizer       = (*admission.Chain)(nil)
	_ eviction.PodKiller       = killer{}
	_ eviction.Storage         = (*stats.Collector)(nil)
	_ eviction.Lifecycles      = (*pod.States)(nil)
	_ containerlogs.Runtime    = (*cri.Client)(nil)
	_ containerlogs.Writes     = (*inotify.Once)(nil)
	_ syncloop.PodSource       = (*podconfig.PodConfig)(nil)
	_ syncloop.PodWorkers      = (*podworkers.PodWorkers)(nil)
	_ syncloop.Housekeeping    = (*podworkers.PodWorkers)(nil)
	_ plugins.Handler          = (*csi.Drivers)(nil)
	_ volumes.Drivers          = (*csi.Drivers)(nil)
	_ volumes.StorageObjects   = (*objects.Local)(nil)
	_ metrics.Readings         = (*stats.Collector)(nil)
	_ stats.Runtime            = (*cri.Client)(nil)
	_ embedded.Cgroups         = (*runtimeInfo)(nil)
	_ ContainerManager         = (*runtimeInfo)(nil)
	_ ContainerManager         = noCgroups{}
	_ nodeSource               = (*localNode)(nil)

	// Only a member of a cluster has these.
	_ status.API             = (*kube.Client)(nil)
	_ status.MirrorAPI       = (*kube.Client)(nil)
	_ events.API             = (*kube.Client)(nil)
	_ node.Nodes             = (*kube.Client)(nil)
	_ node.Leases            = (*kube.Client)(nil)
	_ node.Recorder          = nodeRecorder{}
	_ node.Runtime           = (*cri.Client)(nil)
	_ csi.Nodes              = (*kube.Client)(nil)
	_ csi.CSINodes           = (*kube.Client)(nil)
	_ volumes.StorageObjects = storageAPI{}
	_ objects.API            = kube.Follower{}
	_ objects.TrustAPI       = kube.Follower{}
	_ objects.CertificateAPI = kube.Follower{}
	_ server.TokenReviewer   = (*kube.Client)(nil)
	_ server.AccessReviewer  = (*kube.Client)(nil)
	_ server.Streaming       = (*cri.Client)(nil)
	_ certs.Signer           = kube.Follower{}
	_ certs.API              = kube.Follower{}
	_ nodeSource             = clusterNode{}
	_ kube.Certificate       = (*certs.Client)(nil)
	_ podconfig.PodWatch     = (*kube.Watch[*v1.Pod])(nil)
)
