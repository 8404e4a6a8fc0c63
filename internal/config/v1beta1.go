package config

import (
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The group, version and kind of every configuration file.
const (
	APIVersion = "kubelet.config.k8s.io/v1beta1"
	Kind       = "KubeletConfiguration"
)

// KubeletConfiguration is the published configuration of the kubelet,
// kubelet.config.k8s.io/v1beta1, field by field; the fields are documented in its reference
// (https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/). After Load every
// pointer is set except those documented here as nil.
//
// It is declared here because the published package (k8s.io/kubelet/config/v1beta1) links
// component-base with its own metrics registry (docs/dependencies.md has the figures). A test
// compares it with the published type.
type KubeletConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	// Static pods.
	StaticPodPath      string              `json:"staticPodPath,omitempty"`
	StaticPodURL       string              `json:"staticPodURL,omitempty"`
	StaticPodURLHeader map[string][]string `json:"staticPodURLHeader,omitempty"`
	SyncFrequency      metav1.Duration     `json:"syncFrequency,omitempty"`
	FileCheckFrequency metav1.Duration     `json:"fileCheckFrequency,omitempty"`
	HTTPCheckFrequency metav1.Duration     `json:"httpCheckFrequency,omitempty"`
	RunOnce            bool                `json:"runOnce,omitempty"`

	// The HTTP servers. 0 turns off ReadOnlyPort and HealthzPort.
	EnableServer              *bool                 `json:"enableServer,omitempty"`
	Address                   string                `json:"address,omitempty"`
	Port                      int32                 `json:"port,omitempty"`
	ReadOnlyPort              int32                 `json:"readOnlyPort,omitempty"`
	HealthzPort               *int32                `json:"healthzPort,omitempty"`
	HealthzBindAddress        string                `json:"healthzBindAddress,omitempty"`
	TLSCertFile               string                `json:"tlsCertFile,omitempty"`
	TLSPrivateKeyFile         string                `json:"tlsPrivateKeyFile,omitempty"`
	TLSCipherSuites           []string              `json:"tlsCipherSuites,omitempty"`
	TLSCurvePreferences       []int32               `json:"tlsCurvePreferences,omitempty"`
	TLSMinVersion             string                `json:"tlsMinVersion,omitempty"`
	RotateCertificates        bool                  `json:"rotateCertificates,omitempty"`
	ServerTLSBootstrap        bool                  `json:"serverTLSBootstrap,omitempty"`
	Authentication            KubeletAuthentication `json:"authentication"`
	Authorization             KubeletAuthorization  `json:"authorization"`
	EnableDebuggingHandlers   *bool                 `json:"enableDebuggingHandlers,omitempty"`
	EnableContentionProfiling bool                  `json:"enableContentionProfiling,omitempty"`
	EnableProfilingHandler    *bool                 `json:"enableProfilingHandler,omitempty"`
	EnableDebugFlagsHandler   *bool                 `json:"enableDebugFlagsHandler,omitempty"`
	EnableSystemLogHandler    *bool                 `json:"enableSystemLogHandler,omitempty"`
	EnableSystemLogQuery      *bool                 `json:"enableSystemLogQuery,omitempty"`
	// StreamingConnectionIdleTimeout closes idle exec, attach and port-forward streams.
	StreamingConnectionIdleTimeout metav1.Duration `json:"streamingConnectionIdleTimeout,omitempty"`

	// The API server, the Node object and its lease. EventRecordQPS 0 is unlimited.
	ContentType               string          `json:"contentType,omitempty"`
	KubeAPIQPS                *int32          `json:"kubeAPIQPS,omitempty"`
	KubeAPIBurst              int32           `json:"kubeAPIBurst,omitempty"`
	EventRecordQPS            *int32          `json:"eventRecordQPS,omitempty"`
	EventBurst                int32           `json:"eventBurst,omitempty"`
	RegisterNode              *bool           `json:"registerNode,omitempty"`
	RegisterWithTaints        []v1.Taint      `json:"registerWithTaints,omitempty"`
	ProviderID                string          `json:"providerID,omitempty"`
	NodeStatusUpdateFrequency metav1.Duration `json:"nodeStatusUpdateFrequency,omitempty"`
	NodeStatusReportFrequency metav1.Duration `json:"nodeStatusReportFrequency,omitempty"`
	NodeLeaseDurationSeconds  int32           `json:"nodeLeaseDurationSeconds,omitempty"`
	// NodeStatusMaxImages -1 is unlimited.
	NodeStatusMaxImages                       *int32                          `json:"nodeStatusMaxImages,omitempty"`
	ConfigMapAndSecretChangeDetectionStrategy ResourceChangeDetectionStrategy `json:"configMapAndSecretChangeDetectionStrategy,omitempty"`

	// The container runtime. After Load ImageServiceEndpoint is set; ContainerRuntimeEndpoint may
	// be EmbeddedRuntime.
	ContainerRuntimeEndpoint string          `json:"containerRuntimeEndpoint"`
	ImageServiceEndpoint     string          `json:"imageServiceEndpoint,omitempty"`
	RuntimeRequestTimeout    metav1.Duration `json:"runtimeRequestTimeout,omitempty"`

	// Images. RegistryPullQPS 0 is unlimited; MaxParallelImagePulls stays nil for no limit.
	RegistryPullQPS                        *int32                                 `json:"registryPullQPS,omitempty"`
	RegistryBurst                          int32                                  `json:"registryBurst,omitempty"`
	SerializeImagePulls                    *bool                                  `json:"serializeImagePulls,omitempty"`
	MaxParallelImagePulls                  *int32                                 `json:"maxParallelImagePulls,omitempty"`
	ImagePullCredentialsVerificationPolicy ImagePullCredentialsVerificationPolicy `json:"imagePullCredentialsVerificationPolicy,omitempty"`
	PreloadedImagesVerificationAllowlist   []string                               `json:"preloadedImagesVerificationAllowlist,omitempty"`
	ImageMinimumGCAge                      metav1.Duration                        `json:"imageMinimumGCAge,omitempty"`
	ImageMaximumGCAge                      metav1.Duration                        `json:"imageMaximumGCAge,omitempty"`
	ImageGCHighThresholdPercent            *int32                                 `json:"imageGCHighThresholdPercent,omitempty"`
	ImageGCLowThresholdPercent             *int32                                 `json:"imageGCLowThresholdPercent,omitempty"`

	// Pods. PodPidsLimit -1 is the node's own limit; ResolverConfig may be "" for none.
	// SingleProcessOOMKill stays nil for the default of the host's cgroup version: true with v1,
	// false with v2.
	MaxPods                int32                  `json:"maxPods,omitempty"`
	PodsPerCore            int32                  `json:"podsPerCore,omitempty"`
	PodCIDR                string                 `json:"podCIDR,omitempty"`
	PodPidsLimit           *int64                 `json:"podPidsLimit,omitempty"`
	ResolverConfig         *string                `json:"resolvConf,omitempty"`
	ClusterDomain          string                 `json:"clusterDomain,omitempty"`
	ClusterDNS             []string               `json:"clusterDNS,omitempty"`
	HairpinMode            string                 `json:"hairpinMode,omitempty"`
	AllowedUnsafeSysctls   []string               `json:"allowedUnsafeSysctls,omitempty"`
	SeccompDefault         *bool                  `json:"seccompDefault,omitempty"`
	SingleProcessOOMKill   *bool                  `json:"singleProcessOOMKill,omitempty"`
	CrashLoopBackOff       CrashLoopBackOffConfig `json:"crashLoopBackOff,omitempty"`
	UserNamespaces         *UserNamespaces        `json:"userNamespaces,omitempty"`
	MakeIPTablesUtilChains *bool                  `json:"makeIPTablesUtilChains,omitempty"`
	// IPTablesMasqueradeBit and IPTablesDropBit have no effect.
	IPTablesMasqueradeBit *int32 `json:"iptablesMasqueradeBit,omitempty"`
	IPTablesDropBit       *int32 `json:"iptablesDropBit,omitempty"`

	// Container logs. ContainerLogMaxSize is a quantity; a negative one turns off rotation.
	PodLogsDir                  string           `json:"podLogsDir,omitempty"`
	ContainerLogMaxSize         string           `json:"containerLogMaxSize,omitempty"`
	ContainerLogMaxFiles        *int32           `json:"containerLogMaxFiles,omitempty"`
	ContainerLogMaxWorkers      *int32           `json:"containerLogMaxWorkers,omitempty"`
	ContainerLogMonitorInterval *metav1.Duration `json:"containerLogMonitorInterval,omitempty"`

	// Volumes. A negative VolumeStatsAggPeriod turns off volume metrics.
	VolumePluginDir               string          `json:"volumePluginDir,omitempty"`
	VolumeStatsAggPeriod          metav1.Duration `json:"volumeStatsAggPeriod,omitempty"`
	EnableControllerAttachDetach  *bool           `json:"enableControllerAttachDetach,omitempty"`
	LocalStorageCapacityIsolation *bool           `json:"localStorageCapacityIsolation,omitempty"`

	// Cgroups and reserved resources (maps of resource name to quantity).
	CgroupRoot              string                  `json:"cgroupRoot,omitempty"`
	CgroupsPerQOS           *bool                   `json:"cgroupsPerQOS,omitempty"`
	CgroupDriver            string                  `json:"cgroupDriver,omitempty"`
	KubeletCgroups          string                  `json:"kubeletCgroups,omitempty"`
	SystemCgroups           string                  `json:"systemCgroups,omitempty"`
	SystemReserved          map[string]string       `json:"systemReserved,omitempty"`
	KubeReserved            map[string]string       `json:"kubeReserved,omitempty"`
	SystemReservedCgroup    string                  `json:"systemReservedCgroup,omitempty"`
	KubeReservedCgroup      string                  `json:"kubeReservedCgroup,omitempty"`
	ReservedSystemCPUs      string                  `json:"reservedSystemCPUs,omitempty"`
	ReservedMemory          []MemoryReservation     `json:"reservedMemory,omitempty"`
	EnforceNodeAllocatable  []string                `json:"enforceNodeAllocatable,omitempty"`
	QOSReserved             map[string]string       `json:"qosReserved,omitempty"`
	CPUCFSQuota             *bool                   `json:"cpuCFSQuota,omitempty"`
	CPUCFSQuotaPeriod       *metav1.Duration        `json:"cpuCFSQuotaPeriod,omitempty"`
	MemorySwap              MemorySwapConfiguration `json:"memorySwap,omitempty"`
	MemoryThrottlingFactor  *float64                `json:"memoryThrottlingFactor,omitempty"`
	MemoryReservationPolicy MemoryReservationPolicy `json:"memoryReservationPolicy,omitempty"`

	// CPU, memory and topology.
	CPUManagerPolicy             string            `json:"cpuManagerPolicy,omitempty"`
	CPUManagerPolicyOptions      map[string]string `json:"cpuManagerPolicyOptions,omitempty"`
	CPUManagerReconcilePeriod    metav1.Duration   `json:"cpuManagerReconcilePeriod,omitempty"`
	MemoryManagerPolicy          string            `json:"memoryManagerPolicy,omitempty"`
	TopologyManagerPolicy        string            `json:"topologyManagerPolicy,omitempty"`
	TopologyManagerScope         string            `json:"topologyManagerScope,omitempty"`
	TopologyManagerPolicyOptions map[string]string `json:"topologyManagerPolicyOptions,omitempty"`

	// Eviction: maps of signal to quantity, percentage or duration. EvictionMaxPodGracePeriod is in
	// seconds.
	EvictionHard                     map[string]string `json:"evictionHard,omitempty"`
	EvictionSoft                     map[string]string `json:"evictionSoft,omitempty"`
	EvictionSoftGracePeriod          map[string]string `json:"evictionSoftGracePeriod,omitempty"`
	EvictionMinimumReclaim           map[string]string `json:"evictionMinimumReclaim,omitempty"`
	EvictionPressureTransitionPeriod metav1.Duration   `json:"evictionPressureTransitionPeriod,omitempty"`
	EvictionMaxPodGracePeriod        int32             `json:"evictionMaxPodGracePeriod,omitempty"`
	MergeDefaultEvictionSettings     *bool             `json:"mergeDefaultEvictionSettings,omitempty"`
	KernelMemcgNotification          bool              `json:"kernelMemcgNotification,omitempty"`

	// The host and the agent's own process.
	ProtectKernelDefaults bool   `json:"protectKernelDefaults,omitempty"`
	FailSwapOn            *bool  `json:"failSwapOn,omitempty"`
	FailCgroupV1          *bool  `json:"failCgroupV1,omitempty"`
	OOMScoreAdj           *int32 `json:"oomScoreAdj,omitempty"`
	MaxOpenFiles          int64  `json:"maxOpenFiles,omitempty"`

	// Node shutdown.
	ShutdownGracePeriod              metav1.Duration                    `json:"shutdownGracePeriod,omitempty"`
	ShutdownGracePeriodCriticalPods  metav1.Duration                    `json:"shutdownGracePeriodCriticalPods,omitempty"`
	ShutdownGracePeriodByPodPriority []ShutdownGracePeriodByPodPriority `json:"shutdownGracePeriodByPodPriority,omitempty"`

	// FeatureGates are the gates that were set; use Kubelet.FeatureEnabled.
	FeatureGates                map[string]bool       `json:"featureGates,omitempty"`
	Logging                     LoggingConfiguration  `json:"logging,omitempty"`
	ShowHiddenMetricsForVersion string                `json:"showHiddenMetricsForVersion,omitempty"`
	Tracing                     *TracingConfiguration `json:"tracing,omitempty"` // stays nil for none
}

