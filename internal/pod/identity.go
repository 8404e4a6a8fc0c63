package pod

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// UID identifies one incarnation of a pod. A static pod's UID is the hash of its manifest.
type UID = types.UID

// FullName is "<name>_<namespace>", the identity under which static pods replace each other.
type FullName string

// SandboxID is the runtime's identifier of a pod sandbox.
type SandboxID string

// ContainerID is the runtime's identifier of a container, without the "<runtime>://" prefix of the
// API.
type ContainerID string

// Source is the origin of a pod; it is the value of the annotation kubernetes.io/config.source.
type Source string

// The kubelet's sources of pods (Kubernetes documentation, "Create static Pods"), and the embedding
// program.
const (
	FileSource    Source = "file"
	HTTPSource    Source = "http"
	APISource     Source = "api"
	ProgramSource Source = "program"
)

// Annotations that the agent sets on pods; they are visible through /pods and on mirror pods.
const (
	ConfigSourceAnnotation = "kubernetes.io/config.source"
	ConfigSeenAnnotation   = "kubernetes.io/config.seen"
	ConfigHashAnnotation   = "kubernetes.io/config.hash"
	ConfigMirrorAnnotation = "kubernetes.io/config.mirror"
	// ManifestAnnotation is the file or URL that a static pod was read from.
	ManifestAnnotation = "berth.dev/manifest"
)

// systemCriticalPriority is the lowest priority of a system-critical pod
// (scheduling.SystemCriticalPriority).
const systemCriticalPriority = 2_000_000_000

// FullNameOf returns the pod's full name.
func FullNameOf(p *v1.Pod) FullName { return FullName(p.Name + "_" + p.Namespace) }

// SourceOf returns the pod's source, or "" if it has none.
func SourceOf(p *v1.Pod) Source { return Source(p.Annotations[ConfigSourceAnnotation]) }

// IsStatic reports whether the pod's source is not the API server.
func IsStatic(p *v1.Pod) bool {
	s, ok := p.Annotations[ConfigSourceAnnotation]
	return ok && Source(s) != APISource
}

// IsMirror reports whether the pod is the mirror pod of a static pod.
func IsMirror(p *v1.Pod) bool {
	_, ok := p.Annotations[ConfigMirrorAnnotation]
	return ok
}

// IsCritical reports whether the pod is a static or mirror pod, or has a system-critical priority.
func IsCritical(p *v1.Pod) bool { return IsStatic(p) || IsMirror(p) || HasCriticalPriority(p) }

// HasCriticalPriority reports whether the pod has a system-critical priority.
func HasCriticalPriority(p *v1.Pod) bool {
	return p.Spec.Priority != nil && *p.Spec.Priority >= systemCriticalPriority
}

// Describe returns "<name>_<namespace>(<uid>)", the form that events and log lines use.
func Describe(p *v1.Pod) string { return fmt.Sprintf("%s_%s(%s)", p.Name, p.Namespace, p.UID) }
