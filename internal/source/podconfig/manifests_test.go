package podconfig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/source/manifest"
	"berth/internal/source/manifest/manifesttest"
)

// The archives of testdata/manifests say what becomes of manifests; each is a page to read. A
// manifest NAME.yaml (.json, .html) is followed by what becomes of it:
//
//	NAME.want       under either name rule; the kubelet's adds "-node-1" to the names of pods
//	NAME.run        under the rules of `berth run`
//	NAME.kubelet    under the rules of the kubelet
//	NAME.want.http, NAME.run.http, NAME.kubelet.http    when a URL answers with it; all others are files
//
// There stand the objects that the manifest defines, each with those fields of it that matter,
// complete as it is handed over (null: it has no such field), and its problems: severity, document,
// and one line for each fault. A line "nothing" stands for neither objects nor problems. "…" in a
// fault stands for words of a library.
//
//	Pod default/web
//	  spec.containers[0].imagePullPolicy = IfNotPresent
//	warning 1 annotation kubernetes.io/config.mirror is ignored: …
//
// A manifest NAME.quoted is made of Go strings, one a line, those that begin with "7 * " seven
// times: for what an editor would not keep.
const outcomes = "testdata/manifests"

// minManifests is the least number of manifests that the archives have together.
const minManifests = 150

// manifestCase is one manifest with all that is said of it.
type manifestCase struct {
	name    string
	kind    string // what its name ends with: yaml, json, html or quoted
	content []byte
	wants   []wantedOutcome
}

type wantedOutcome struct {
	title  string // what its name ends with
	rule   manifest.NameRule
	source pod.Source
	outcome
}

// outcome is what becomes of a manifest.
type outcome struct {
	objects  []wantedObject
	problems []string // "severity document message"
}

type wantedObject struct {
	key    string // "Kind namespace/name"
	fields []wantedField
}

type wantedField struct {
	path  string
	value any
}

func TestManifests(t *testing.T) {
	files, err := filepath.Glob(outcomes + "/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		archive, err := txtar.ParseFile(f)
		if err != nil {
			t.Fatal(err)
		}
		cases := parseCases(t, filepath.Base(f), archive)
		n += len(cases)
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txtar"), func(t *testing.T) {
			for _, c := range cases {
				for _, w := range c.wants {
					t.Run(c.name+"/"+w.title+"/"+w.rule.String(), func(t *testing.T) { checkManifest(t, c, w) })
				}
			}
		})
	}
	if n < minManifests {
		t.Errorf("%s has %d manifests, want at least %d", outcomes, n, minManifests)
	}
}

