package differences

import (
	"fmt"
	"net/url"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

type ephemeral = v1.EphemeralContainer

func (m *maker) patch() Step {
	sub := ""
	if m.hasStatus() && m.chance(3) {
		sub = "status"
	}
	return m.patchAt(sub)
}

// patchAt is a patch of one of the four types.
func (m *maker) patchAt(sub string) Step {
	switch m.IntN(4) {
	case 0:
		return m.patchOf(sub, types.MergePatchType, m.part())
	case 1:
		part := m.part()
		m.direct(part)
		return m.patchOf(sub, types.StrategicMergePatchType, part)
	case 2:
		return m.patchOf(sub, types.JSONPatchType, m.operations())
	}
	return m.apply(sub)
}

// part is some of the object, with mistakes in it.
func (m *maker) part() map[string]any {
	part := m.mutated(2)
	for _, name := range sortedNames(part) {
		if m.chance(2) {
			delete(part, name)
		}
	}
	if metadata, ok := part["metadata"].(map[string]any); ok && m.chance(5) {
		if m.chance(2) {
			metadata["uid"] = pick(m.Rand, []any{"@uid@", "another", nil})
		} else {
			metadata["resourceVersion"] = pick(m.Rand, []any{"@rv@", "@oldrv@", "1", "x", nil})
		}
	}
	if m.chance(6) {
		part["metadata"] = map[string]any{pick(m.Rand, []string{"finalizers", "ownerReferences", "managedFields", "labels", "annotations", "deletionTimestamp", "generation", "selfLink"}): pick(m.Rand, []any{nil, []any{}, []any{"example.com/f"}, map[string]any{"a": "b"}, []any{map[string]any{}}})}
	}
	return part
}

// direct puts a directive of strategic merge patches somewhere into a patch.
func (m *maker) direct(part map[string]any) {
	if !m.chance(2) {
		return
	}
	p := pick(m.Rand, places(part, m.root))
	object, ok := p.value.(map[string]any)
	if !ok {
		return
	}
	switch m.IntN(4) {
	case 0:
		object["$patch"] = pick(m.Rand, []any{"delete", "replace", "merge", "nonsense", 7})
	case 1:
		object["$retainKeys"] = pick(m.Rand, []any{[]any{"name"}, []any{}, "name", []any{7}})
	case 2:
		object["$setElementOrder/"+pick(m.Rand, []string{"containers", "volumes", "conditions", "finalizers", "nonsense"})] = pick(m.Rand, []any{[]any{map[string]any{"name": "c"}}, []any{"example.com/f"}, 7})
	default:
		object["$deleteFromPrimitiveList/"+pick(m.Rand, []string{"finalizers", "args", "nonsense"})] = pick(m.Rand, []any{[]any{"example.com/hold"}, []any{}, 7})
	}
}

// operations are those of a JSON patch.
func (m *maker) operations() any {
	all := places(m.mutated(1), m.root)
	var out []any
	for range 1 + m.IntN(3) {
		p, other := pick(m.Rand, all), pick(m.Rand, all)
		op := map[string]any{"op": pick(m.Rand, []string{"add", "add", "replace", "replace", "remove", "test", "move", "copy", "nonsense"}), "path": m.pointer(p), "value": p.value}
		if m.chance(3) {
			op["value"] = nearby(m.Rand, p)
		}
		if op["op"] == "move" || op["op"] == "copy" || m.chance(20) {
			op["from"] = m.pointer(other)
		}
		if m.chance(15) {
			delete(op, pick(m.Rand, []string{"op", "path", "value"}))
		}
		out = append(out, op)
	}
	if m.chance(20) {
		return map[string]any{"op": "remove"}
	}
	return out
}

// pointer is a place as RFC 6901 writes it.
func (m *maker) pointer(p place) string {
	if m.chance(12) {
		return pick(m.Rand, []string{"", "/", "metadata", "/metadata/none", "/spec/containers/7", "/spec/containers/-1", "/metadata/labels/~2", "/data/k"})
	}
	var out strings.Builder
	for _, name := range p.path {
		if name == "-" {
			name = fmt.Sprint(m.IntN(2))
		}
		out.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
	}
	return out.String()
}

// apply is a server-side apply of a part of the object.
func (m *maker) apply(sub string) Step {
	part := m.part()
	for _, name := range []string{"apiVersion", "kind"} {
		if !m.chance(15) {
			part[name] = m.object[name]
		}
	}
	if !m.chance(8) {
		part["metadata"] = map[string]any{"name": "@name@", "labels": map[string]any{"seq": "@name@", "l": pick(m.Rand, texts)}}
	}
	s := m.patchOf(sub, types.ApplyYAMLPatchType, part)
	path, query, _ := strings.Cut(s.Path, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		return s
	}
	if !m.chance(10) {
		q.Set("fieldManager", pick(m.Rand, []string{"a", "b"}))
	}
	if m.chance(2) {
		q.Set("force", pick(m.Rand, []string{"true", "true", "false", "x"}))
	}
	s.Path = path + "?" + q.Encode()
	return s
}

func (m *maker) patchOf(sub string, kind types.PatchType, body any) Step {
	s := Step{Method: "PATCH", Path: m.path(sub) + m.options(), ContentType: string(kind), Body: encode(body), Accept: m.accept()}
	if m.chance(40) {
		s.ContentType = pick(m.Rand, []string{"application/json", "application/yaml", "", "text/plain", string(types.ApplyCBORPatchType)})
	}
	if m.chance(40) {
		s.Body = pick(m.Rand, []string{"", "null", "[]", "{", "7"})
	}
	return s
}

// deleteValues are the options of a delete with some values that they are given.
var deleteValues = map[string]any{
	"gracePeriodSeconds": []any{0, 1, 7, -1, "x", nil},
	"propagationPolicy":  []any{"Orphan", "Foreground", "Background", "Nonsense", 7},
	"preconditions":      []any{map[string]any{"uid": "@uid@"}, map[string]any{"uid": "another"}, map[string]any{"resourceVersion": "@rv@"}, map[string]any{"resourceVersion": "@oldrv@"}, map[string]any{}},
	"dryRun":             []any{[]any{"All"}, []any{"Some"}, []any{}, "All"},
	"orphanDependents":   []any{true, false, "x"},
}

// deleteOptions are the options of a delete, as its body.
func (m *maker) deleteOptions() Step {
	s := Step{Method: "DELETE", Accept: m.accept()}
	o := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions"}
	for _, name := range sortedNames(deleteValues) {
		if m.chance(3) {
			o[name] = pick(m.Rand, deleteValues[name].([]any))
		}
	}
	if m.chance(10) {
		o[pick(m.Rand, []string{"kind", "apiVersion", "nonsense"})] = pick(m.Rand, texts)
	}
	if len(o) > 2 || m.chance(2) {
		s.ContentType, s.Body = "application/json", encode(o)
	}
	return s
}

func (m *maker) delete() Step {
	s := m.deleteOptions()
	s.Path = m.path("")
	if m.chance(5) {
		s.Path += "?" + pick(m.Rand, []string{"gracePeriodSeconds=0", "gracePeriodSeconds=x", "propagationPolicy=Orphan", "propagationPolicy=x", "dryRun=All", "orphanDependents=true"})
	}
	return s
}

// deleteCollection deletes what the sequence has made, and never more.
func (m *maker) deleteCollection() Step {
	s := m.deleteOptions()
	s.Path = m.collection() + "?" + pick(m.Rand, []string{
		"labelSelector=seq%3D@name@", "labelSelector=seq%3D@name@,app", "labelSelector=seq+in+(@name@),!app", "labelSelector=seq%3D@name@,a+b", "labelSelector=seq%3D@name@,-x",
		"fieldSelector=metadata.name%3D@name@", "fieldSelector=metadata.name%3D@name@,nonsense%3D7", "labelSelector=seq%3D@name@&fieldSelector=metadata.name%3D@name@",
		"labelSelector=seq%3D@name@&limit=1", "labelSelector=seq%3D@name@&dryRun=All", "labelSelector=seq%3D@name@&resourceVersion=x",
	})
	return s
}
