package config

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"berth/internal/record/events/messagestest"
)

var update = flag.Bool("update", false, "write what Load returns into the stories of testdata")

// TestLoad runs the stories of testdata: the file `flags` is the command line, `warnings`, `error`,
// `effective` (all fields) and `set` (those that are no defaults) are what Load must say, all other
// files are on disk. $WORK is their folder.
func TestLoad(t *testing.T) {
	stories, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(stories) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, path := range stories {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { runStory(t, path) })
	}
}

func runStory(t *testing.T, path string) {
	story, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	var args []string
	for _, f := range story.Files {
		switch f.Name {
		case "flags":
			args = strings.Fields(strings.ReplaceAll(string(f.Data), "$WORK", work))
		case "warnings", "error", "effective", "set":
		default:
			writeFile(t, filepath.Join(work, f.Name), f.Data)
		}
	}
	got := outcome(t, args, work)
	asked := false
	for i, f := range story.Files {
		want, ok := got[f.Name]
		if !ok {
			continue
		}
		asked = asked || f.Name != "warnings"
		if *update {
			story.Files[i].Data = []byte(want)
			continue
		}
		if diff := cmp.Diff(string(f.Data), want); diff != "" {
			t.Errorf("%s (-want +got):\n%s", f.Name, diff)
		}
	}
	if !asked {
		t.Error("the story asks for none of error, effective, set")
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(story), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// outcome loads the configuration and returns what stories can ask for.
func outcome(t *testing.T, args []string, work string) map[string]string {
	t.Helper()
	k, err := Load(parsed(t, args...))
	var warnings, all, set []string
	if err == nil {
		warnings = k.Warnings
		fields, err := k.Fields()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fields {
			line := fmt.Sprintf("%s = %s", f.Path, jsonText(t, f.Value))
			all = append(all, line)
			if f.Origin.Kind != FromDefault {
				set = append(set, fmt.Sprintf("%s  # %s", line, f.Origin))
			}
		}
	}
	text := func(lines []string) string {
		if len(lines) == 0 {
			return ""
		}
		return strings.ReplaceAll(strings.Join(lines, "\n")+"\n", work, "$WORK")
	}
	failure := ""
	if err != nil {
		failure = text(strings.Split(err.Error(), "\n"))
		for line := range strings.Lines(failure) {
			messagestest.Saw("error", "-", strings.TrimSuffix(line, "\n"))
		}
	}
	return map[string]string{"warnings": text(warnings), "error": failure, "effective": text(all), "set": text(set)}
}

// parsed gives flags written as --name=value.
func parsed(t testing.TB, args ...string) *Flags {
	t.Helper()
	flags := NewFlags()
	for _, arg := range args {
		name, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		f := flags.named[name]
		if f == nil {
			t.Fatalf("no flag --%s", name)
		}
		if !ok && f.IsBoolFlag() {
			value = "true"
		}
		if err := f.Set(value); err != nil {
			t.Fatalf("--%s: %v", name, err)
		}
	}
	return flags
}

func writeFile(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

func jsonText(t testing.TB, value any) string {
	t.Helper()
	b, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// FuzzParse: whatever a file holds, it is refused, or it merges over itself and decodes.
func FuzzParse(f *testing.F) {
	head := "apiVersion: " + APIVersion + "\nkind: " + Kind + "\n"
	for _, s := range []string{
		"", "a", "- a", head, head + "maxPods: 3", head + "maxPods: null", head + "maxPods: x", head + "evictionHard: {memory.available: 1Gi}",
		head + "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]", head + "logging: {flushFrequency: 5}", head + "a: &a [*a]",
		head + "authentication: 3", head + "tracing: {}\n---\nb", `{"apiVersion":"` + APIVersion + `","kind":"` + Kind + `","port":1e3}`,
		head + "registerWithTaints: [{key: a, effect: NoSchedule, timeAdded: 2020-01-01T00:00:00Z}]", head + "featureGates: {A: null}",
		head + "userNamespaces: {idsPerPod: 99999999999999999999}", head + "tlsCurvePreferences: [1.5]",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		doc, _, errs := parse(content)
		if len(errs) > 0 {
			return
		}
		l := &layers{doc: document{}, origins: Origins{}}
		l.merge(doc, Origin{Kind: FromFile, Name: "a"})
		l.merge(doc, Origin{Kind: FromDropIn, Name: "b"})
		if err := l.mergeDefaults(setDefaults); err != nil {
			t.Fatalf("accepted, but: %v", err)
		}
		c, err := fromDocument(l.doc)
		if err != nil {
			t.Fatalf("accepted, but: %v", err)
		}
		for path, origin := range l.origins {
			if origin.Name != "b" {
				t.Errorf("%s comes from %v, although a later file has the same", path, origin)
			}
		}
		c.ImageServiceEndpoint = c.ContainerRuntimeEndpoint
		k := &Kubelet{KubeletConfiguration: *c, Origins: l.origins}
		k.validate() // must not panic
	})
}