// checkManifest compares what the manifest stands for with what is wanted.
func checkManifest(t *testing.T, c manifestCase, w wantedOutcome) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	if w.source == pod.HTTPSource {
		path = "http://example.com/a.yaml"
	}
	cfg := newConfig(path)
	cfg.Names = w.rule
	now := readFromFile
	if w.source == pod.HTTPSource {
		now = readFromURL
	}
	got := now(t, cfg, c)
	checkRestored(t, manifest.Decoder{Node: node, Names: w.rule}, got.Objects)

	var objects byKind
	cfg.Objects = func(l LocalObjects) { objects = sortByKind(l.All) }
	config, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var n snapshot
	n.add(got)
	config.handOver(config.feeds[0], n)
	var found outcome
	for _, u := range config.Take() {
		for _, p := range u.Pods {
			found.take(t, "Pod", p, w)
		}
	}
	for _, o := range objects.ConfigMaps {
		found.take(t, "ConfigMap", o, w)
	}
	for _, o := range objects.Secrets {
		found.take(t, "Secret", o, w)
	}
	for _, o := range objects.PersistentVolumeClaims {
		found.take(t, "PersistentVolumeClaim", o, w)
	}
	for _, o := range objects.PersistentVolumes {
		found.take(t, "PersistentVolume", o, w)
	}
	for _, o := range objects.RuntimeClasses {
		found.take(t, "RuntimeClass", o, w)
	}
	for _, o := range objects.CSIDrivers {
		found.take(t, "CSIDriver", o, w)
	}
	for i, p := range config.Problems() {
		message := strings.ReplaceAll(p.Message, filepath.Dir(path), "/manifests")
		messagestest.Saw("error", "-", p.Message)
		message = fmt.Sprintf("%s %d %s", p.Severity, p.Document, message)
		if i < len(w.problems) && matches(w.problems[i], message) {
			message = w.problems[i]
		}
		found.problems = append(found.problems, message)
	}
	if diff := cmp.Diff(w.lines(t), found.lines(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// readFromFile returns what the file source makes of the manifest.
func readFromFile(t *testing.T, cfg Config, c manifestCase) manifest.Decoded {
	t.Helper()
	write(t, cfg.Paths[0], string(c.content))
	s, err := newFileSource(cfg, cfg.Paths)
	if err != nil {
		t.Fatal(err)
	}
	f, isManifest, err := s.read(cfg.Paths[0], nil)
	if err != nil || !isManifest {
		t.Fatalf("read: a manifest: %v, %v", isManifest, err)
	}
	return f.Decoded
}

// readFromURL returns what the HTTP source makes of the manifest.
func readFromURL(t *testing.T, cfg Config, c manifestCase) manifest.Decoded {
	t.Helper()
	cfg.Transport = answering{contentType: "text/" + c.kind, content: c.content}
	s, err := newHTTPSource(cfg, cfg.Paths)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.fetch(t.Context(), s.pages[0])
	if err != nil {
		return s.fail(t.Context(), s.pages[0], err).Decoded
	}
	return s.succeed(s.pages[0], a).Decoded
}

// answering is a server that has one page.
type answering struct {
	contentType string
	content     []byte
}

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {a.contentType}},
		Body: io.NopCloser(bytes.NewReader(a.content)), Request: r,
	}, nil
}

// checkRestored checks that what is kept on disk of each object stands for the same object.
func checkRestored(t *testing.T, d manifest.Decoder, objects []manifest.Object) {
	t.Helper()
	for _, a := range objects {
		again := d.Decode(a.Origin, a.Document)
		if len(again.Objects) != 1 {
			t.Errorf("what is kept of %s stands for %d objects; %s", a.Key(), len(again.Objects), messages(again.Problems))
		} else if diff := cmp.Diff(a.Object, again.Objects[0].Object); diff != "" {
			t.Errorf("what is kept of %s stands for another object (-first +again):\n%s", a.Key(), diff)
		}
	}
}

// take adds the object, with those of its fields that are wanted of the object of that name.
func (o *outcome) take(t *testing.T, kind string, object metav1.Object, w wantedOutcome) {
	t.Helper()
	found := wantedObject{key: kind + " " + object.GetNamespace() + "/" + object.GetName()}
	if i := slices.IndexFunc(w.objects, func(o wantedObject) bool { return o.key == found.key }); i >= 0 {
		raw, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		whole := manifesttest.ReadYAML[map[string]any](t, found.key, raw)
		for _, f := range w.objects[i].fields {
			value, _ := manifesttest.GetField(whole, f.path)
			found.fields = append(found.fields, wantedField{f.path, value})
		}
	}
	o.objects = append(o.objects, found)
}

// lines prints the outcome, the objects in the order of their names.
func (o outcome) lines(t *testing.T) []string {
	t.Helper()
	var out []string
	objects := slices.SortedFunc(slices.Values(o.objects), func(a, b wantedObject) int { return strings.Compare(a.key, b.key) })
	for _, object := range objects {
		out = append(out, object.key)
		for _, f := range object.fields {
			value, err := json.Marshal(f.value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, "  "+f.path+" = "+string(value))
		}
	}
	for _, p := range o.problems {
		out = append(out, strings.Split(p, "; ")...) // so that a diff shows the fault that differs
	}
	return out
}

// matches reports whether the message is the wanted one, in which "…" stands for any words.
func matches(want, message string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".*?")
	return regexp.MustCompile("^" + pattern + "$").MatchString(message)
}

