package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"berth/internal/pod"
	"berth/internal/source/defaults"
	"berth/internal/source/validation"
)

const (
	// maxMessages limits the reported faults of one manifest.
	maxMessages = 10
	// maxObjects limits the documents of a file and the items of a list, far above what a node can
	// run.
	maxObjects = 10_000
)

// Decoder decodes a manifest into objects that are identified, defaulted and validated.
type Decoder struct {
	Node  string // the name of this node
	Names NameRule
	// AllowUnknownFields ignores unknown fields with a warning, as the kubelet does. Otherwise,
	// KeepNames rejects their objects.
	AllowUnknownFields bool
	// Running returns the UID under which the pod of a manifest already runs, or own, the UID
	// derived from the manifest. p has name and namespace only. Nil: all pods get their own.
	Running func(p *v1.Pod, from Origin, own pod.UID) pod.UID
}

// Origin is where a manifest was read from.
type Origin struct {
	Source pod.Source
	Path   string // the file, or the URL without credentials
}

// Object is one object that a manifest defines.
type Object struct {
	Kind          string
	metav1.Object // a *v1.Pod for kind Pod; immutable
	Origin
	// Document is the object of the manifest in canonical JSON. Decoding it again yields the same
	// object with the same identity.
	Document json.RawMessage
}

// Key identifies the object within its manifest: "<kind> <namespace>/<name>".
func (o Object) Key() string {
	return o.Kind + " " + o.GetNamespace() + "/" + o.GetName()
}

// Decoded is the content of a manifest, in its order, with its problems.
type Decoded struct {
	Objects  []Object
	Problems []Problem
}

// Equal reports whether both have the same objects, by identity, and the same problems.
func (d Decoded) Equal(o Decoded) bool {
	same := func(a, b Object) bool { return a.Object == b.Object }
	return slices.EqualFunc(d.Objects, o.Objects, same) && slices.Equal(d.Problems, o.Problems)
}

// Refusal returns the index of the first problem that rejects a part of the manifest, -1 if there
// is none.
func (d Decoded) Refusal() int {
	return slices.IndexFunc(d.Problems, func(p Problem) bool { return p.Severity == SeverityError })
}

// Decode decodes one manifest. A rejected document does not affect the others.
func (d Decoder) Decode(from Origin, content []byte) Decoded {
	out := &decoding{decoder: d, from: from}
	if bytes.HasPrefix(content, []byte("\xff\xfe")) || bytes.HasPrefix(content, []byte("\xfe\xff")) {
		out.refuse(Problem{}, "is UTF-16 text: save it as UTF-8")
		return out.decoded
	}
	docs := splitDocuments(content)
	if len(docs) == 0 {
		out.refuse(Problem{}, "is empty: a manifest needs apiVersion, kind, metadata and spec")
		return out.decoded
	}
	if d.Names == MangleNames && len(docs) > 1 {
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

// Restore decodes the documents of objects that were accepted before. The error names the first
// that is no longer accepted.
func (d Decoder) Restore(from Origin, documents []json.RawMessage) ([]Object, error) {
	d.AllowUnknownFields = true // a newer agent with more fields may have accepted them
	out := &decoding{decoder: d, from: from}
	for i, text := range documents {
		var object map[string]any
		if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &object); err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		out.object(Problem{Document: i + 1}, object)
	}
	if bad := out.decoded.Refusal(); bad >= 0 {
		return nil, fmt.Errorf("document %d is refused now: %s", out.decoded.Problems[bad].Document, out.decoded.Problems[bad].Message)
	}
	return out.decoded.Objects, nil
}

type decoding struct {
	decoder Decoder
	from    Origin
	decoded Decoded
}

func (d *decoding) refuse(at Problem, message string) { d.add(at, SeverityError, message) }

func (d *decoding) warn(at Problem, message string) { d.add(at, SeverityWarning, message) }

func (d *decoding) add(at Problem, severity Severity, message string) {
	at.Source, at.Path, at.Severity, at.Message = d.from.Source, d.from.Path, severity, message
	d.decoded.Problems = append(d.decoded.Problems, at)
}

// object decodes one object of the manifest: a pod; in run mode also a local object; in run mode
// and from URLs also a list.
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
	case isList && d.decoder.Names == MangleNames && d.from.Source == pod.FileSource:
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

// textMember returns a top-level string that each object must have, or what is wrong with it;
// example is a typical value.
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
	return kind == "Pod" || d.decoder.Names == KeepNames && newLocalObject(kind) != nil
}

// isList reports whether the kind is a list of accepted objects.
func (d *decoding) isList(kind string) bool {
	of, ok := strings.CutSuffix(kind, "List")
	return ok && (of == "" || d.accepts(of))
}

// list decodes the items of a List, or of a typed list such as PodList, whose items need no kind.
func (d *decoding) list(at Problem, kind string, list map[string]any) {
	if _, ok := list["items"]; !ok {
		// An empty list removes every pod of its file or URL, so it must be explicit.
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
	if !d.unknownFields(at, findUnknown(list, reflect.TypeFor[metav1.List]())) {
		return
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

func (d *decoding) pod(at Problem, object map[string]any) {
	p := &v1.Pod{}
	canonical, ok := d.unmarshal(at, "Pod", object, p)
	if !ok {
		return
	}
	for _, w := range d.decoder.identify(p, canonical, d.from) {
		d.warn(at, w)
	}
	for _, w := range validation.WarnPod(p) {
		d.warn(at, w)
	}
	defaults.SetPodDefaults(p)
	if refusal := d.checkPod(p); refusal != "" {
		d.refuse(at, refusal)
		return
	}
	d.decoded.Objects = append(d.decoded.Objects, Object{Kind: "Pod", Object: p, Origin: d.from, Document: canonical})
}

// checkPod returns why the defaulted pod is rejected, or "". In run mode, which has no API server
// for it, it also sets the priority of the pod's class.
func (d *decoding) checkPod(p *v1.Pod) string {
	if d.decoder.Names == KeepNames {
		// First: other errors of a field that is not allowed are irrelevant.
		path := field.NewPath("spec")
		if errs := append(findClusterReferences(&p.Spec, path), resolvePriority(&p.Spec, path)...); len(errs) > 0 {
			return explainErrors(errs)
		}
	}
	if errs := validation.ValidatePod(p); len(errs) > 0 {
		return explainErrors(errs)
	}
	if resource := findAPIReference(&p.Spec); d.decoder.Names == MangleNames && resource != "" {
		// As the feature gate PreventStaticPodAPIReferences does.
		return "static pods may not reference " + resource
	}
	return ""
}

// unmarshal decodes the object into the empty one of its kind and returns its canonical form:
// sorted members, normalized numbers, no nulls; it depends on the manifest only, not on Go types.
// ok is false if the object was rejected.
func (d *decoding) unmarshal(at Problem, kind string, object map[string]any, into metav1.Object) (canonical json.RawMessage, ok bool) {
	canonical, err := json.Marshal(object)
	if err != nil {
		d.refuse(at, "cannot be encoded: "+err.Error())
		return nil, false
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(canonical, into); err != nil {
		d.refuse(at, explainDecode(kind, object, into, err))
		return nil, false
	}
	return canonical, d.unknownFields(at, findUnknown(object, reflect.TypeOf(into)))
}

// nameOf returns the namespace and name of the object, or of its pod, as far as they are readable.
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
