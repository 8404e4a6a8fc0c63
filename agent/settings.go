package agent

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"berth/internal/config"
	"berth/internal/containerlogs"
	"berth/internal/crispec"
	"berth/internal/images"
	"berth/internal/kuberuntime"
)

// settings are those of the KubeletConfiguration that components of every agent have, and what stands for them in run mode.
type settings struct {
	runtimeTimeout     time.Duration // of an ordinary call of the runtime; 0 is the default
	parallelImagePulls int           // 0 is without a bound
	imagePullQPS       int           // 0 is without a bound, which is how it is in run mode: pods that start together would only wait for nothing
	imagePullBurst     int
	imageVerification  images.Verification
	imageGC            imageGC
	maxRestartPeriod   time.Duration
	garbage            kuberuntime.GarbageLimits
	dns                crispec.DNS
	resolvConf         *string // nil is the host's
	seccompDefault     bool
	idsPerPod          int64 // of a pod with a user namespace; 0 is the default
	maxPods            int   // that the ids must suffice for; 0 is the default
	containerLogs      containerlogs.Limits
}

func settingsOf(k *config.Kubelet) settings {
	if k == nil {
		return settings{
			parallelImagePulls: 4, imageGC: imageGC{minAge: 2 * time.Minute, high: 85, low: 80}, dns: crispec.DNS{Domain: "cluster.local"},
			containerLogs: containerlogs.Limits{MaxSize: 10 << 20, MaxFiles: 5, Workers: 1, Interval: 10 * time.Second},
		}
	}
	s := settings{
		runtimeTimeout:     k.RuntimeRequestTimeout.Duration,
		parallelImagePulls: 1, maxRestartPeriod: k.CrashLoopBackOff.MaxContainerRestartPeriod.Duration,
		garbage: kuberuntime.GarbageLimits{
			MinAge: k.MinimumContainerTTL, MaxPerContainer: int(k.MaxDeadContainersPerContainer), MaxTotal: int(k.MaxDeadContainers),
		},
	}
	s.imagePullQPS, s.imagePullBurst = int(ptr.Deref(k.RegistryPullQPS, 0)), int(k.RegistryBurst)
	s.imageVerification = images.Verification{Policy: k.ImagePullCredentialsVerificationPolicy, Allowed: k.PreloadedImagesVerificationAllowlist}
	s.imageGC = imageGC{
		minAge: k.ImageMinimumGCAge.Duration, maxAge: k.ImageMaximumGCAge.Duration,
		high: int(*k.ImageGCHighThresholdPercent), low: int(*k.ImageGCLowThresholdPercent),
	}
	s.dns = crispec.DNS{Servers: k.ClusterDNS, Domain: k.ClusterDomain, InCluster: true}
	s.resolvConf, s.seccompDefault = k.ResolverConfig, *k.SeccompDefault
	s.idsPerPod, s.maxPods = *k.UserNamespaces.IDsPerPod, int(k.MaxPods)
	size := resource.MustParse(k.ContainerLogMaxSize)
	s.containerLogs = containerlogs.Limits{
		MaxSize: size.Value(), MaxFiles: int(*k.ContainerLogMaxFiles), Workers: int(*k.ContainerLogMaxWorkers), Interval: k.ContainerLogMonitorInterval.Duration,
	}
	if !*k.SerializeImagePulls {
		s.parallelImagePulls = int(ptr.Deref(k.MaxParallelImagePulls, 0))
	}
	return s
}
