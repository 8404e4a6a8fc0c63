package agent

import (
	v1 "k8s.io/api/core/v1"

	"berth/internal/api/server"
	"berth/internal/cluster/certs"
	"berth/internal/cluster/kube"
	"berth/internal/cluster/node"
	"berth/internal/cluster/offlinecache"
	"berth/internal/host/cgroups"
	"berth/internal/host/inotify"
	"berth/internal/host/logind"
	"berth/internal/host/tuning"
	"berth/internal/localapi/nodeview"
	"berth/internal/observe/metrics"
	"berth/internal/observe/oom"
	"berth/internal/observe/pleg"
	"berth/internal/observe/prober"
	"berth/internal/observe/stats"
	"berth/internal/observe/status"
	"berth/internal/pod"
	"berth/internal/record/events"
	"berth/internal/record/journal"
	"berth/internal/record/tracing"
	"berth/internal/resources/containermanager"
	"berth/internal/resources/cpumanager"
	"berth/internal/resources/devicemanager"
	"berth/internal/resources/dra"
	"berth/internal/resources/podresources"
	"berth/internal/resources/topologymanager"
	"berth/internal/runtime/action"
	"berth/internal/runtime/containerlogs"
	"berth/internal/runtime/cri"
	"berth/internal/runtime/embedded"
	"berth/internal/runtime/images"
	"berth/internal/runtime/kuberuntime"
	"berth/internal/source/podconfig"
	"berth/internal/storage/csi"
	"berth/internal/storage/objects"
	"berth/internal/storage/plugins"
	"berth/internal/storage/volumes"
	"berth/internal/sync/admission"
	"berth/internal/sync/drain"
	"berth/internal/sync/eviction"
	"berth/internal/sync/leftovers"
	"berth/internal/sync/nodeshutdown"
	"berth/internal/sync/podsync"
	"berth/internal/sync/podworkers"
	"berth/internal/sync/quarantine"
	"berth/internal/sync/syncloop"
)

// All interface implementations that the wiring relies on.
var (
	_ oom.Runtime              = (*cri.Observer)(nil)
	_ oom.Recorder             = (*events.Recorder)(nil)
	_ images.Runtime           = (*cri.Images)(nil)
	_ images.Store             = (*cri.Images)(nil)
	_ images.Recorder          = (*events.Recorder)(nil)
	_ kuberuntime.Recorder     = (*events.Recorder)(nil)
	_ podsync.ContainerRuntime = (*kuberuntime.Runtime)(nil)
	_ podsync.Remover          = (*kuberuntime.Runtime)(nil)
	_ ContainerManager         = (*cgroups.Manager)(nil)
	_ podsync.Volumes          = (*volumes.Manager)(nil)
	_ kuberuntime.Volumes      = (*volumes.Manager)(nil)
	_ kuberuntime.Objects      = (*objects.Objects)(nil)
	_ podsync.Objects          = (*objects.Objects)(nil)
	_ volumes.Objects          = (*objects.Objects)(nil)
	_ volumes.Certificates     = (*objects.Objects)(nil)
	_ objects.ServiceSource    = (*objects.LocalService)(nil)
	_ podsync.Probes           = (*prober.Manager)(nil)
	_ prober.Actions           = (*action.Actions)(nil)
	_ prober.Recorder          = (*events.Recorder)(nil)
	_ tracing.Statuses         = (*status.Manager)(nil)
	_ tracing.Stories          = (*journal.Journal)(nil)
	_ podsync.Resources        = (*containermanager.ContainerManager)(nil)
	_ kuberuntime.Assignments  = (*containermanager.ContainerManager)(nil)
	_ admission.Assigner       = (*containermanager.ContainerManager)(nil)
	_ cpumanager.Runtime       = (*cri.Client)(nil)
	_ cpumanager.Alignment     = topologymanager.Alignment{}
	_ plugins.Handler          = (*devicemanager.Manager)(nil)
	_ plugins.Handler          = (*dra.Manager)(nil)
	_ dra.API                  = offlinecache.API{}
	_ podresources.Pods        = activePods{}
	_ podresources.Devices     = deviceAnswers{}
	_ podresources.CPUs        = (*cpumanager.CPUManager)(nil)
	_ podresources.Memory      = memoryAnswers{}
	_ podresources.Claims      = claimAnswers{}
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
	_ eviction.Readings        = (*stats.Collector)(nil)
	_ eviction.Lifecycles      = (*pod.States)(nil)
	_ eviction.Events          = (*events.Recorder)(nil)
	_ eviction.Garbage         = garbage{}
	_ eviction.Kernel          = kernel{}
	_ nodeshutdown.Killer      = shutdownKiller{}
	_ nodeshutdown.Lifecycles  = (*pod.States)(nil)
	_ nodeshutdown.Logind      = (*logind.Conn)(nil)
	_ containerlogs.Runtime    = (*cri.Client)(nil)
	_ containerlogs.Writes     = (*inotify.Once)(nil)
	_ syncloop.PodSource       = (*podconfig.PodConfig)(nil)
	_ syncloop.PodWorkers      = (*podworkers.PodWorkers)(nil)
	_ syncloop.Housekeeping    = (*podworkers.PodWorkers)(nil)
	_ plugins.Handler          = (*csi.Drivers)(nil)
	_ volumes.Drivers          = (*csi.Drivers)(nil)
	_ metrics.Readings         = (*stats.Collector)(nil)
	_ tuning.Machine           = tuning.Host{}
	_ tuning.Group             = (*cgroups.Daemons)(nil)
	_ stats.Runtime            = (*cri.Images)(nil)
	_ embedded.Cgroups         = (*runtimeInfo)(nil)
	_ ContainerManager         = (*runtimeInfo)(nil)
	_ ContainerManager         = noCgroups{}
	_ nodeview.Events          = (*events.Store)(nil)

	// Those that use the API server.
	_ status.API              = (*kube.Client)(nil)
	_ status.MirrorAPI        = (*kube.Client)(nil)
	_ events.API              = (*kube.Client)(nil)
	_ node.Nodes              = (*kube.Client)(nil)
	_ node.Leases             = (*kube.Client)(nil)
	_ node.Recorder           = nodeRecorder{}
	_ node.Runtime            = (*cri.Client)(nil)
	_ csi.Nodes               = (*kube.Client)(nil)
	_ csi.CSINodes            = (*kube.Client)(nil)
	_ volumes.StorageObjects  = storageAPI{}
	_ objects.API             = offlinecache.API{}
	_ objects.ClassAPI        = offlinecache.API{}
	_ objects.AccountAPI      = offlinecache.API{}
	_ objects.ReadAPI         = offlinecache.API{}
	_ objects.TrustAPI        = offlinecache.API{}
	_ objects.CertificateAPI  = offlinecache.API{}
	_ volumes.Claims          = offlinecache.API{}
	_ volumes.Recorder        = (*events.Recorder)(nil)
	_ offlinecache.ServerPods = (*kube.Watch[*v1.Pod])(nil)
	_ server.TokenReviewer    = (*kube.Client)(nil)
	_ server.AccessReviewer   = (*kube.Client)(nil)
	_ server.Streaming        = (*cri.Streaming)(nil)
	_ certs.Signer            = (*kube.Client)(nil)
	_ certs.API               = (*kube.Client)(nil)
	_ kube.Certificate        = (*certs.Rotation)(nil)
	_ podconfig.PodWatch      = (*offlinecache.PodWatch)(nil)
)
