package podconfig

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// The defaults are those of the API reference (k8s.io/api/core/v1, the comment of each field); where the documentation says more than
// the comment, its page is named.

// setDefaults fills in what the API server would have filled in on create, admission plugins aside. It must see each pod once.
func setDefaults(p *v1.Pod) {
	spec := &p.Spec
	setDefault(&spec.RestartPolicy, v1.RestartPolicyAlways)
	setDefault(&spec.DNSPolicy, v1.DNSClusterFirst)
	setDefault(&spec.SchedulerName, v1.DefaultSchedulerName)
	setDefaultPtr(&spec.TerminationGracePeriodSeconds, int64(v1.DefaultTerminationGracePeriodSeconds))
	setDefaultPtr(&spec.EnableServiceLinks, v1.DefaultEnableServiceLinks)
	setDefaultPtr(&spec.SecurityContext, v1.PodSecurityContext{})
	// serviceAccount is the deprecated alias of serviceAccountName; the API server keeps them equal.
	setDefault(&spec.ServiceAccountName, spec.DeprecatedServiceAccount)
	spec.DeprecatedServiceAccount = spec.ServiceAccountName

	roundUp(spec.Overhead)
	for i := range spec.InitContainers {
		setContainerDefaults(&spec.InitContainers[i], spec.HostNetwork)
	}
	for i := range spec.Containers {
		setContainerDefaults(&spec.Containers[i], spec.HostNetwork)
	}
	setPodResourceDefaults(spec)
	for i := range spec.Volumes {
		setVolumeDefaults(&spec.Volumes[i].VolumeSource)
	}
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

func setContainerDefaults(c *v1.Container, hostNetwork bool) {
	setDefault(&c.ImagePullPolicy, computePullPolicy(c.Image))
	setDefault(&c.TerminationMessagePath, v1.TerminationMessagePathDefault)
	setDefault(&c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	for i := range c.Ports {
		setDefault(&c.Ports[i].Protocol, v1.ProtocolTCP)
		if hostNetwork { // PodSpec.hostNetwork: unspecified host ports match the container port
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
	setResizeDefaults(c)
}

// computePullPolicy returns Always for the tag latest or none, IfNotPresent for any other tag and for a digest
// (kubernetes.io/docs/concepts/containers/images, "Default image pull policy").
func computePullPolicy(image string) v1.PullPolicy {
	if strings.Contains(image, "@") {
		return v1.PullIfNotPresent
	}
	name := image[strings.LastIndex(image, "/")+1:] // a colon before the last slash is a registry's port
	_, tag, tagged := strings.Cut(name, ":")
	if !tagged || tag == "latest" {
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
	setDefault(&h.Path, "/") // kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes, "HTTP probes"
	setDefault(&h.Scheme, v1.URISchemeHTTP)
}

func setFieldRefDefaults(f *v1.ObjectFieldSelector) {
	if f != nil {
		setDefault(&f.APIVersion, "v1")
	}
}

// setResourceDefaults makes requests of limits (ResourceRequirements.requests).
func setResourceDefaults(r *v1.ResourceRequirements) {
	roundUp(r.Limits)
	roundUp(r.Requests)
	for name, limit := range r.Limits {
		if _, ok := r.Requests[name]; ok {
			continue
		}
		if r.Requests == nil {
			r.Requests = v1.ResourceList{}
		}
		r.Requests[name] = limit.DeepCopy()
	}
}

// roundUp rounds quantities up to thousandths, the finest unit of the API
// (kubernetes.io/docs/concepts/configuration/manage-resources-containers, "CPU resource units").
func roundUp(list v1.ResourceList) {
	for name, q := range list {
		if q.RoundUp(resource.Milli) {
			continue
		}
		list[name] = q
	}
}

// resizable are the resources of a container that can be changed in place (ContainerResizePolicy.resourceName).
var resizable = []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory}

// setResizeDefaults gives each resizable resource that the container has the policy NotRequired (ContainerResizePolicy.restartPolicy;
// kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources, "Container resize policies").
func setResizeDefaults(c *v1.Container) {
	for _, name := range resizable {
		_, requested := c.Resources.Requests[name]
		_, limited := c.Resources.Limits[name]
		if !requested && !limited || hasResizePolicy(c, name) {
			continue
		}
		c.ResizePolicy = append(c.ResizePolicy, v1.ContainerResizePolicy{ResourceName: name, RestartPolicy: v1.NotRequired})
	}
}

func hasResizePolicy(c *v1.Container, name v1.ResourceName) bool {
	for _, p := range c.ResizePolicy {
		if p.ResourceName == name {
			return true
		}
	}
	return false
}

// setPodResourceDefaults makes pod-level requests of pod-level limits: what the containers request together if one of them requests
// the resource, else the limit (KEP-2837, "Pod-level resources: defaulting").
func setPodResourceDefaults(spec *v1.PodSpec) {
	r := spec.Resources
	if r == nil {
		return
	}
	roundUp(r.Limits)
	roundUp(r.Requests)
	for name, limit := range r.Limits {
		if _, ok := r.Requests[name]; ok {
			continue
		}
		request := limit.DeepCopy()
		if sum, ok := computeRequest(spec, name); ok && !strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			request = sum
		}
		if r.Requests == nil {
			r.Requests = v1.ResourceList{}
		}
		r.Requests[name] = request
	}
}

// computeRequest returns what the containers of the pod request of the resource together, and whether one of them does: all main and
// sidecar containers, or the largest init container with the sidecars started before it
// (kubernetes.io/docs/concepts/workloads/pods/sidecar-containers, "Resource sharing within containers").
func computeRequest(spec *v1.PodSpec, name v1.ResourceName) (resource.Quantity, bool) {
	var running, peak resource.Quantity
	requested := false
	for _, c := range spec.InitContainers {
		q, ok := c.Resources.Requests[name]
		requested = requested || ok
		starting := running.DeepCopy()
		starting.Add(q)
		if ptr.Deref(c.RestartPolicy, "") == v1.ContainerRestartPolicyAlways {
			running = starting.DeepCopy()
		}
		if starting.Cmp(peak) > 0 {
			peak = starting
		}
	}
	for _, c := range spec.Containers {
		q, ok := c.Resources.Requests[name]
		requested = requested || ok
		running.Add(q)
	}
	if running.Cmp(peak) > 0 {
		peak = running
	}
	return peak, requested
}
