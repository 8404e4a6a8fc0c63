package podconfig

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"berth/internal/pod"
)

const (
	// maxMessages bounds how many faults of one manifest are named.
	maxMessages = 10
	// maxObjects bounds the documents of a file and the items of a list, far above what a node can run.
	maxObjects = 10_000
)

// workloads are the kinds that hold a pod template.
var workloads = []string{"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob", "ReplicationController", "PodTemplate"}

// decoder turns the bytes of a manifest file into pods that are complete: identified, defaulted and validated.
type decoder struct {
	node  string
	names NameRule
}

// decodeFile returns the pods of the file in order, and what is wrong with it. A refused document does not touch the others.
func (d decoder) decodeFile(path string, content []byte) ([]*v1.Pod, []Problem) {
	out := &decoding{decoder: d, path: path}
	docs := splitDocuments(content)
	if len(docs) == 0 {
		out.refuse(Problem{}, "is empty: a manifest needs apiVersion, kind, metadata and spec")
		return nil, out.problems
	}
	if d.names == MangleNames && len(docs) > 1 {
		out.warn(Problem{}, fmt.Sprintf("has %d documents; only the first one is read", len(docs)))
		docs = docs[:1]
	}
	if len(docs) > maxObjects {
		out.refuse(Problem{}, fmt.Sprintf("has %d documents; at most %d are read", len(docs), maxObjects))
		return nil, out.problems
	}
	for i, doc := range docs {
		at := Problem{Document: i + 1}
		object, warnings, err := doc.parse()
		for _, w := range warnings {
			out.warn(at, w)
		}
		if err != nil {
			out.refuse(at, err.Error())
			continue
		}
		out.object(at, object)
	}
	return out.pods, out.problems
}

// decoding is the work on one file.
type decoding struct {
	decoder
	path     string
	pods     []*v1.Pod
	problems []Problem
}

// refuse adds an error at the place.
func (d *decoding) refuse(at Problem, message string) { d.add(at, SeverityError, message) }

// warn adds a warning at the place.
func (d *decoding) warn(at Problem, message string) { d.add(at, SeverityWarning, message) }

func (d *decoding) add(at Problem, severity Severity, message string) {
	at.Source, at.Path, at.Severity, at.Message = pod.FileSource, d.path, severity, message
	d.problems = append(d.problems, at)
}

// object takes one object of the file: a pod, or in run mode a list of pods.
func (d *decoding) object(at Problem, object map[string]any) {
	at.Namespace, at.Name = d.nameOf(object)
	apiVersion, _ := object["apiVersion"].(string)
	kind, _ := object["kind"].(string)
	switch {
	case kind == "":
		d.refuse(at, `kind: Required value: must be "Pod"`)
	case apiVersion == "":
		d.refuse(at, `apiVersion: Required value: must be "v1"`)
	case kind == "Pod" && apiVersion == "v1":
		d.pod(at, object)
	case kind == "Pod":
		d.refuse(at, fmt.Sprintf("apiVersion: Unsupported value: %q: supported values: \"v1\"", apiVersion))
	case (kind == "List" || kind == "PodList") && apiVersion == "v1":
		if d.names == MangleNames {
			d.refuse(at, fmt.Sprintf("kind %q: a static pod file holds one Pod, not a list", kind))
			return
		}
		d.list(at, kind, object)
	case slices.Contains(workloads, kind):
		d.refuse(at, fmt.Sprintf("kind %q is not a Pod: Berth runs Pods; write the pod template's metadata and spec as "+
			"a manifest with apiVersion: v1, kind: Pod and a metadata.name", kind))
	default:
		d.refuse(at, fmt.Sprintf("kind %q is not a Pod: Berth runs Pods (apiVersion: v1, kind: Pod)", kind))
	}
}

// list takes the items of a List or PodList. The items of a PodList need no kind: it is the list's.
func (d *decoding) list(at Problem, kind string, list map[string]any) {
	items, ok := list["items"].([]any)
	if !ok && list["items"] != nil {
		d.refuse(at, "items: Invalid value: must be a list, got "+jsonKind(list["items"]))
		return
	}
	if len(items) > maxObjects {
		d.refuse(at, fmt.Sprintf("items: Too many: %d: must have at most %d items", len(items), maxObjects))
		return
	}
	for i, item := range items {
		object, ok := item.(map[string]any)
		if !ok {
			d.refuse(at, fmt.Sprintf("items[%d]: Invalid value: must be an object, got %s", i, jsonKind(item)))
			continue
		}
		if kind == "PodList" {
			if object["kind"] == nil {
				object["kind"] = "Pod"
			}
			if object["apiVersion"] == nil {
				object["apiVersion"] = "v1"
			}
		}
		if k := object["kind"]; k == "List" || k == "PodList" {
			d.refuse(at, fmt.Sprintf("items[%d]: kind %q: lists inside lists are not read", i, k))
			continue
		}
		d.object(at, object)
	}
}

// pod takes one pod.
func (d *decoding) pod(at Problem, object map[string]any) {
	// Canonical: members sorted, numbers in one form, nulls gone; it depends on the manifest alone, not on our types.
	canonical, err := json.Marshal(object)
	if err != nil {
		d.refuse(at, "cannot be encoded: "+err.Error())
		return
	}
	p := &v1.Pod{}
	unknown, err := kjson.UnmarshalStrict(canonical, p, kjson.DisallowUnknownFields)
	if err != nil {
		d.refuse(at, explainDecode(object, canonical, err))
		return
	}
	for i, u := range unknown {
		if i == maxMessages {
			d.warn(at, fmt.Sprintf("%d more unknown fields", len(unknown)-i))
			break
		}
		d.warn(at, u.Error()+" is ignored")
	}
	for _, w := range d.identify(p, canonical, d.path) {
		d.warn(at, w)
	}
	setDefaults(p)
	errs := validatePod(p)
	if len(errs) > 0 {
		d.refuse(at, explainErrors(errs))
		return
	}
	if resource := findAPIReference(&p.Spec); resource != "" {
		d.refuse(at, explainReference(d.names, resource))
		return
	}
	d.pods = append(d.pods, p)
}

// nameOf returns the namespace and name that the object's pod has or would have, as far as they can be read.
func (d *decoding) nameOf(object map[string]any) (namespace, name string) {
	meta, _ := object["metadata"].(map[string]any)
	if name, _ = meta["name"].(string); name == "" {
		return "", ""
	}
	if namespace, _ = meta["namespace"].(string); namespace == "" {
		namespace = v1.NamespaceDefault
	}
	return namespace, d.decoder.podName(name)
}

// explainErrors returns the faults as one line.
func explainErrors(errs field.ErrorList) string {
	msgs := make([]string, 0, maxMessages+1)
	for i, e := range errs {
		if i == maxMessages {
			msgs = append(msgs, fmt.Sprintf("and %d more", len(errs)-i))
			break
		}
		msgs = append(msgs, e.Error())
	}
	return strings.Join(msgs, "; ")
}
