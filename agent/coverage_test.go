package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"berth/agent/agenttest"
	"berth/internal/cluster/kube/kubetest"
	"berth/internal/config/coveragetest"
)

// coverageTable is the path of a table.
func coverageTable(name string) string { return filepath.Join("testdata/coverage", name+".txt") }

// apiField is one field of a type of the API.
type apiField struct{ name, json, goName string }

// apiFields returns the fields of the types that the root leads to, by their names. What hangs from
// a field without effect has none either.
func apiFields(rows []coveragetest.Row, roots ...reflect.Type) map[string]apiField {
	dead := map[string]bool{}
	for _, r := range rows {
		dead[r.Name] = r.Verdict != coveragetest.Works
	}
	out, seen := map[string]apiField{}, map[reflect.Type]bool{}
	var walk func(t reflect.Type)
	walk = func(t reflect.Type) {
		for slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, t.Kind()) {
			t = t.Elem()
		}
		container := reflect.TypeFor[v1.Container]()
		if t.Kind() == reflect.Struct && t.ConvertibleTo(container) {
			t = container // those of other kinds have its fields, and are treated as it
		}
		if t.Kind() != reflect.Struct || t.PkgPath() != container.PkgPath() || seen[t] {
			return
		}
		seen[t] = true
		for i := range t.NumField() {
			f := t.Field(i)
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			name := t.Name() + "." + tag
			if tag != "" {
				out[name] = apiField{name, tag, f.Name}
			}
			if !dead[name] {
				walk(f.Type)
			}
		}
	}
	for _, root := range roots {
		walk(root)
	}
	return out
}

// Each field of pods has its row, and each row is true: what works has a test, and who asks for
// what does not is told of it by its path, in run mode and by the member of a cluster.
func TestCoverageOfPods(t *testing.T) {
	rows := coveragetest.Read(t, coverageTable("pods"))
	fields := apiFields(rows, reflect.TypeFor[v1.PodSpec](), reflect.TypeFor[v1.PodStatus]())
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	coveragetest.CheckNames(t, rows, names)
	said := saidOfPods(t, rows)
	for _, r := range rows {
		t.Run(r.Name, func(t *testing.T) {
			f := fields[r.Name]
			switch r.Verdict {
			case coveragetest.Works:
				coveragetest.CheckTest(t, r.Evidence, f.json, f.goName)
			case coveragetest.None:
				coveragetest.CheckReason(t, r)
			case coveragetest.Told:
				named := regexp.MustCompile(`spec\.volumes\[0\]\.` + f.json + `: `)
				for mode, line := range said[r.Name] {
					if !named.MatchString(line) || strings.Contains(line, "Required value") || strings.Contains(line, "Invalid value") {
						t.Errorf("%s: the field is not named as one that is not there: %q", mode, line)
					}
				}
				if len(said[r.Name]) != 2 {
					t.Errorf("told in %d modes", len(said[r.Name]))
				}
			default:
				t.Errorf("%q is no verdict of a field", r.Verdict)
			}
		})
	}
}

// saidOfPods returns what agents say of pods that ask for what is told: by row, and by the mode of
// the agent.
func saidOfPods(t *testing.T, rows []coveragetest.Row) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{}
	pods := map[string]*v1.Pod{}
	for _, r := range rows {
		if r.Verdict == coveragetest.Told {
			out[r.Name], pods[r.Name] = map[string]string{}, podAskingFor(t, r)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		for name, p := range pods {
			content, err := yaml.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(w.Manifests, p.Name+".yaml"), content, 0o600); err != nil {
				t.Fatal(err)
			}
			out[name]["berth run"] = ""
		}
		w.Settle(time.Minute)
		for name, p := range pods {
			out[name]["berth run"] = refusalIn(w, p.Name)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.New(t)
		w.Join()
		w.Settle(time.Minute)
		for _, p := range pods {
			p.Spec.NodeName = agenttest.NodeName
			kubetest.Put(w.API, p)
		}
		w.Settle(time.Minute)
		for name, p := range pods {
			if shown, ok := kubetest.Get[*v1.Pod](w.API, p.Namespace, p.Name); ok && shown.Status.Phase == v1.PodFailed {
				out[name]["member"] = shown.Status.Message
			}
		}
	})
	return out
}

// refusalIn returns why the agent does not run the pod of a manifest.
func refusalIn(w *agenttest.World, name string) string {
	h := w.Agent.Handlers()
	var lines []string
	for _, p := range h.Explain.Problems() {
		if p.Name == name {
			lines = append(lines, p.Message)
		}
	}
	for _, e := range h.Explain.Journal.Read(v1.NamespaceDefault, name) {
		if e.Decision == "UnsupportedField" {
			lines = append(lines, e.Error)
		}
	}
	return strings.Join(lines, "; ")
}

// podAskingFor returns a pod that mounts a volume of the row.
func podAskingFor(t *testing.T, r coveragetest.Row) *v1.Pod {
	t.Helper()
	_, source, _ := strings.Cut(r.Name, ".")
	p := &v1.Pod{}
	err := yaml.UnmarshalStrict(fmt.Appendf(nil, `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  containers: [{name: main, image: %q, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, %s: %s}]
`, strings.ToLower(source), agenttest.Image, source, r.Evidence), p)
	if err != nil {
		t.Fatalf("%s: %q is no value of a volume: %v", r.Name, r.Evidence, err)
	}
	return p
}
