package cri

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// Labels and annotations of sandboxes and containers. They are the kubelet's, so that Berth can
// take over a node and tools that read them (crictl, log shippers) keep working.
const (
	PodNameLabel       = "io.kubernetes.pod.name"
	PodNamespaceLabel  = "io.kubernetes.pod.namespace"
	PodUIDLabel        = "io.kubernetes.pod.uid"
	ContainerNameLabel = "io.kubernetes.container.name"

	HashAnnotation                     = "io.kubernetes.container.hash"
	RestartCountAnnotation             = "io.kubernetes.container.restartCount"
	TerminationMessagePathAnnotation   = "io.kubernetes.container.terminationMessagePath"
	TerminationMessagePolicyAnnotation = "io.kubernetes.container.terminationMessagePolicy"
	DeletionGracePeriodAnnotation      = "io.kubernetes.pod.deletionGracePeriod"
	TerminationGracePeriodAnnotation   = "io.kubernetes.pod.terminationGracePeriod"
	PreStopHandlerAnnotation           = "io.kubernetes.container.preStopHandler"
	PortsAnnotation                    = "io.kubernetes.container.ports"

	// LogPathAnnotation is the path of a container's log if the shim writes it instead of the
	// runtime.
	LogPathAnnotation = "berth.dev/log-path"
)

// SandboxLabels returns the labels of a pod's sandbox: the pod's own and the three that identify
// it.
func SandboxLabels(p *v1.Pod) map[string]string {
	l := make(map[string]string, len(p.Labels)+3)
	maps.Copy(l, p.Labels)
	l[PodNameLabel], l[PodNamespaceLabel], l[PodUIDLabel] = p.Name, p.Namespace, string(p.UID)
	return l
}

func ContainerLabels(p *v1.Pod, c *v1.Container) map[string]string {
	return map[string]string{
		PodNameLabel: p.Name, PodNamespaceLabel: p.Namespace, PodUIDLabel: string(p.UID), ContainerNameLabel: c.Name,
	}
}

// ContainerAnnotations returns the annotations by which a container can be compared and stopped
// without its pod's spec.
func ContainerAnnotations(p *v1.Pod, c *v1.Container, hash string, restartCount uint32) (map[string]string, error) {
	a := map[string]string{
		HashAnnotation:                     hash,
		RestartCountAnnotation:             strconv.FormatUint(uint64(restartCount), 10),
		TerminationMessagePathAnnotation:   c.TerminationMessagePath,
		TerminationMessagePolicyAnnotation: string(c.TerminationMessagePolicy),
	}
	if s := p.DeletionGracePeriodSeconds; s != nil {
		a[DeletionGracePeriodAnnotation] = strconv.FormatInt(*s, 10)
	}
	if s := p.Spec.TerminationGracePeriodSeconds; s != nil {
		a[TerminationGracePeriodAnnotation] = strconv.FormatInt(*s, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		b, err := json.Marshal(c.Lifecycle.PreStop)
		if err != nil {
			return nil, err
		}
		a[PreStopHandlerAnnotation] = string(b)
	}
	if len(c.Ports) > 0 {
		b, err := json.Marshal(c.Ports)
		if err != nil {
			return nil, err
		}
		a[PortsAnnotation] = string(b)
	}
	return a, nil
}

// TerminationGrace returns the grace period in seconds in the container's annotations, for stopping
// it without its pod's spec.
func TerminationGrace(cs *pod.ContainerStatus) (int64, bool) {
	for _, key := range []string{DeletionGracePeriodAnnotation, TerminationGracePeriodAnnotation} {
		if s, err := strconv.ParseInt(cs.Annotations[key], 10, 64); err == nil {
			return s, true
		}
	}
	return 0, false
}

// PreStopHandler returns the preStop hook in the container's annotations, nil for none.
func PreStopHandler(cs *pod.ContainerStatus) (*v1.LifecycleHandler, error) {
	return decode[*v1.LifecycleHandler](cs, PreStopHandlerAnnotation)
}

// Ports returns the ports in the container's annotations.
func Ports(cs *pod.ContainerStatus) ([]v1.ContainerPort, error) {
	return decode[[]v1.ContainerPort](cs, PortsAnnotation)
}

// decode parses a JSON annotation; without the annotation it returns the zero value.
func decode[T any](cs *pod.ContainerStatus, key string) (T, error) {
	var out T
	if v := cs.Annotations[key]; v != "" {
		if err := json.Unmarshal([]byte(v), &out); err != nil {
			return out, fmt.Errorf("container %s: annotation %s: %w", cs.ID, key, err)
		}
	}
	return out, nil
}
