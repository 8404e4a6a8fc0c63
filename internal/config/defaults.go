package config

import (
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// defaultEvictionHard applies if a --config file does not set evictionHard.
var defaultEvictionHard = map[string]string{
	"memory.available":   "100Mi",
	"nodefs.available":   "10%",
	"nodefs.inodesFree":  "5%",
	"imagefs.available":  "15%",
	"imagefs.inodesFree": "5%",
}

// setDefaults sets the fields that the --config file and its drop-ins leave unset, with the
// defaults of v1beta1.
func setDefaults(c *KubeletConfiguration) {
	set(&c.Authentication.Anonymous.Enabled, ptr.To(false))
	set(&c.Authentication.Webhook.Enabled, ptr.To(true))
	set(&c.Authorization.Mode, KubeletAuthorizationModeWebhook)
	if c.EvictionHard == nil {
		c.EvictionHard = map[string]string{}
		maps.Copy(c.EvictionHard, defaultEvictionHard)
	} else if ptr.Deref(c.MergeDefaultEvictionSettings, false) {
		merged := maps.Clone(defaultEvictionHard)
		maps.Copy(merged, c.EvictionHard)
		c.EvictionHard = merged
	}
	setCommonDefaults(c)
}

// setLegacyDefaults sets unset fields without a --config file: the kubelet's flags are older than
// its configuration file and have less strict defaults.
func setLegacyDefaults(c *KubeletConfiguration) {
	set(&c.Authentication.Anonymous.Enabled, ptr.To(true))
	set(&c.Authentication.Webhook.Enabled, ptr.To(false))
	set(&c.Authorization.Mode, KubeletAuthorizationModeAlwaysAllow)
	set(&c.ReadOnlyPort, 10255)
	setCommonDefaults(c)
}

func setCommonDefaults(c *KubeletConfiguration) {
	c.APIVersion, c.Kind = APIVersion, Kind
	setDuration(&c.SyncFrequency, time.Minute)
	setDuration(&c.FileCheckFrequency, 20*time.Second)
	setDuration(&c.HTTPCheckFrequency, 20*time.Second)
	setServerDefaults(c)
	setClientDefaults(c)
	setRuntimeDefaults(c)
	setPodDefaults(c)
	setNodeDefaults(c)
}

// setServerDefaults sets the defaults of the agent's servers.
func setServerDefaults(c *KubeletConfiguration) {
	set(&c.EnableServer, ptr.To(true))
	set(&c.Address, "0.0.0.0")
	set(&c.Port, 10250)
	set(&c.HealthzPort, ptr.To[int32](10248))
	set(&c.HealthzBindAddress, "127.0.0.1")
	setDuration(&c.Authentication.Webhook.CacheTTL, 2*time.Minute)
	setDuration(&c.Authorization.Webhook.CacheAuthorizedTTL, 5*time.Minute)
	setDuration(&c.Authorization.Webhook.CacheUnauthorizedTTL, 30*time.Second)
	set(&c.EnableDebuggingHandlers, ptr.To(true))
	set(&c.EnableProfilingHandler, ptr.To(true))
	set(&c.EnableDebugFlagsHandler, ptr.To(true))
	set(&c.EnableSystemLogHandler, ptr.To(true))
	set(&c.EnableSystemLogQuery, ptr.To(false))
	setDuration(&c.StreamingConnectionIdleTimeout, 4*time.Hour)
}

// setClientDefaults sets the defaults of the API server's client.
func setClientDefaults(c *KubeletConfiguration) {
	set(&c.ContentType, "application/vnd.kubernetes.protobuf")
	set(&c.KubeAPIQPS, ptr.To[int32](50))
	set(&c.KubeAPIBurst, 100)
	set(&c.EventRecordQPS, ptr.To[int32](50))
	set(&c.EventBurst, 100)
	set(&c.RegisterNode, ptr.To(true))
	// Before the default of nodeStatusUpdateFrequency: if only that is set, it applies to both.
	if c.NodeStatusUpdateFrequency.Duration != 0 {
		set(&c.NodeStatusReportFrequency, c.NodeStatusUpdateFrequency)
	}
	setDuration(&c.NodeStatusReportFrequency, 5*time.Minute)
	setDuration(&c.NodeStatusUpdateFrequency, 10*time.Second)
	set(&c.NodeLeaseDurationSeconds, 40)
	set(&c.NodeStatusMaxImages, ptr.To[int32](50))
	set(&c.ConfigMapAndSecretChangeDetectionStrategy, WatchChangeDetectionStrategy)
}

// setRuntimeDefaults sets the defaults of the container runtime and of images.
func setRuntimeDefaults(c *KubeletConfiguration) {
	set(&c.ContainerRuntimeEndpoint, "unix:///run/containerd/containerd.sock")
	setDuration(&c.RuntimeRequestTimeout, 2*time.Minute)

	set(&c.RegistryPullQPS, ptr.To[int32](5))
	set(&c.RegistryBurst, 10)
	set(&c.SerializeImagePulls, ptr.To(ptr.Deref(c.MaxParallelImagePulls, 1) <= 1))
	set(&c.ImagePullCredentialsVerificationPolicy, NeverVerifyPreloadedImages)
	setDuration(&c.ImageMinimumGCAge, 2*time.Minute)
	set(&c.ImageGCHighThresholdPercent, ptr.To[int32](85))
	set(&c.ImageGCLowThresholdPercent, ptr.To[int32](80))
}

// setPodDefaults sets the defaults that apply to every pod.
func setPodDefaults(c *KubeletConfiguration) {
	set(&c.MaxPods, 110)
	set(&c.PodPidsLimit, ptr.To[int64](-1))
	set(&c.ResolverConfig, ptr.To("/etc/resolv.conf"))
	set(&c.HairpinMode, "promiscuous-bridge")
	set(&c.SeccompDefault, ptr.To(false))
	set(&c.CrashLoopBackOff.MaxContainerRestartPeriod, &metav1.Duration{Duration: 5 * time.Minute})
	set(&c.UserNamespaces, &UserNamespaces{})
	set(&c.UserNamespaces.IDsPerPod, ptr.To[int64](65536))
	set(&c.MakeIPTablesUtilChains, ptr.To(true))
	set(&c.IPTablesMasqueradeBit, ptr.To[int32](14))
	set(&c.IPTablesDropBit, ptr.To[int32](15))

	set(&c.PodLogsDir, "/var/log/pods")
	set(&c.ContainerLogMaxSize, "10Mi")
	set(&c.ContainerLogMaxFiles, ptr.To[int32](5))
	set(&c.ContainerLogMaxWorkers, ptr.To[int32](1))
	set(&c.ContainerLogMonitorInterval, &metav1.Duration{Duration: 10 * time.Second})

	set(&c.VolumePluginDir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")
	setDuration(&c.VolumeStatsAggPeriod, time.Minute)
	set(&c.EnableControllerAttachDetach, ptr.To(true))
	set(&c.LocalStorageCapacityIsolation, ptr.To(true))
}

// setNodeDefaults sets the defaults of the node's cgroups.
func setNodeDefaults(c *KubeletConfiguration) {
	set(&c.CgroupsPerQOS, ptr.To(true))
	set(&c.CgroupDriver, "cgroupfs")
	if c.EnforceNodeAllocatable == nil {
		c.EnforceNodeAllocatable = []string{"pods"}
	}
	set(&c.CPUCFSQuota, ptr.To(true))
	set(&c.CPUCFSQuotaPeriod, &metav1.Duration{Duration: defaultCFSQuotaPeriod})
	set(&c.MemoryThrottlingFactor, ptr.To(0.9))
	set(&c.MemoryReservationPolicy, NoneMemoryReservationPolicy)

	set(&c.CPUManagerPolicy, "none")
	setDuration(&c.CPUManagerReconcilePeriod, 10*time.Second)
	set(&c.MemoryManagerPolicy, "None")
	set(&c.TopologyManagerPolicy, "none")
	set(&c.TopologyManagerScope, "container")

	setDuration(&c.EvictionPressureTransitionPeriod, 5*time.Minute)
	set(&c.MergeDefaultEvictionSettings, ptr.To(false))

	set(&c.FailSwapOn, ptr.To(true))
	set(&c.FailCgroupV1, ptr.To(true))
	set(&c.OOMScoreAdj, ptr.To[int32](-999))
	set(&c.MaxOpenFiles, 1000000)

	set(&c.Logging.Format, "text")
	set(&c.Logging.FlushFrequency, TimeOrDuration{5 * time.Second})
}

// defaultCFSQuotaPeriod is the kernel's default.
const defaultCFSQuotaPeriod = 100 * time.Millisecond

// set sets an unset field to its default.
func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func setDuration(field *metav1.Duration, value time.Duration) {
	set(field, metav1.Duration{Duration: value})
}