// KubeletAuthentication configures the authentication of requests to the HTTPS server.
type KubeletAuthentication struct {
	X509      KubeletX509Authentication      `json:"x509"`
	Webhook   KubeletWebhookAuthentication   `json:"webhook"`
	Anonymous KubeletAnonymousAuthentication `json:"anonymous"`
}

// KubeletX509Authentication accepts client certificates signed by an authority in the bundle; "" is
// none.
type KubeletX509Authentication struct {
	ClientCAFile string `json:"clientCAFile,omitempty"`
}

// KubeletWebhookAuthentication makes the API server review bearer tokens.
type KubeletWebhookAuthentication struct {
	Enabled  *bool           `json:"enabled,omitempty"`
	CacheTTL metav1.Duration `json:"cacheTTL,omitempty"`
}

// KubeletAnonymousAuthentication accepts requests without credentials as system:anonymous.
type KubeletAnonymousAuthentication struct {
	Enabled *bool `json:"enabled,omitempty"`
}

// KubeletAuthorizationMode selects how authenticated users are authorized.
type KubeletAuthorizationMode string

// The authorization modes.
const (
	KubeletAuthorizationModeAlwaysAllow KubeletAuthorizationMode = "AlwaysAllow"
	KubeletAuthorizationModeWebhook     KubeletAuthorizationMode = "Webhook" // the API server, by SubjectAccessReview
)

