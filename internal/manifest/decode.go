package podconfig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// decoder turns the bytes of a manifest into objects that are complete: identified, defaulted and validated.
type decoder struct {
	node  string
	names NameRule
}

// origin is where a manifest was read from.
type origin struct {
	source pod.Source
	path   string // the file, or the URL without credentials
}

// accepted is one object that a manifest defines.
type accepted struct {
	kind          string
	metav1.Object // a *v1.Pod for kind Pod; never changed
	origin
	// document is the object as its manifest has it, in canonical JSON: decoded again it gives the same object with the same identity.
	document json.RawMessage
}

// key tells the objects of a manifest apart.
func (a accepted) key() string {
	return a.kind + " " + a.Object.GetNamespace() + "/" + a.Object.GetName()
}

// decoded is what a manifest stands for, in its order, and what is wrong with it.
type decoded struct {
	objects  []accepted
	problems []Problem
}

// equal reports whether both stand for the same, by identity, and have the same problems.
func (d decoded) equal(o decoded) bool {
	same := func(a, b accepted) bool { return a.Object == b.Object }
	return slices.EqualFunc(d.objects, o.objects, same) && slices.Equal(d.problems, o.problems)
}

// refusal returns the index of the first problem for which something of the manifest is refused, -1 without one.
func (d decoded) refusal() int {
	return slices.IndexFunc(d.problems, func(p Problem) bool { return p.Severity == SeverityError })
}

// decode decodes one manifest. A refused document does not touch the others.
func (d decoder) decode(from origin, content []byte) decoded {
	out := &decoding{decoder: d, origin: from}
	if bytes.HasPrefix(content, []byte("\xff\xfe")) || bytes.HasPrefix(content, []byte("\xfe\xff")) {
		out.refuse(Problem{}, "is UTF-16 text: save it as UTF-8")
		return out.decoded
	}
	docs := splitDocuments(content)
	if len(docs) == 0 {
		out.refuse(Problem{}, "is empty: a manifest needs apiVersion, kind, metadata and spec")
		return out.decoded
	}
	if d.names == MangleNames && len(docs) > 1 {
		out.warn(Problem{}, fmt.Sprintf("has %d documents; only the first one is read", len(docs)))
		docs = docs[:1]
	}
	if len(docs) > maxObjects {
		out.refuse(Problem{}, fmt.Sprintf("has %d documents; at most %d are read", len(docs), maxObjects))
		return out.decoded
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
	return out.decoded
}

// restore decodes the documents of objects that were accepted before.
func (d decoder) restore(from origin, documents []json.RawMessage) ([]accepted, error) {
	out := &decoding{decoder: d, origin: from}
	for i, text := range documents {
		var object map[string]any
		if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &object); err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		out.object(Problem{Document: i + 1}, object)
	}
	if bad := out.refusal(); bad >= 0 {
		return nil, fmt.Errorf("document %d is refused now: %s", out.problems[bad].Document, out.problems[bad].Message)
	}
	return out.objects, nil
}

// decoding is the work on one manifest.
type decoding struct {
	decoder
	origin
	decoded
}

// refuse adds an error at the place.
func (d *decoding) refuse(at Problem, message string) { d.add(at, SeverityError, message) }

// warn adds a warning at the place.
func (d *decoding) warn(at Problem, message string) { d.add(at, SeverityWarning, message) }

func (d *decoding) add(at Problem, severity Severity, message string) {
	at.Source, at.Path, at.Severity, at.Message = d.source, d.path, severity, message
	d.problems = append(d.problems, at)
}

// object takes one object of the manifest: a pod, in run mode also a local object, or, in run mode and at URLs, a list.
func (d *decoding) object(at Problem, object map[string]any) {
	at.Namespace, at.Name = d.nameOf(object)
	kind, fault := textMember(object, "kind", "Pod")
	if fault != "" {
		d.refuse(at, fault)
		return
	}
	apiVersion, fault := textMember(object, "apiVersion", "v1")
	if fault != "" {
		d.refuse(at, fault)
		return
	}
	isList := d.isList(kind)
	switch {
	case isList && d.names == MangleNames && d.source == pod.FileSource:
		d.refuse(at, fmt.Sprintf("kind %q: a static pod file holds one Pod, not a list", kind))
	case (isList || d.accepts(kind)) && apiVersion != versionOf(strings.TrimSuffix(kind, "List")):
		d.refuse(at, fmt.Sprintf("apiVersion: Unsupported value: %q: supported values: %q", apiVersion, versionOf(strings.TrimSuffix(kind, "List"))))
	case isList:
		d.list(at, kind, object)
	case kind == "Pod":
		d.pod(at, object)
	case d.accepts(kind):
		d.local(at, kind, object)
	default:
		d.other(at, apiVersion, kind, object)
	}
}

