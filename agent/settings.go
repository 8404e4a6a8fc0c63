package agent

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"berth/internal/cluster/node"
	"berth/internal/config"
	"berth/internal/host/tuning"
	"berth/internal/pod"
	"berth/internal/record/tracing"
	"berth/internal/resources/cpumanager"
	"berth/internal/resources/memorymanager"
	"berth/internal/runtime/containerlogs"
	"berth/internal/runtime/crispec"
	"berth/internal/runtime/images"
	"berth/internal/runtime/kuberuntime"
	"berth/internal/source/manifest"
	"berth/internal/sync/admission"
	"berth/internal/sync/eviction"
	"berth/internal/sync/nodeshutdown"
)

// mode is the mode of operation.
type mode int

const (
	runMode        mode = iota // berth run: the API server is within the agent
	standaloneMode             // berth kubelet without an API server: it is within the agent, too
	memberMode                 // berth kubelet as a member of a cluster
)

// settings are the values of the KubeletConfiguration that all agents use, and their equivalents in
// run mode.
type settings struct {
	mode mode

	runtimeTimeout   time.Duration // of an ordinary runtime call; 0 is the default
	images           imageSettings
	maxRestartPeriod time.Duration
	garbage          kuberuntime.GarbageLimits
	dns              crispec.DNS
	resolvConf       *string // nil is the host's
	seccompDefault   bool
	idsPerPod        int64 // per pod with a user namespace; 0 is the default
	maxPods          int   // that need user namespaces; 0 is the default
	containerLogs    containerlogs.Limits

	manifests manifestSettings
	// admission holds the configuration of admission.
	admission admission.Facts
	// limitsStorage enforces ephemeral storage limits, except for critical pods.
	limitsStorage bool
	isCritical    func(*v1.Pod) bool
	eviction      evictionSettings
	// shutdown holds the grace periods by pod priority for a node shutdown; empty: shutdowns do not
	// wait for pods.
	shutdown []nodeshutdown.Group
	// tracing.PerMillion is 0 if tracing is off.
	tracing           tracing.Config
	hiddenMetrics     bool          // also metrics that the kubelet hides
	volumePeriod      time.Duration // how long volume usage is cached
	systemCgroups     map[string]string
	streamIdleTimeout time.Duration
	profiling         bool
	changesLogLevel   bool
	// node holds what the agent reports in the Node.
	node node.Settings
	// tuning holds the settings of the kernel and the agent's process. Run mode changes none,
	// because the user has not asked for it.
	tuning tuning.Settings
	// utilChains maintains the iptables chains that other programs expect of a kubelet.
	utilChains bool
}

// imageSettings configures pulls and image garbage collection.
type imageSettings struct {
	parallelPulls int // 0 is unlimited
	// pullQPS of 0 is unlimited, as in run mode: a limit would only delay pods that start together.
	pullQPS, pullBurst        int
	verification              images.Verification
	providers, providerBinDir string // of credential providers; "" for none
	minAge, maxAge            time.Duration
	highPercent, lowPercent   int
	keepsUnrecorded           bool // images that no agent pulled are not collected
}

// manifestSettings configures the manifest sources.
type manifestSettings struct {
	names        manifest.NameRule
	rescan, poll time.Duration // 0 is the default
	header       http.Header
}

// mostNodeImages is the default of nodeStatusMaxImages: how many images the Node lists.
const mostNodeImages = 50

// settingsOf is the only place that depends on whether there is a KubeletConfiguration.
func settingsOf(cfg *Config) settings {
	if cfg.Kubelet == nil {
		return runSettings(cfg)
	}
	s := kubeletSettings(cfg.Kubelet)
	s.maxPods = max(s.maxPods, cfg.MaxPods)
	s.node.Name, s.node.KubeletVersion = cfg.NodeName, cfg.Version
	return s
}

func runSettings(cfg *Config) settings {
	s := settings{
		mode: runMode,
		images: imageSettings{
			parallelPulls: 4, minAge: 2 * time.Minute, highPercent: 85, lowPercent: 80,
			keepsUnrecorded: true, // images that the user imported could not be pulled again
		},
		dns:           crispec.DNS{Domain: "cluster.local"},
		containerLogs: containerlogs.Limits{MaxSize: 10 << 20, MaxFiles: 5, Workers: 1, Interval: 10 * time.Second},
		maxPods:       cfg.MaxPods,
		manifests:     manifestSettings{names: manifest.KeepNames},
		limitsStorage: true,
		// Differs from the kubelet, which never evicts static pods. In run mode all pods are
		// static, and no limit would apply. Here, only a pod's priority protects it.
		isCritical:   pod.HasCriticalPriority,
		volumePeriod: time.Minute,
		profiling:    true, // only for root
		node: node.Settings{
			Name: cfg.NodeName, KubeletVersion: config.KubeletVersion(cfg.Version), MaxPods: cmp.Or(cfg.MaxPods, admission.LocalMaxPods),
			LocalStorageCapacityIsolation: true, MaxImages: mostNodeImages,
		},
	}
	if k := cfg.Run; k != nil {
		size := resource.MustParse(k.ContainerLogMaxSize)
		s.containerLogs.MaxSize, s.containerLogs.MaxFiles = size.Value(), int(*k.ContainerLogMaxFiles)
		s.eviction, s.shutdown = evictionSettingsOf(k), nodeshutdown.Groups(k)
	}
	return s
}

