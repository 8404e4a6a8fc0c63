package manifest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/source/manifest/manifesttest"
)

// accepted has manifests that an API server accepts.
const accepted = "../validation/testdata/apiserver"

// FuzzKeep: whatever is accepted, from a file or a URL, is complete, and is the same when it is
// read back as it is kept on disk.
func FuzzKeep(f *testing.F) {
	const podList = "apiVersion: v1\nkind: PodList\nitems:\n"
	for _, seed := range []string{
		manifesttest.Pod("a", "i"),
		manifesttest.Pod("a", "i") + "---\n" + manifesttest.Pod("b", "j") + "...\n# end\n",
		podList + "- metadata: {name: a}\n  spec: {containers: [{name: c, image: i}]}\n", podList + "[]\n",
		`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u"},"spec":{"containers":[{"name":"c","image":"i"}]}}]}`,
		`{"apiVersion":"v1","kind":"PodList","items":null}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","annotations":{"k":"\u007f\ud83d\ude00<&>"}},"spec":{"containers":[{"name":"c","image":"i","resources":{"limits":{"cpu":1e-3,"memory":"1Gi"}}}]}}`,
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: b}\nbinaryData: {c: aGk=}\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: b}\n",
		"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: p}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n",
		"a: &a [x]\nb: [*a, *a]\n", "\ufeff{}", "--- |\n  x\n", "%YAML 1.1\n---\nkind: Pod\n", "{", "[1]", "? {a: b}\n: c\n",
	} {
		f.Add([]byte(seed), true, false)
		f.Add([]byte(seed), false, true)
	}
	manifesttest.AddSeeds(f, accepted, func(m []byte) { f.Add(m, false, false) })
	f.Fuzz(func(t *testing.T, content []byte, mangle, url bool) {
		d := Decoder{Node: node}
		if mangle {
			d.Names = MangleNames
		}
		from := Origin{pod.FileSource, "/m/a.yaml"}
		if url {
			from = Origin{pod.HTTPSource, "https://example.com/pods.yaml"}
		}
		got := d.Decode(from, content)
		var documents []json.RawMessage
		for _, a := range got.Objects {
			documents = append(documents, a.Document)
			if a.GetName() == "" || a.GetNamespace() == "" {
				t.Fatalf("a %s without name or namespace: %s", a.Kind, a.Document)
			}
			p, ok := a.Object.(*v1.Pod)
			if !ok {
				continue
			}
			if p.UID == "" || p.Spec.NodeName != node || pod.SourceOf(p) != from.Source || p.Annotations[pod.ManifestAnnotation] != from.Path {
				t.Fatalf("accepted without identity: %v", p)
			}
		}
		for _, p := range got.Problems {
			if p.Message == "" || strings.Contains(p.Message, "\n") || p.Path != from.Path || p.Source != from.Source {
				t.Fatalf("problem %+v", p)
			}
		}
		kept, err := d.Restore(from, documents)
		if err != nil {
			t.Fatalf("what was accepted cannot be read back: %v", err)
		}
		for i, a := range kept {
			if diff := cmp.Diff(got.Objects[i].Object, a.Object); diff != "" {
				t.Fatalf("read back (-accepted +kept):\n%s", diff)
			}
			if string(a.Document) != string(got.Objects[i].Document) {
				t.Fatalf("read back: %s became %s", got.Objects[i].Document, a.Document)
			}
		}
	})
}
