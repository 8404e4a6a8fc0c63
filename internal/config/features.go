package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// gate is a feature gate as of 1.36.
type gate struct {
	on    bool
	stage string
}

const (
	alpha  = "alpha"
	beta   = "beta"
	stable = "GA"
	// deprecated gates restore an earlier behaviour.
	deprecated = "deprecated"
)

// gates are the feature gates that change the behaviour of a kubelet, with their 1.36 defaults
// except where noted. Some generally available or deprecated ones are left out: they are treated as
// unknown.
var gates = map[string]gate{
	"CustomCPUCFSQuotaPeriod":       {true, stable},
	"DynamicResourceAllocation":     {true, stable},
	"ImageVolume":                   {true, stable},
	"InPlacePodVerticalScaling":     {true, stable},
	"KubeletCgroupDriverFromCRI":    {true, stable},
	"KubeletFineGrainedAuthz":       {true, stable},
	"KubeletPSI":                    {true, stable},
	"NodeLogQuery":                  {true, stable},
	"NodeSwap":                      {true, stable},
	"PodObservedGenerationTracking": {true, stable},
	"RecursiveReadOnlyMounts":       {true, stable},
	"SidecarContainers":             {true, stable},
	"SupplementalGroupsPolicy":      {true, stable},
	"UserNamespacesSupport":         {true, stable},

	"AllowParsingUserUIDFromCertAuth":                  {true, beta},
	"AtomicFIFO":                                       {true, beta},
	"ClientsAllowCARotation":                           {true, beta},
	"ClientsAllowTLSCacheGC":                           {true, beta},
	"ComponentFlagz":                                   {true, beta},
	"ComponentStatusz":                                 {true, beta},
	"ContainerCheckpoint":                              {true, beta},
	"ContainerRestartRules":                            {true, beta},
	"ContextualLogging":                                {true, beta},
	"CPUManagerPolicyBetaOptions":                      {true, beta},
	"DRAConsumableCapacity":                            {true, beta},
	"DRADeviceTaints":                                  {true, beta},
	"DRAExtendedResource":                              {true, beta},
	"EnvFiles":                                         {true, beta},
	"ExtendWebSocketsToKubelet":                        {true, beta},
	"GracefulNodeShutdown":                             {true, beta},
	"GracefulNodeShutdownBasedOnPodPriority":           {true, beta},
	"HostnameOverride":                                 {true, beta},
	"InOrderInformersBatchProcess":                     {true, beta},
	"InPlacePodLevelResourcesVerticalScaling":          {true, beta},
	"InPlacePodVerticalScalingInitContainers":          {true, beta},
	"KubeletCrashLoopBackOffMax":                       {true, beta},
	"KubeletEnsureSecretPulledImages":                  {true, beta},
	"KubeletSeparateDiskGC":                            {true, beta},
	"KubeletServiceAccountTokenForCredentialProviders": {true, beta},
	"LoggingBetaOptions":                               {true, beta},
	"NodeDeclaredFeatures":                             {true, beta},
	"PLEGOnDemandRelist":                               {true, beta},
	"PodLevelResources":                                {true, beta},
	"PodReadyToStartContainersCondition":               {true, beta},
	"PreventStaticPodAPIReferences":                    {true, beta},
	"ReloadKubeletClientCAFile":                        {true, beta},
	"ReloadKubeletServerCertificateFile":               {true, beta},
	"ResourceHealthStatus":                             {true, beta},
	"ResourceHealthStatusMessage":                      {true, beta},
	"RestartAllContainersOnContainerExits":             {true, beta},
	"RotateKubeletServerCertificate":                   {true, beta},
	"UnlockWhileProcessingFIFO":                        {true, beta},
	"WatchListClient":                                  {true, beta},

	"ClusterTrustBundleProjection":                   {false, beta},
	"LocalStorageCapacityIsolationFSQuotaMonitoring": {false, beta},
	"PodCertificateRequest":                          {false, beta},
	"SELinuxMount":                                   {false, beta},

	"ClientsAllowCBOR":                         {false, alpha},
	"ClientsPreferCBOR":                        {false, alpha},
	"ContainerStopSignals":                     {false, alpha},
	"CPUManagerPolicyAlphaOptions":             {false, alpha},
	"CRIListStreaming":                         {false, alpha},
	"CSIVolumeHealth":                          {false, alpha},
	"DRANodeAllocatableResources":              {false, alpha},
	"DRAWorkloadResourceClaims":                {false, alpha},
	"EventedPLEG":                              {false, alpha},
	"ImageVolumeWithDigest":                    {false, alpha},
	"InPlacePodVerticalScalingExclusiveCPUs":   {false, alpha},
	"InPlacePodVerticalScalingExclusiveMemory": {false, alpha},
	"KubeletInUserNamespace":                   {false, alpha},
	"LoggingAlphaOptions":                      {false, alpha},
	"MemoryQoS":                                {false, alpha},
	"NativeHistograms":                         {false, alpha},
	"PodAndContainerStatsFromCRI":              {false, alpha},
	"PodLevelResourceManagers":                 {false, alpha},
	"PodLogsQuerySplitStreams":                 {false, alpha},
	"PodsAPI":                                  {false, alpha},
	"QOSReserved":                              {false, alpha},
	"ReduceDefaultCrashLoopBackOffDecay":       {false, alpha},
	"RuntimeClassInImageCriApi":                {false, alpha},
	"TaintTolerationComparisonOperators":       {false, alpha},
	"UserNamespacesHostNetworkSupport":         {false, alpha},

	"KubeletPodResourcesListUseActivePods": {true, deprecated},
}

