package podconfig

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/source/manifest"
)

const node = "node-1"

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// replace puts the content in the file's place at once, as careful editors do.
func replace(t testing.TB, path, content string) {
	t.Helper()
	tmp := filepath.Join(filepath.Dir(path), ".tmp-"+filepath.Base(path))
	write(t, tmp, content)
	if err := os.Rename(tmp, path); err != nil {
		t.Fatal(err)
	}
}

func remove(t testing.TB, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// ops prints operations as "ADD default/a default/b; REMOVE default/c".
func ops(updates []pod.PodUpdate) string {
	var out []string
	for _, u := range updates {
		words := []string{u.Op.String()}
		for _, p := range u.Pods {
			words = append(words, p.Namespace+"/"+p.Name)
		}
		out = append(out, strings.Join(words, " "))
	}
	return strings.Join(out, "; ")
}

// messages prints problems as "base severity: message".
func messages(problems []manifest.Problem) string {
	var out []string
	for _, p := range problems {
		out = append(out, filepath.Base(p.Path)+" "+string(p.Severity)+": "+p.Message)
	}
	return strings.Join(out, "\n")
}

func newConfig(paths ...string) Config {
	return Config{NodeName: node, Log: discard(), Journal: journal.New(discard()), Paths: paths}
}

func testPod(uid, name string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{}
	p.UID, p.Name, p.Namespace = pod.UID(uid), name, "default"
	p.Annotations = map[string]string{pod.ConfigSourceAnnotation: "api"}
	for _, c := range change {
		c(p)
	}
	return p
}
