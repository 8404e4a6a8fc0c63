package manifest

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"io"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// NameRule sets how a manifest's name becomes the pod's name, and which rules for manifests apply.
type NameRule int

const (
	// KeepNames is the rule of `berth run`: names as given, all documents of a file, lists too.
	KeepNames NameRule = iota
	// MangleNames is the rule of the kubelet: "<name>-<node>", the first document of a file only,
	// no lists.
	MangleNames
)

func (r NameRule) String() string { return [...]string{"KeepNames", "MangleNames"}[r] }

// identify makes the decoded pod this node's static pod: UID, name, namespace, node, annotations,
// toleration, phase. The UID is derived from canonical. It returns warnings about removed content.
func (d Decoder) identify(p *v1.Pod, canonical []byte, from Origin) (warnings []string) {
	if p.Name != "" {
		p.Name = d.podName(p.Name)
	}
	if p.Namespace == "" {
		p.Namespace = v1.NamespaceDefault
	}
	if p.UID == "" {
		p.UID = computeUID(canonical, d.Node, from)
		if d.Running != nil {
			p.UID = d.Running(p, from, p.UID)
		}
	}
	p.Spec.NodeName = d.Node
	p.ManagedFields = nil // unused, and large in manifests exported from a cluster

	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	if _, ok := p.Annotations[pod.ConfigMirrorAnnotation]; ok {
		// A pod with it counts as a mirror pod and would never run.
		delete(p.Annotations, pod.ConfigMirrorAnnotation)
		warnings = append(warnings, fmt.Sprintf("annotation %s is ignored: the manifest is a static pod, not a mirror pod",
			pod.ConfigMirrorAnnotation))
	}
	p.Annotations[pod.ConfigHashAnnotation] = string(p.UID)
	p.Annotations[pod.ConfigSourceAnnotation] = string(from.Source)
	p.Annotations[pod.ManifestAnnotation] = from.Path

	if from.Source == pod.FileSource {
		tolerateNoExecute(&p.Spec)
	}
	p.Status = v1.PodStatus{Phase: v1.PodPending}
	return warnings
}

// podName returns the pod's name for the name in the manifest.
func (d Decoder) podName(name string) string {
	if d.Names == KeepNames {
		return name
	}
	return name + "-" + strings.ToLower(d.Node)
}

// computeUID returns the UID of a static pod: 32 lower-case hex digits that depend on all fields of
// the manifest, the node and the path or URL, and on nothing else. Differs from the kubelet, which
// hashes the defaulted pod: there a release that adds a default restarts every static pod.
// Decoder.Running preserves the UIDs of pods that a kubelet started.
func computeUID(canonical []byte, node string, from Origin) pod.UID {
	h := fnv.New128a()
	h.Write(canonical) // a hash.Hash never returns an error
	io.WriteString(h, "host:"+node)
	if from.Source == pod.HTTPSource {
		io.WriteString(h, "url:"+from.Path)
	} else {
		io.WriteString(h, "file:"+from.Path)
	}
	return pod.UID(hex.EncodeToString(h.Sum(nil)))
}

// tolerateNoExecute adds the toleration of all NoExecute taints that static pods from files have:
// no taint may evict them.
func tolerateNoExecute(spec *v1.PodSpec) {
	all := v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}
	for i := range spec.Tolerations {
		if spec.Tolerations[i].MatchToleration(&all) {
			spec.Tolerations[i] = all // without tolerationSeconds
			return
		}
	}
	spec.Tolerations = append(spec.Tolerations, all)
}