// KubeletAuthorization configures the authorization of requests to the HTTPS server.
type KubeletAuthorization struct {
	Mode    KubeletAuthorizationMode    `json:"mode,omitempty"`
	Webhook KubeletWebhookAuthorization `json:"webhook"`
}

// KubeletWebhookAuthorization configures how long the API server's decisions are cached.
type KubeletWebhookAuthorization struct {
	CacheAuthorizedTTL   metav1.Duration `json:"cacheAuthorizedTTL,omitempty"`
	CacheUnauthorizedTTL metav1.Duration `json:"cacheUnauthorizedTTL,omitempty"`
}

// ResourceChangeDetectionStrategy selects how changes of ConfigMaps and Secrets are detected.
type ResourceChangeDetectionStrategy string

// The strategies of change detection.
const (
	GetChangeDetectionStrategy      ResourceChangeDetectionStrategy = "Get"
	TTLCacheChangeDetectionStrategy ResourceChangeDetectionStrategy = "Cache"
	WatchChangeDetectionStrategy    ResourceChangeDetectionStrategy = "Watch"
)

// ImagePullCredentialsVerificationPolicy selects the images on the node for which a pod must still
// prove that it may pull them.
type ImagePullCredentialsVerificationPolicy string

// The verification policies.
const (
	NeverVerify                  ImagePullCredentialsVerificationPolicy = "NeverVerify"
	NeverVerifyPreloadedImages   ImagePullCredentialsVerificationPolicy = "NeverVerifyPreloadedImages"
	NeverVerifyAllowlistedImages ImagePullCredentialsVerificationPolicy = "NeverVerifyAllowlistedImages"
	AlwaysVerify                 ImagePullCredentialsVerificationPolicy = "AlwaysVerify"
)