// unheededGates are the gates that have no effect: the agent always behaves as with their defaults.
var unheededGates = []string{
	"AllowParsingUserUIDFromCertAuth", "AtomicFIFO", "ClientsAllowCARotation", "ClientsAllowCBOR", "ClientsAllowTLSCacheGC",
	"ClientsPreferCBOR", "ContainerRestartRules", "ContextualLogging", "DRAConsumableCapacity",
	"DRADeviceTaints", "DRAExtendedResource", "DRANodeAllocatableResources", "DRAWorkloadResourceClaims", "EnvFiles", "EventedPLEG",
	"HostnameOverride", "InOrderInformersBatchProcess", "InPlacePodVerticalScalingExclusiveCPUs", "InPlacePodVerticalScalingExclusiveMemory",
	"KubeletCrashLoopBackOffMax", "KubeletEnsureSecretPulledImages", "KubeletInUserNamespace", "KubeletSeparateDiskGC",
	"KubeletServiceAccountTokenForCredentialProviders", "LocalStorageCapacityIsolationFSQuotaMonitoring", "LoggingAlphaOptions",
	"LoggingBetaOptions", "NativeHistograms", "PLEGOnDemandRelist", "PodAndContainerStatsFromCRI", "PodLevelResourceManagers",
	"PodReadyToStartContainersCondition", "PodsAPI", "PreventStaticPodAPIReferences",
	"ReduceDefaultCrashLoopBackOffDecay", "ReloadKubeletClientCAFile", "ReloadKubeletServerCertificateFile", "ResourceHealthStatusMessage",
	"TaintTolerationComparisonOperators", "UnlockWhileProcessingFIFO", "UserNamespacesHostNetworkSupport", "WatchListClient",
}

// declaredGates are the gates that only control whether the Node declares a feature, which is
// always available.
var declaredGates = []string{"ExtendWebSocketsToKubelet", "InPlacePodVerticalScalingInitContainers", "RestartAllContainersOnContainerExits"}

// freeGates are the gates whose features are always available, because they affect only those that
// request them.
var freeGates = []string{"CRIListStreaming", "ContainerStopSignals", "ImageVolumeWithDigest", "PodLogsQuerySplitStreams", "RuntimeClassInImageCriApi"}

// allAlpha and allBeta turn on or off every gate of a stage that is not set itself.
const (
	allAlpha = "AllAlpha"
	allBeta  = "AllBeta"
)

var allOfStage = map[string]string{alpha: allAlpha, beta: allBeta}

// FeatureEnabled reports whether a feature gate is on. A gate that does not change the agent's
// behaviour is off.
func (k *Kubelet) FeatureEnabled(name string) bool {
	g, ok := gates[name]
	if !ok || g.stage == stable {
		return ok
	}
	if on, ok := k.FeatureGates[name]; ok {
		return on
	}
	if on, ok := k.FeatureGates[allOfStage[g.stage]]; ok {
		return on
	}
	return g.on
}

// Gate is a feature gate in force. Stage is ALPHA, BETA, DEPRECATED, or "" if generally available.
type Gate struct {
	Name, Stage string
	On          bool
}

// Gates returns the gates that change the agent's behaviour, ordered by name.
func (k *Kubelet) Gates() []Gate {
	var out []Gate
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		stage := strings.ToUpper(gates[name].stage)
		if gates[name].stage == stable {
			stage = ""
		}
		out = append(out, Gate{name, stage, k.FeatureEnabled(name)})
	}
	return out
}

// gateWarnings returns the gates that were set without effect. They are not errors: the components
// of a cluster often share one set of gates.
func gateWarnings(set map[string]bool, origins Origins) []string {
	var warnings []string
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if ignored := gateIgnored(name, set); ignored != "" {
			path := fmt.Sprintf("featureGates[%s]", name)
			warnings = append(warnings, fmt.Sprintf("%s: %s: %s", origins.Of(path), path, ignored))
		}
	}
	return warnings
}

// gateIgnored describes which effects of a gate are missing; "" if none.
func gateIgnored(name string, set map[string]bool) string {
	g, ok := gates[name]
	on := set[name]
	switch {
	case name == allAlpha || name == allBeta:
		var fixed []string
		for _, of := range unheededGates {
			if _, alone := set[of]; !alone && allOfStage[gates[of].stage] == name && gates[of].on != on {
				fixed = append(fixed, of)
			}
		}
		if len(fixed) > 0 {
			return fmt.Sprintf("does not turn these %s, which cannot be changed here: %s", onOff[on], strings.Join(fixed, ", "))
		}
	case ok && g.stage == stable && !on:
		return "the feature is generally available and cannot be turned off (ignored)"
	case slices.Contains(unheededGates, name) && on != g.on:
		return fmt.Sprintf("cannot be set to %t here (ignored)", on)
	case slices.Contains(freeGates, name) && !on:
		return "the feature is there all the same, for those who ask for it"
	case slices.Contains(declaredGates, name) && !on:
		return "the feature is there all the same; only the Node does not declare it"
	case !ok:
		meant := ""
		if near := Nearest(name, slices.Sorted(maps.Keys(gates))); near != "" {
			meant = "; did you mean " + near + "?"
		}
		return fmt.Sprintf("no gate that changes what this agent does%s (ignored)", meant)
	}
	return ""
}

var onOff = map[bool]string{true: "on", false: "off"}