// evictionSettings configures evictionManager.
type evictionSettings struct {
	thresholds []eviction.Threshold
	transition time.Duration
	maxGrace   int64 // seconds
}

// evictionSettingsOf returns the eviction settings of a validated configuration.
func evictionSettingsOf(k *config.KubeletConfiguration) evictionSettings {
	ts, err := eviction.ParseThresholds(k)
	if err != nil {
		panic(fmt.Sprintf("thresholds of a valid configuration: %v", err))
	}
	return evictionSettings{ts, k.EvictionPressureTransitionPeriod.Duration, int64(k.EvictionMaxPodGracePeriod)}
}

func kubeletSettings(k *config.Kubelet) settings {
	size := resource.MustParse(k.ContainerLogMaxSize)
	s := settings{
		mode:             memberMode,
		runtimeTimeout:   k.RuntimeRequestTimeout.Duration,
		images:           imageSettingsOf(k),
		maxRestartPeriod: k.CrashLoopBackOff.MaxContainerRestartPeriod.Duration,
		garbage: kuberuntime.GarbageLimits{
			MinAge: k.MinimumContainerTTL, MaxPerContainer: int(k.MaxDeadContainersPerContainer), MaxTotal: int(k.MaxDeadContainers),
		},
		dns:        crispec.DNS{Servers: k.ClusterDNS, Domain: k.ClusterDomain, InCluster: true},
		resolvConf: k.ResolverConfig, seccompDefault: *k.SeccompDefault,
		idsPerPod: *k.UserNamespaces.IDsPerPod, maxPods: int(k.MaxPods),
		containerLogs: containerlogs.Limits{
			MaxSize: size.Value(), MaxFiles: int(*k.ContainerLogMaxFiles), Workers: int(*k.ContainerLogMaxWorkers),
			Interval: k.ContainerLogMonitorInterval.Duration,
		},
		manifests: manifestSettings{
			names: manifest.MangleNames, rescan: k.FileCheckFrequency.Duration, poll: k.HTTPCheckFrequency.Duration, header: k.StaticPodURLHeader,
		},
		admission: admission.Facts{
			AllowedUnsafeSysctls: k.AllowedUnsafeSysctls, DeclaredFeatures: declaredFeatures(k),
			OwnCPUs: k.CPUManagerPolicy == cpumanager.Static, OwnMemory: k.MemoryManagerPolicy == memorymanager.Static,
			PodLevelResourcesOff: !k.FeatureEnabled("PodLevelResources"),
			PodLevelResizeOff:    !k.FeatureEnabled("InPlacePodLevelResourcesVerticalScaling"),
		},
		limitsStorage: *k.LocalStorageCapacityIsolation, isCritical: pod.IsCritical, eviction: evictionSettingsOf(&k.KubeletConfiguration),
		shutdown:     nodeshutdown.Groups(&k.KubeletConfiguration),
		volumePeriod: k.VolumeStatsAggPeriod.Duration, hiddenMetrics: k.ShowHiddenMetricsForVersion != "", systemCgroups: systemCgroups(k),
		streamIdleTimeout: k.StreamingConnectionIdleTimeout.Duration,
		profiling:         *k.EnableProfilingHandler, changesLogLevel: *k.EnableDebugFlagsHandler,
		node: node.Settings{
			KubeletPort: k.Port, Labels: k.NodeLabels, MaxPods: int(k.MaxPods), PodsPerCore: int(k.PodsPerCore),
			LocalStorageCapacityIsolation: *k.LocalStorageCapacityIsolation, MaxImages: int(*k.NodeStatusMaxImages),
		},
	}
	s.tuning, s.utilChains = tuningOf(k), *k.MakeIPTablesUtilChains
	if k.Standalone() {
		s.mode = standaloneMode
	}
	if t := k.Tracing; t != nil {
		s.tracing = tracing.Config{
			Endpoint: ptr.Deref(t.Endpoint, tracing.DefaultEndpoint), PerMillion: ptr.Deref(t.SamplingRatePerMillion, 0),
		}
	}
	return s
}

func imageSettingsOf(k *config.Kubelet) imageSettings {
	s := imageSettings{
		parallelPulls: 1, pullQPS: int(ptr.Deref(k.RegistryPullQPS, 0)), pullBurst: int(k.RegistryBurst),
		verification: images.Verification{Policy: k.ImagePullCredentialsVerificationPolicy, Allowed: k.PreloadedImagesVerificationAllowlist},
		providers:    k.ImageCredentialProviderConfig, providerBinDir: k.ImageCredentialProviderBinDir,
		minAge: k.ImageMinimumGCAge.Duration, maxAge: k.ImageMaximumGCAge.Duration,
		highPercent: int(*k.ImageGCHighThresholdPercent), lowPercent: int(*k.ImageGCLowThresholdPercent),
	}
	if !*k.SerializeImagePulls {
		s.parallelPulls = int(ptr.Deref(k.MaxParallelImagePulls, 0))
	}
	return s
}

// declaredFeatures returns the enabled features that the control plane must know before it relies
// on this node (KEP-5328); nil if none are declared.
func declaredFeatures(k *config.Kubelet) []string {
	if !k.FeatureEnabled("NodeDeclaredFeatures") {
		return nil
	}
	out := []string{}
	for _, name := range []string{ // sorted
		"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
		"RestartAllContainersOnContainerExits",
	} {
		if k.FeatureEnabled(name) {
			out = append(out, name)
		}
	}
	return out
}