// MemoryReservationPolicy selects whether memory requests are protected by cgroup v2.
type MemoryReservationPolicy string

// The memory reservation policies.
const (
	NoneMemoryReservationPolicy              MemoryReservationPolicy = "None"
	TieredReservationMemoryReservationPolicy MemoryReservationPolicy = "TieredReservation"
)

// MemoryReservation is the reserved memory of one NUMA node.
type MemoryReservation struct {
	NumaNode int32           `json:"numaNode"`
	Limits   v1.ResourceList `json:"limits"`
}

// ShutdownGracePeriodByPodPriority is the grace period at node shutdown of pods of this priority
// and above, up to the next entry.
type ShutdownGracePeriodByPodPriority struct {
	Priority                   int32 `json:"priority"`
	ShutdownGracePeriodSeconds int64 `json:"shutdownGracePeriodSeconds"`
}

// MemorySwapConfiguration has SwapBehavior "", NoSwap or LimitedSwap; "" is NoSwap.
type MemorySwapConfiguration struct {
	SwapBehavior string `json:"swapBehavior,omitempty"`
}

// CrashLoopBackOffConfig configures the maximum back-off of a crashing container.
type CrashLoopBackOffConfig struct {
	MaxContainerRestartPeriod *metav1.Duration `json:"maxContainerRestartPeriod,omitempty"`
}