// textMember returns the text that each object has at the top, or what is wrong with it; example is what is mostly meant.
func textMember(object map[string]any, name, example string) (text, fault string) {
	v := object[name]
	if text, ok := v.(string); ok && text != "" {
		return text, ""
	}
	if v == nil || v == "" {
		return "", fmt.Sprintf("%s: Required value: must be %q", name, example)
	}
	return "", fmt.Sprintf("%s: Invalid type: must be a string such as %q, got %s", name, example, jsonKind(v))
}

// accepts reports whether manifests may define objects of the kind.
func (d *decoding) accepts(kind string) bool {
	return kind == "Pod" || d.names == KeepNames && newLocalObject(kind) != nil
}

// isList reports whether objects of the kind are lists of what manifests may define.
func (d *decoding) isList(kind string) bool {
	of, ok := strings.CutSuffix(kind, "List")
	return ok && (of == "" || d.accepts(of))
}

// list takes the items of a List, or of a list of one kind, such as PodList; the items of such a list need no kind: it is the list's.
func (d *decoding) list(at Problem, kind string, list map[string]any) {
	if _, ok := list["items"]; !ok {
		// An empty list ends every pod of its file or URL: it must say so itself, not leave it out.
		d.refuse(at, "items: Required value: a list without pods has items: []")
		return
	}
	items, ok := list["items"].([]any)
	if !ok {
		d.refuse(at, "items: Invalid value: must be a list, got "+jsonKind(list["items"]))
		return
	}
	if len(items) > maxObjects {
		d.refuse(at, fmt.Sprintf("items: Too many: %d: must have at most %d items", len(items), maxObjects))
		return
	}
	unknown := slices.DeleteFunc(slices.Sorted(maps.Keys(list)), func(k string) bool {
		return slices.Contains([]string{"apiVersion", "kind", "metadata", "items"}, k)
	})
	for i, k := range unknown {
		if i == maxMessages {
			d.warn(at, fmt.Sprintf("%d more unknown fields", len(unknown)-i))
			break
		}
		d.warn(at, fmt.Sprintf("unknown field %q is ignored", k))
	}
	for i, item := range items {
		object, ok := item.(map[string]any)
		if !ok {
			d.refuse(at, fmt.Sprintf("items[%d]: Invalid value: must be an object, got %s", i, jsonKind(item)))
			continue
		}
		if of := strings.TrimSuffix(kind, "List"); of != "" {
			if object["kind"] == nil {
				object["kind"] = of
			}
			if object["apiVersion"] == nil {
				object["apiVersion"] = versionOf(of)
			}
		}
		if k, _ := object["kind"].(string); d.isList(k) {
			d.refuse(at, fmt.Sprintf("items[%d]: kind %q: lists inside lists are not read", i, k))
			continue
		}
		d.object(at, object)
	}
}

// pod takes one pod.
func (d *decoding) pod(at Problem, object map[string]any) {
	p := &v1.Pod{}
	canonical, ok := d.unmarshal(at, "Pod", object, p)
	if !ok {
		return
	}
	for _, w := range d.identify(p, canonical, d.origin) {
		d.warn(at, w)
	}
	setDefaults(p)
	if refusal := d.checkPod(p); refusal != "" {
		d.refuse(at, refusal)
		return
	}
	d.objects = append(d.objects, accepted{kind: "Pod", Object: p, origin: d.origin, document: canonical})
}

// checkPod returns why the defaulted pod is refused, or "".
func (d *decoding) checkPod(p *v1.Pod) string {
	if d.names == KeepNames {
		// First: a field that cannot be here at all is not to be mended.
		if errs := findClusterReferences(&p.Spec, field.NewPath("spec")); len(errs) > 0 {
			return explainErrors(errs)
		}
	}
	if errs := validatePod(p); len(errs) > 0 {
		return explainErrors(errs)
	}
	if resource := findAPIReference(&p.Spec); d.names == MangleNames && resource != "" {
		return "static pods may not reference " + resource // as the feature PreventStaticPodAPIReferences has it
	}
	return ""
}

// unmarshal decodes the object into the empty one of its kind and returns its canonical form: members sorted, numbers in one form, nulls gone;
// it depends on the manifest alone, not on our types. Unknown fields are warned of; ok is false when the object was refused.
func (d *decoding) unmarshal(at Problem, kind string, object map[string]any, into metav1.Object) (canonical json.RawMessage, ok bool) {
	canonical, err := json.Marshal(object)
	if err != nil {
		d.refuse(at, "cannot be encoded: "+err.Error())
		return nil, false
	}
	unknown, err := kjson.UnmarshalStrict(canonical, into, kjson.DisallowUnknownFields)
	if err != nil {
		d.refuse(at, explainDecode(kind, object, into, err))
		return nil, false
	}
	for i, u := range unknown {
		if i == maxMessages {
			d.warn(at, fmt.Sprintf("%d more unknown fields", len(unknown)-i))
			break
		}
		d.warn(at, u.Error()+" is ignored")
	}
	return canonical, true
}

// nameOf returns the namespace and name that the object has, or its pod would have, as far as they can be read.
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
