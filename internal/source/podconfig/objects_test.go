package podconfig

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/pod"
	"berth/internal/source/manifest"
	"berth/internal/source/manifest/manifesttest"
)

// decodeAt returns what a source hands over for one manifest.
func decodeAt(src pod.Source, path, content string) snapshot {
	var n snapshot
	n.add(manifest.Decoder{Node: node}.Decode(manifest.Origin{Source: src, Path: path}, []byte(content)))
	return n
}

func configMap(name, value string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\ndata: {k: '" + value + "'}\n---\n"
}

// told collects what Config.Objects is given, as "name=value" words and lengths.
type told struct{ words []string }

func (t *told) objects(l LocalObjects) {
	o := sortByKind(l.All)
	words := []string{}
	for _, m := range o.ConfigMaps {
		words = append(words, m.Name+"="+m.Data["k"])
	}
	for _, s := range o.Secrets {
		words = append(words, "secret:"+s.Name)
	}
	for _, c := range o.PersistentVolumeClaims {
		words = append(words, "claim:"+c.Name)
	}
	t.words = append(t.words, strings.Join(words, " "))
}

// take returns what was told since the last take, one line each.
func (t *told) take() string {
	out := strings.Join(t.words, "\n")
	t.words = nil
	return out
}

// Until every source was heard, objects that are missing may be those of another one; when the last
// was heard, that is told even if it defines none.
func TestObjectsAreCompleteWhenAllSourcesWereHeard(t *testing.T) {
	var heard []string
	cfg := newConfig("/m", "http://localhost/m")
	cfg.Objects = func(l LocalObjects) { heard = append(heard, fmt.Sprintf("%d %t", len(l.All), l.Complete)) }
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	files, urls := c.feeds[0], c.feeds[1]
	for _, step := range []struct {
		of      *feed
		content string
		want    string
	}{
		{files, configMap("a", "1"), "1 false"},
		{urls, "", "1 true"},
		{urls, "", ""},
		{urls, configMap("b", "1"), "2 true"},
	} {
		heard = nil
		c.handOver(step.of, decodeAt(step.of.source, "p", step.content))
		c.Take()
		if got := strings.Join(heard, ", "); got != step.want {
			t.Errorf("told %q, want %q", got, step.want)
		}
	}
}

func TestObjectsAreToldWithTheirPods(t *testing.T) {
	var heard told
	cfg := newConfig("/m", "http://localhost/m")
	cfg.Objects = heard.objects
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	files, urls := c.feeds[0], c.feeds[1]
	handOver := func(f *feed, path, content string) { c.handOver(f, decodeAt(f.source, path, content)) }
	steps := []struct {
		name string
		do   func()
		told string
		ops  string
	}{
		{"nothing", func() {}, "", ""},
		{
			"objects and a pod", func() {
				handOver(files, "/m/a", configMap("a", "1")+manifesttest.Object("Secret")+"---\n"+manifesttest.Pod("web", "i")+"---\n"+
					manifesttest.Object("PersistentVolumeClaim", "spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}}"))
			},
			"a=1 secret:o claim:o", "ADD default/web",
		},
		{"the other source has more", func() { handOver(urls, "http://localhost/m", configMap("a", "url")+configMap("b", "url")) }, "a=1 b=url secret:o claim:o", "ADD"},
		{"nothing again", func() {}, "", ""},
		{
			"an object changes, the pod does not", func() { handOver(files, "/m/a", configMap("a", "2")+manifesttest.Pod("web", "i")) },
			"a=2 b=url", "",
		},
		{"it goes: the other source's is in force", func() { handOver(files, "/m/a", manifesttest.Pod("web", "i")) }, "a=url b=url", ""},
		{"twice before it is taken", func() {
			handOver(urls, "http://localhost/m", configMap("a", "3"))
			handOver(urls, "http://localhost/m", configMap("a", "4"))
		}, "a=4", ""},
		{"all go", func() { handOver(urls, "http://localhost/m", manifesttest.Object("Namespace")) }, "", ""},
	}
	for _, step := range steps {
		step.do()
		if got := heard.take(); got != "" {
			t.Errorf("%s: told %q before Take", step.name, got)
		}
		if got := ops(c.Take()); got != step.ops {
			t.Errorf("%s: operations %q, want %q", step.name, got, step.ops)
		}
		if diff := cmp.Diff(step.told, heard.take()); diff != "" {
			t.Errorf("%s: told (-want +got):\n%s", step.name, diff)
		}
	}
}