// UserNamespaces configures the number of user and group IDs of a pod with a user namespace.
type UserNamespaces struct {
	IDsPerPod *int64 `json:"idsPerPod,omitempty"`
}

// TracingConfiguration configures the endpoint and sampling rate of spans.
type TracingConfiguration struct {
	Endpoint               *string `json:"endpoint,omitempty"`
	SamplingRatePerMillion *int32  `json:"samplingRatePerMillion,omitempty"`
}

// LoggingConfiguration configures the log.
type LoggingConfiguration struct {
	Format         string         `json:"format,omitempty"`
	FlushFrequency TimeOrDuration `json:"flushFrequency"`
	Verbosity      uint32         `json:"verbosity"`
	VModule        []VModuleItem  `json:"vmodule,omitempty"`
	Options        FormatOptions  `json:"options,omitempty"`
}

// VModuleItem is the verbosity of source files that match a pattern.
type VModuleItem struct {
	FilePattern string `json:"filePattern"`
	Verbosity   uint32 `json:"verbosity"`
}

// FormatOptions are options of each log format.
type FormatOptions struct {
	Text OutputRoutingOptions `json:"text,omitempty"`
	JSON OutputRoutingOptions `json:"json,omitempty"`
}

// OutputRoutingOptions splits messages between standard output and standard error.
type OutputRoutingOptions struct {
	SplitStream    bool              `json:"splitStream,omitempty"`
	InfoBufferSize resource.Quantity `json:"infoBufferSize,omitempty"`
}

// TimeOrDuration is a duration that is written as text ("5s") or as a number of nanoseconds.
type TimeOrDuration struct {
	time.Duration
}

// UnmarshalJSON parses either form.
func (d *TimeOrDuration) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var text metav1.Duration
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
		d.Duration = text.Duration
		return nil
	}
	var nanoseconds int64
	if err := json.Unmarshal(b, &nanoseconds); err != nil {
		return fmt.Errorf("%s is neither a duration nor a number of nanoseconds", b)
	}
	d.Duration = time.Duration(nanoseconds)
	return nil
}

// MarshalJSON writes the duration as text.
func (d TimeOrDuration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }
