package defaults

import (
	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
)

// SetPodDefaults sets the defaults that the API server sets on create, without admission plugins.
// It must be called once for each pod.
func SetPodDefaults(p *v1.Pod) {
	spec := &p.Spec
	setDefault(&spec.RestartPolicy, v1.RestartPolicyAlways)
	setDefault(&spec.DNSPolicy, v1.DNSClusterFirst)
	setDefault(&spec.SchedulerName, v1.DefaultSchedulerName)
	setDefaultPtr(&spec.TerminationGracePeriodSeconds, int64(v1.DefaultTerminationGracePeriodSeconds))
	if *spec.TerminationGracePeriodSeconds < 0 {
		// Pods from before negative values were forbidden have them; the API server stores the
		// shortest grace period for them.
		*spec.TerminationGracePeriodSeconds = 1
	}
	setDefaultPtr(&spec.EnableServiceLinks, v1.DefaultEnableServiceLinks)
	setDefaultPtr(&spec.SecurityContext, v1.PodSecurityContext{})
	// serviceAccount is the deprecated alias of serviceAccountName; the API server keeps them
	// equal.
	setDefault(&spec.ServiceAccountName, spec.DeprecatedServiceAccount)
	spec.DeprecatedServiceAccount = spec.ServiceAccountName

	roundUp(spec.Overhead)
	for i := range spec.InitContainers {
		setContainerDefaults(spec, &spec.InitContainers[i])
	}
	for i := range spec.Containers {
		setContainerDefaults(spec, &spec.Containers[i])
	}
	setPodResourceDefaults(p)
	for i := range spec.Volumes {
		setVolumeDefaults(&spec.Volumes[i].VolumeSource)
	}
	setAppArmorDefaults(p)
}

// setDefault sets *field if it is zero.
func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// setDefaultPtr sets *field if it is nil.
func setDefaultPtr[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

func setContainerDefaults(spec *v1.PodSpec, c *v1.Container) {
	setDefault(&c.ImagePullPolicy, computePullPolicy(c.Image))
	setDefault(&c.TerminationMessagePath, v1.TerminationMessagePathDefault)
	setDefault(&c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	for i := range c.Ports {
		setDefault(&c.Ports[i].Protocol, v1.ProtocolTCP)
		// PodSpec.hostNetwork: unspecified host ports match the container port.
		if spec.HostNetwork {
			setDefault(&c.Ports[i].HostPort, c.Ports[i].ContainerPort)
		}
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			setFieldRefDefaults(from.FieldRef)
			if from.FileKeyRef != nil {
				setDefaultPtr(&from.FileKeyRef.Optional, false) // FileKeySelector.optional
			}
		}
	}
	for _, p := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		setProbeDefaults(p)
	}
	if c.Lifecycle != nil {
		for _, h := range []*v1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				setHTTPGetDefaults(h.HTTPGet)
			}
		}
	}
	setResourceDefaults(&c.Resources)
}

// computePullPolicy returns Always for the tag latest, also if it is implied by neither tag nor
// digest; IfNotPresent for any other tag or digest (kubernetes.io/docs/concepts/containers/images,
// "Default image pull policy"), and for an invalid image name.
func computePullPolicy(image string) v1.PullPolicy {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return v1.PullIfNotPresent
	}
	if tagged, ok := reference.TagNameOnly(named).(reference.Tagged); ok && tagged.Tag() == "latest" {
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}

func setProbeDefaults(p *v1.Probe) {
	if p == nil {
		return
	}
	setDefault(&p.TimeoutSeconds, 1)
	setDefault(&p.PeriodSeconds, 10)
	setDefault(&p.SuccessThreshold, 1)
	setDefault(&p.FailureThreshold, 3)
	setHTTPGetDefaults(p.HTTPGet)
	if p.GRPC != nil {
		setDefaultPtr(&p.GRPC.Service, "")
	}
}

func setHTTPGetDefaults(h *v1.HTTPGetAction) {
	if h == nil {
		return
	}
	// kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes, "HTTP probes".
	setDefault(&h.Path, "/")
	setDefault(&h.Scheme, v1.URISchemeHTTP)
}

func setFieldRefDefaults(f *v1.ObjectFieldSelector) {
	if f != nil {
		setDefault(&f.APIVersion, "v1")
	}
}