func TestDuplicateObjects(t *testing.T) {
	var heard told
	cfg := newConfig("/m", "http://localhost/m")
	cfg.Objects = heard.objects
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	files, urls := c.feeds[0], c.feeds[1]
	a := decodeAt(pod.FileSource, "/m/a", configMap("one", "a")+configMap("one", "a2"))
	b := decodeAt(pod.FileSource, "/m/b", configMap("one", "b")+configMap("two", "b"))
	a.objects = append(a.objects, b.objects...)
	c.handOver(files, a)
	c.handOver(urls, decodeAt(pod.HTTPSource, "http://localhost/m", configMap("two", "url")+strings.Replace(configMap("two", "x"), "name: two", "name: two, namespace: other", 1)))
	c.Take()
	if got := heard.take(); got != "one=a two=b two=x" {
		t.Errorf("told %q", got)
	}
	const rest = "remove one of them, or rename it"
	want := "a error: ConfigMap default/one is defined twice; only the first one counts: " + rest +
		"\nb error: ConfigMap default/one is defined in /m/a already; this one is ignored: " + rest +
		"\nm error: ConfigMap default/two is defined in /m/b already; this one is ignored: " + rest
	if diff := cmp.Diff(want, messages(c.Problems())); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}

	// The mended source ends them.
	c.handOver(urls, decodeAt(pod.HTTPSource, "http://localhost/m", manifesttest.Object("Namespace")))
	c.handOver(files, b)
	c.Take()
	if got := heard.take(); got != "one=b two=b" {
		t.Errorf("told %q", got)
	}
	if got := messages(c.Problems()); got != "" {
		t.Errorf("problems: %s", got)
	}
}

// A file that turned bad keeps its objects like its pods.
func TestBadFileKeepsItsObjects(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	write(t, path, configMap("a", "1")+configMap("b", "1"))
	s, err := newFileSource(newConfig(), []string{dir})
	if err != nil {
		t.Fatal(err)
	}
	read := func(content string) (objects, problems string) {
		t.Helper()
		replace(t, path, content)
		s.scanAll(t.Context())
		var heard told
		n := s.collect()
		heard.objects(LocalObjects{All: n.objects})
		return heard.take(), messages(n.problems)
	}
	for _, step := range []struct{ content, objects, problem string }{
		{configMap("a", "1") + configMap("b", "1"), "a=1 b=1", ""},
		{configMap("a", "2") + "kind: [\n---\n", "a=2 b=1", "until this is mended the last good version stays: ConfigMap default/b"},
		{configMap("a", "2"), "a=2", ""},
	} {
		objects, problems := read(step.content)
		if objects != step.objects || !strings.Contains(problems, step.problem) || (problems == "") != (step.problem == "") {
			t.Errorf("%s: got %q, %s", step.content, objects, problems)
		}
	}
}

// An immutable object changes by going first, as in a cluster; an agent that was away holds to
// that.
func TestImmutableObjectIsNotChanged(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	fixed := func(value string) string {
		return strings.TrimSuffix(configMap("a", value), "---\n") + "immutable: true\n---\n"
	}
	secret := func(value string) string {
		return manifesttest.Object("Secret", "immutable: true", "stringData: {a: "+value+"}")
	}
	relabel := func(content string) string {
		return strings.Replace(content, "{name: a}", "{name: a, labels: {b: c}}", 1)
	}
	const refused = " is immutable: give the new values another name, or take this document away before it comes with them"
	steps := []struct{ name, content, objects, problem string }{
		{"it comes", fixed("1") + secret("x"), "a=1 secret:o", ""},
		{"it changes", fixed("2") + secret("x"), "a=1 secret:o", "ConfigMap default/a" + refused + "; until this is mended the last good version stays: ConfigMap default/a"},
		{"it gets labels", relabel(fixed("1")) + secret("x"), "a=1 secret:o", ""},
		{"it becomes mutable", configMap("a", "1") + secret("x"), "a=1 secret:o", "ConfigMap default/a" + refused},
		{"a Secret changes", fixed("1") + secret("z"), "a=1 secret:o", "Secret default/o" + refused},
		{"it goes", secret("x"), "secret:o", ""},
		{"it comes again", configMap("a", "3") + secret("x"), "a=3 secret:o", ""},
		{"it becomes immutable", fixed("4") + secret("x"), "a=4 secret:o", ""},
	}
	for _, restarted := range []string{"an agent that runs", "an agent that was away"} {
		t.Run(restarted, func(t *testing.T) {
			cfg := newConfig()
			cfg.StateDir = filepath.Join(state, strings.ReplaceAll(restarted, " ", "-"))
			var s *fileSource
			var end func()
			for i, step := range steps {
				if i == 0 || restarted == "an agent that was away" {
					if end != nil {
						end()
					}
					var err error
					if s, err = newFileSource(cfg, []string{dir}); err != nil {
						t.Fatal(err)
					}
					end = s.lastGood.open(t.Context())
				}
				replace(t, path, step.content)
				s.scanAll(t.Context())
				n := s.collect()
				var heard told
				heard.objects(LocalObjects{All: n.objects})
				if got := heard.take(); got != step.objects {
					t.Errorf("%s: got %q, want %q", step.name, got, step.objects)
				}
				if got := messages(n.problems); !strings.Contains(got, step.problem) || (got == "") != (step.problem == "") {
					t.Errorf("%s: problems %q, want %q", step.name, got, step.problem)
				}
			}
			end()
		})
	}
}
