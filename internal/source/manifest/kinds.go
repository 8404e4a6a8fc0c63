package manifest

import (
	"fmt"
	"strings"
)

// templatePaths are the kinds from which controllers of a cluster create pods, with the path of the
// pod template.
var templatePaths = map[string]string{
	"Deployment":            "spec.template",
	"ReplicaSet":            "spec.template",
	"StatefulSet":           "spec.template",
	"DaemonSet":             "spec.template",
	"ReplicationController": "spec.template",
	"Job":                   "spec.template",
	"CronJob":               "spec.jobTemplate.spec.template",
	"PodTemplate":           "template",
}

// ignoredKinds are well-known kinds without which the pods of a file still run, each with the
// reason and an alternative. They cause warnings, since manifests for clusters have them beside
// pods.
var ignoredKinds = map[string]string{
	"Service":                 "there are no service addresses; reach the pod at its IP, or publish a port of it with hostPort",
	"Endpoints":               "there are no services; reach the pod at its IP, or publish a port of it with hostPort",
	"EndpointSlice":           "there are no services; reach the pod at its IP, or publish a port of it with hostPort",
	"Ingress":                 "publish a port of the pod with hostPort, or run a proxy as a pod with hostNetwork: true",
	"Gateway":                 "publish a port of the pod with hostPort, or run a proxy as a pod with hostNetwork: true",
	"HTTPRoute":               "publish a port of the pod with hostPort, or run a proxy as a pod with hostNetwork: true",
	"ServiceAccount":          "pods have no API server to call",
	"Role":                    "pods have no API server to call",
	"RoleBinding":             "pods have no API server to call",
	"ClusterRole":             "pods have no API server to call",
	"ClusterRoleBinding":      "pods have no API server to call",
	"StorageClass":            "nothing provides volumes; write a PersistentVolume for each claim",
	"HorizontalPodAutoscaler": "write one Pod for each replica",
	"PodDisruptionBudget":     "pods end when their manifests go",
}

// refusedKinds are well-known kinds that cannot be ignored safely, each with an alternative.
var refusedKinds = map[string]string{
	"NetworkPolicy":                    "nothing would enforce it; use the firewall of this machine",
	"ResourceQuota":                    "nothing would enforce it; set resources.limits in the pods",
	"LimitRange":                       "nothing would enforce it; set resources.requests and resources.limits in the pods",
	"PriorityClass":                    "set spec.priority in the pods",
	"MutatingWebhookConfiguration":     "there is no API server to call the webhook; write the Pod as the webhook would make it",
	"ValidatingWebhookConfiguration":   "there is no API server to call the webhook",
	"ValidatingAdmissionPolicy":        "there is no API server to apply the policy",
	"ValidatingAdmissionPolicyBinding": "there is no API server to apply the policy",
	"CustomResourceDefinition":         "there is no API server to serve the resource",
	"Kustomization":                    "build it first: Berth reads what `kubectl kustomize` prints",
}

// ofKubernetes reports whether the version belongs to Kubernetes itself: other groups have
// different kinds of the same names, such as the Service of serving.knative.dev. Kubernetes' groups
// have a name without a domain, or one below k8s.io.
func ofKubernetes(apiVersion string) bool {
	group, _, ok := strings.Cut(apiVersion, "/")
	return !ok || !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// other handles an object of an unsupported kind: it reports why, and an alternative.
func (d *decoding) other(at Problem, apiVersion, kind string, object map[string]any) {
	known := kind
	if !ofKubernetes(apiVersion) {
		known = ""
	}
	template, isWorkload := templatePaths[known]
	ignored, isIgnored := ignoredKinds[known]
	refused, isRefused := refusedKinds[known]
	switch {
	case isWorkload:
		d.refuse(at, fmt.Sprintf("kind %q is not a Pod: Berth runs Pods; write %s", kind, explainTemplate(object, template)))
	case d.decoder.Names == MangleNames:
		d.refuse(at, fmt.Sprintf("kind %q is not a Pod: Berth runs Pods (apiVersion: v1, kind: Pod)", kind))
	case known == "Namespace":
		// Nothing to do: in run mode, namespaces are only parts of names.
	case isIgnored:
		d.warn(at, fmt.Sprintf("kind %q is ignored outside of a cluster: %s", kind, ignored))
	case isRefused:
		d.refuse(at, fmt.Sprintf("kind %q needs a cluster: %s", kind, refused))
	default:
		d.refuse(at, fmt.Sprintf("kind %q is not known here: Berth runs Pods, and takes the ConfigMaps, Secrets, "+
			"PersistentVolumeClaims, PersistentVolumes (of apiVersion: v1), RuntimeClasses (of apiVersion: node.k8s.io/v1), "+
			"CSIDrivers (of apiVersion: storage.k8s.io/v1) and ClusterTrustBundles (of apiVersion: certificates.k8s.io/v1beta1) that they refer to", kind))
	}
}

// explainTemplate describes how to turn a workload's pod template into a manifest: its containers,
// and what else the workload would do.
func explainTemplate(workload map[string]any, path string) string {
	out := path
	if names := containerNames(workload, path); len(names) > 0 {
		word := "container"
		if len(names) > 1 {
			word = "containers"
		}
		list := strings.Join(names[:min(len(names), 3)], ", ")
		if len(names) > 3 {
			list += fmt.Sprintf(" and %d more", len(names)-3)
		}
		out += fmt.Sprintf(" (%s %s)", word, list)
	}
	out += " as a manifest with apiVersion: v1, kind: Pod and a metadata.name"
	if n, ok := member(workload, "spec.replicas").(int64); ok && n > 1 {
		out += fmt.Sprintf(", once for each of the %d replicas, under different names", n)
	}
	if schedule, ok := member(workload, "spec.schedule").(string); ok {
		out += fmt.Sprintf("; it starts at once: put the file there when it is due (%s)", schedule)
	}
	return out
}

// containerNames returns the readable names of the template's containers.
func containerNames(workload map[string]any, path string) []string {
	containers, _ := member(workload, path+".spec.containers").([]any)
	var names []string
	for _, c := range containers {
		if c, ok := c.(map[string]any); ok {
			if name, ok := c["name"].(string); ok {
				names = append(names, name)
			}
		}
	}
	return names
}

func member(object map[string]any, path string) any {
	var v any = object
	for name := range strings.SplitSeq(path, ".") {
		o, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = o[name]
	}
	return v
}