// parseCases reads the archive, which belongs to the file.
func parseCases(t *testing.T, file string, archive *txtar.Archive) []manifestCase {
	t.Helper()
	var cases []manifestCase
	for _, member := range archive.Files {
		name, kind, _ := strings.Cut(member.Name, ".")
		at := file + ": " + member.Name
		switch kind {
		case "yaml", "json", "html", "quoted":
			if slices.ContainsFunc(cases, func(c manifestCase) bool { return c.name == name }) {
				t.Fatalf("%s: there are two manifests of this name", at)
			}
			content := member.Data
			if kind == "quoted" {
				content = unquote(t, at, content)
			}
			cases = append(cases, manifestCase{name: name, kind: kind, content: content})
			continue
		}
		if len(cases) == 0 || cases[len(cases)-1].name != name {
			t.Fatalf("%s: does not follow the manifest of its name", at)
		}
		c := &cases[len(cases)-1]
		o := parseOutcome(t, at, member.Data)
		rules, source := kind, pod.FileSource
		if of, ok := strings.CutSuffix(kind, ".http"); ok {
			rules, source = of, pod.HTTPSource
		}
		switch rules {
		case "run":
			c.wants = append(c.wants, wantedOutcome{kind, manifest.KeepNames, source, o})
		case "kubelet":
			c.wants = append(c.wants, wantedOutcome{kind, manifest.MangleNames, source, o})
		case "want":
			c.wants = append(c.wants, wantedOutcome{kind, manifest.KeepNames, source, o}, wantedOutcome{kind, manifest.MangleNames, source, mangle(o)})
		default:
			t.Fatalf("%s: is neither a manifest nor an outcome", at)
		}
	}
	for _, c := range cases {
		if len(c.wants) == 0 {
			t.Errorf("%s: %s: nothing is said of the manifest", file, c.name)
		}
	}
	return cases
}

// mangle returns the outcome with the names that pods have under the kubelet's rule.
func mangle(o outcome) outcome {
	o.objects = slices.Clone(o.objects)
	for i := range o.objects {
		if strings.HasPrefix(o.objects[i].key, "Pod ") {
			o.objects[i].key += "-" + node
		}
	}
	return o
}

// parseOutcome reads what becomes of a manifest.
func parseOutcome(t *testing.T, at string, text []byte) outcome {
	t.Helper()
	var o outcome
	said, inProblem := false, false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		detail, isDetail := strings.CutPrefix(line, "  ")
		severity, _, _ := strings.Cut(line, " ")
		switch {
		case isDetail && inProblem:
			o.problems[len(o.problems)-1] += "; " + detail
		case isDetail && len(o.objects) > 0:
			path, value, ok := strings.Cut(detail, " = ")
			if !ok {
				t.Fatalf("%s: %q is not of the form field = value", at, line)
			}
			last := &o.objects[len(o.objects)-1]
			last.fields = append(last.fields, wantedField{path, manifesttest.ReadYAML[any](t, at, []byte(value))})
		case severity == string(manifest.SeverityError) || severity == string(manifest.SeverityWarning):
			o.problems, inProblem = append(o.problems, line), true
		case line == "nothing":
		case wantedKey.MatchString(line):
			o.objects, inProblem = append(o.objects, wantedObject{key: line}), false
		default:
			t.Fatalf("%s: %q is neither an object nor a problem", at, line)
		}
		said = true
	}
	if !said {
		t.Fatalf("%s: is empty; say nothing", at)
	}
	return o
}

// wantedKey is the form of an object's line: kind, namespace and name.
var wantedKey = regexp.MustCompile(`^(Pod|ConfigMap|Secret|PersistentVolumeClaim|PersistentVolume|RuntimeClass|CSIDriver) [^/ ]*/[^/ ]+$`)

// unquote returns the bytes that quoted lines stand for.
func unquote(t *testing.T, at string, text []byte) []byte {
	t.Helper()
	var out []byte
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		times := 1
		if count, rest, ok := strings.Cut(line, " * "); ok && !strings.HasPrefix(line, `"`) {
			n, err := strconv.Atoi(count)
			if err != nil {
				t.Fatalf("%s: %v", at, err)
			}
			times, line = n, rest
		}
		s, err := strconv.Unquote(line)
		if err != nil {
			t.Fatalf("%s: %q: %v", at, line, err)
		}
		out = append(out, bytes.Repeat([]byte(s), times)...)
	}
	return out
}
