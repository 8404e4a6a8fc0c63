package differences

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"net/url"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"berth/internal/localapi/kinds"
)

//go:embed corpus.yaml
var corpusText string

// specimen is a valid object and its kind.
type specimen struct {
	kind   *kinds.Kind
	object map[string]any
}

// corpus reads the valid objects.
func corpus() ([]specimen, error) {
	var out []specimen
	for text := range strings.SplitSeq(corpusText, "\n---\n") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			return nil, fmt.Errorf("corpus: %w in\n%s", err, text)
		}
		version, _ := object["apiVersion"].(string)
		group, err := schema.ParseGroupVersion(version)
		if err != nil {
			return nil, fmt.Errorf("corpus: %w", err)
		}
		kind := kindOf(group.WithKind(fmt.Sprint(object["kind"])))
		if kind == nil {
			return nil, fmt.Errorf("corpus: the local API has no %s of %s", object["kind"], version)
		}
		out = append(out, specimen{kind, clone(object)})
	}
	return out, nil
}

func kindOf(of schema.GroupVersionKind) *kinds.Kind {
	for i := range kinds.All {
		if kinds.All[i].GroupVersionKind == of {
			return &kinds.All[i]
		}
	}
	return nil
}

// maker makes the steps of one sequence.
type maker struct {
	*rand.Rand
	specimen
	root    reflect.Type
	current map[string]any // about as the object is stored
}

// sequence makes the requests of one life of an object: its creation, some changes, how it is then,
// mostly its deletion.
func sequence(r *rand.Rand, from []specimen) []Step {
	s := pick(r, from)
	m := &maker{Rand: r, specimen: s, root: reflect.TypeOf(s.kind.New()), current: clone(s.object)}
	steps := []Step{m.create()}
	for range 1 + r.IntN(5) {
		steps = append(steps, m.change())
	}
	return append(steps, Step{Method: "GET", Path: m.path("")})
}

// collection is the path of all objects of the kind.
func (m *maker) collection() string {
	path := "/apis/" + m.kind.Group + "/" + m.kind.Version
	if m.kind.Group == "" {
		path = "/api/" + m.kind.Version
	}
	if m.kind.Namespaced {
		path += "/namespaces/@ns@"
	}
	return path + "/" + m.kind.Plural
}

// path is that of the object, or of a subresource.
func (m *maker) path(subresource string) string {
	path := m.collection() + "/@name@"
	if subresource != "" {
		path += "/" + subresource
	}
	return path
}

// chance is true once in n times.
func (m *maker) chance(n int) bool { return m.IntN(n) == 0 }

// mutated is the object as it is about stored, with some mistakes in it.
func (m *maker) mutated(most int) map[string]any {
	object := clone(m.current)
	for range m.IntN(most + 1) {
		mutate(m.Rand, object, m.root)
	}
	return object
}

func (m *maker) create() Step {
	object := m.mutated(2)
	if m.kind.Kind == "Pod" {
		// Nobody else acts on it, and no server chooses its node.
		if spec, ok := object["spec"].(map[string]any); ok {
			spec["schedulerName"] = "nobody"
			if spec["nodeName"] == nil || spec["nodeName"] == "" {
				spec["nodeName"] = "nowhere"
			}
		}
	}
	// Its name is not that of an object of another sequence.
	if metadata, ok := object["metadata"].(map[string]any); ok {
		if name, ok := metadata["name"].(string); ok && name != "" && !strings.Contains(name, "@name@") {
			metadata["name"] = "@name@" + name
		}
	}
	return m.write("POST", m.collection(), object)
}

// write is a request with an object, in JSON or YAML.
func (m *maker) write(method, path string, object map[string]any) Step {
	s := Step{Method: method, Path: path + m.options(), ContentType: "application/json", Body: encode(object)}
	switch m.IntN(30) {
	case 0, 1, 2:
		if text, err := yaml.JSONToYAML([]byte(s.Body)); err == nil {
			s.ContentType, s.Body = "application/yaml", string(text)
		}
	case 3:
		s.ContentType = pick(m.Rand, []string{"text/plain", "application/nonsense", "application/merge-patch+json", "", "application/vnd.kubernetes.protobuf"})
	case 4:
		s.Body = s.Body[:m.IntN(len(s.Body))]
	case 5:
		s.Body = pick(m.Rand, []string{"", "null", "[]", "7", "{}", `"x"`, "\xff\xfe"})
	}
	s.Accept = m.accept()
	return s
}

func (m *maker) accept() string {
	if !m.chance(12) {
		return ""
	}
	return pick(m.Rand, []string{
		"application/yaml", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
		"application/nonsense", "*/*", "application/json;as=Nonsense;v=v1;g=meta.k8s.io,application/json",
	})
}

// options are those of a write.
func (m *maker) options() string {
	q := url.Values{}
	if m.chance(8) {
		q.Set("dryRun", pick(m.Rand, []string{"All", "All", "Some", ""}))
	}
	if m.chance(4) {
		q.Set("fieldManager", pick(m.Rand, []string{"a", "b", "", strings.Repeat("m", 129), "ü", "a\nb"}))
	}
	if m.chance(3) {
		q.Set("fieldValidation", pick(m.Rand, []string{"Strict", "Strict", "Warn", "Ignore", "Loud"}))
	}
	if m.chance(40) {
		q.Set(pick(m.Rand, []string{"force", "pretty", "nonsense", "limit", "gracePeriodSeconds"}), pick(m.Rand, []string{"true", "x", "1"}))
	}
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// change is a request about what was created.
func (m *maker) change() Step {
	switch n := m.IntN(20); {
	case n < 5:
		return m.update()
	case n < 14:
		return m.patch()
	case n < 16 && len(m.kind.Subresources) > 0:
		return m.subresource()
	case n == 16:
		return m.create()
	case n == 17 && m.kind.Namespaced:
		return m.deleteCollection()
	case n == 18:
		return Step{Method: pick(m.Rand, []string{"GET", "PUT", "POST", "BREW"}), Path: pick(m.Rand, []string{m.path("nonsense"), m.path("scale"), m.collection() + "s/@name@", m.path("status")})}
	}
	return m.delete()
}

func (m *maker) update() Step {
	object := m.mutated(3)
	metadata, ok := object["metadata"].(map[string]any)
	if ok {
		switch m.IntN(6) {
		case 0:
			metadata["resourceVersion"] = "@oldrv@"
		case 1, 2:
			metadata["resourceVersion"] = "@rv@"
		case 3:
			metadata["uid"] = pick(m.Rand, []string{"@uid@", "another"})
		case 4:
			metadata["resourceVersion"] = pick(m.Rand, []string{"0", "1", "x"})
		}
		if _, generated := metadata["generateName"]; generated {
			metadata["name"] = "@name@"
		}
	}
	path := m.path("")
	if m.hasStatus() && m.chance(4) {
		path = m.path("status")
	}
	return m.write("PUT", path, object)
}

func (m *maker) hasStatus() bool {
	for _, s := range m.kind.Subresources {
		if s == "status" {
			return true
		}
	}
	return false
}

func (m *maker) subresource() Step {
	sub := pick(m.Rand, m.kind.Subresources)
	switch sub {
	case "eviction":
		return m.write("POST", m.path(sub), map[string]any{
			"apiVersion": "policy/v1", "kind": "Eviction", "metadata": map[string]any{"name": pick(m.Rand, []string{"@name@", "@name@", "x"})},
			"deleteOptions": map[string]any{"gracePeriodSeconds": m.IntN(9)},
		})
	case "token":
		spec := map[string]any{"audiences": []any{pick(m.Rand, texts)}, "expirationSeconds": pick(m.Rand, []any{600, 599, 1 << 33, "x", 3600})}
		return m.write("POST", m.path(sub), map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
	case "binding":
		return m.write("POST", m.path(sub), map[string]any{"apiVersion": "v1", "kind": "Binding", "metadata": map[string]any{"name": "@name@"}, "target": map[string]any{"kind": "Node", "name": "n"}})
	case "ephemeralcontainers":
		return m.patchOf(sub, types.StrategicMergePatchType, map[string]any{"spec": map[string]any{"ephemeralContainers": []any{
			value(m.Rand, reflect.TypeFor[ephemeral](), 3),
		}}})
	case "resize", "status":
		return m.patchAt(sub)
	case "finalize":
		return m.write("PUT", m.path(sub), m.mutated(2))
	}
	return Step{Method: "PUT", Path: m.path("nonsense"), ContentType: "application/json", Body: "{}"}
}
