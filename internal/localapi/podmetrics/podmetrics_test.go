package podmetrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/store"
)

// world is the API of a machine with one node and a pod, beside which one began a moment ago.
type world struct {
	*testing.T
	*Usage
	mu    sync.Mutex
	reads int   // guarded by mu
	fails error // guarded by mu
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s, err := store.Open(store.Config{Path: filepath.Join(t.TempDir(), "objects.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for resource, o := range map[string]kinds.Object{
		"nodes": &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "b"}}},
		"pods":  &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "site", Name: "web", Labels: map[string]string{"app": "web"}}},
	} {
		value, err := kinds.Encode(o)
		if err == nil {
			_, err = s.Write(store.Key{Resource: resource, Namespace: o.GetNamespace(), Name: o.GetName()}, 0, value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w := &world{T: t}
	w.Usage = New(s, w.read)
	return w
}

// read is as the agent's: CPU is known from the second reading on.
func (w *world) read(context.Context) (*summary.Summary, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	of := func(nanocores, bytes uint64) (*summary.CPUStats, *summary.MemoryStats) {
		cpu := &summary.CPUStats{Time: metav1.Now()}
		if w.reads > 1 {
			cpu.UsageNanoCores = &nanocores
		}
		return cpu, &summary.MemoryStats{WorkingSetBytes: &bytes}
	}
	s := &summary.Summary{Node: summary.NodeStats{NodeName: "n"}}
	s.Node.CPU, s.Node.Memory = of(1_500_000_000, 4<<30)
	web := summary.PodStats{PodRef: summary.PodReference{Namespace: "site", Name: "web"}, Containers: []summary.ContainerStats{{Name: "main"}, {Name: "side"}}}
	web.Containers[0].CPU, web.Containers[0].Memory = of(12_345_678, 64<<20)
	web.Containers[1].CPU, web.Containers[1].Memory = of(0, 1<<20)
	young := summary.PodStats{PodRef: summary.PodReference{Namespace: "site", Name: "young"}, Containers: []summary.ContainerStats{{Name: "main"}}}
	s.Pods = []summary.PodStats{young, web}
	return s, w.fails
}

// get returns the answer.
func (w *world) get(method, path string) (code int, answer map[string]any) {
	w.Helper()
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, httptest.NewRequestWithContext(w.Context(), method, path, nil))
	if err := json.Unmarshal(rec.Body.Bytes(), &answer); err != nil {
		w.Fatalf("%s %s: %v: %s", method, path, err, rec.Body)
	}
	return rec.Code, answer
}

// rows are "NAMESPACE/NAME CONTAINER CPU MEMORY" of a list or of one object.
func rows(answer map[string]any) []string {
	items, ok := answer["items"].([]any)
	if !ok {
		items = []any{answer}
	}
	out := []string{}
	for _, item := range items {
		o := item.(map[string]any)
		m := o["metadata"].(map[string]any)
		row := func(container, usage any) {
			u := usage.(map[string]any)
			out = append(out, fmt.Sprintf("%v/%v %v %v %v", m["namespace"], m["name"], container, u["cpu"], u["memory"]))
		}
		if usage := o["usage"]; usage != nil {
			row("-", usage)
			continue
		}
		for _, c := range o["containers"].([]any) {
			row(c.(map[string]any)["name"], c.(map[string]any)["usage"])
		}
	}
	return out
}

func TestUsage(t *testing.T) {
	web := []string{"site/web main 12345678n 64Mi", "site/web side 0 1Mi"}
	node := []string{"<nil>/n - 1500m 4Gi"}
	const base = Prefix + "/v1beta1/"
	w := newWorld(t)
	for path, want := range map[string]struct {
		kind string
		rows []string
	}{
		"nodes":                                {"NodeMetricsList", node},
		"nodes/n":                              {"NodeMetrics", node},
		"nodes?labelSelector=a%3Db":            {"NodeMetricsList", node},
		"nodes?labelSelector=a%3Dc":            {"NodeMetricsList", []string{}},
		"pods":                                 {"PodMetricsList", web},
		"namespaces/site/pods":                 {"PodMetricsList", web},
		"namespaces/other/pods":                {"PodMetricsList", []string{}},
		"namespaces/site/pods/web":             {"PodMetrics", web},
		"pods?labelSelector=app%3Dweb":         {"PodMetricsList", web},
		"pods?labelSelector=app%21%3Dweb":      {"PodMetricsList", []string{}},
		"pods?fieldSelector=metadata.name%3Dx": {"PodMetricsList", []string{}},
	} {
		code, answer := w.get(http.MethodGet, base+path)
		if code != 200 || answer["kind"] != want.kind || answer["apiVersion"] != "metrics.k8s.io/v1beta1" {
			t.Errorf("%s: %d %v", path, code, answer)
			continue
		}
		if diff := cmp.Diff(want.rows, rows(answer)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

// Errors are those of the API.
func TestRefusals(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		method, path string
		code         int
		message      string
	}{
		{"GET", "/v1beta1/nodes/m", 404, `nodemetrics "m" not found`},
		{"GET", "/v1beta1/namespaces/site/pods/young", 404, `podmetrics "site/young" not found`},
		{"GET", "/v1beta1/namespaces/site/pods/web/status", 404, `the server could not find the requested resource (get pods.metrics.k8s.io web)`},
		{"GET", "/v1beta1/services", 404, `the server could not find the requested resource (list services.metrics.k8s.io)`},
		{"GET", "/v1/pods", 404, `the server could not find the requested resource (list pods.metrics.k8s.io)`},
		{"GET", "/v1beta1/pods?watch=true", 405, `watch is not supported on resources of kind "pods.metrics.k8s.io"`},
		{"DELETE", "/v1beta1/nodes/n", 405, `delete is not supported on resources of kind "nodes.metrics.k8s.io"`},
		{"GET", "/v1beta1/pods?labelSelector=a%20b%20c", 400, `unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt`},
	} {
		code, answer := w.get(c.method, Prefix+c.path)
		if code != c.code || answer["message"] != c.message {
			t.Errorf("%s %s: %d %v, want %d %s", c.method, c.path, code, answer["message"], c.code, c.message)
		}
	}
	w = newWorld(t)
	w.fails = errors.New("no cgroups")
	if code, answer := w.get("GET", Prefix+"/v1beta1/pods"); code != 500 || answer["message"] != "Internal error occurred: no cgroups" {
		t.Errorf("when nothing can be read: %d %v", code, answer)
	}
}

func TestDiscovery(t *testing.T) {
	w := newWorld(t)
	if code, answer := w.get("GET", Prefix); code != 200 || answer["kind"] != "APIGroup" || answer["name"] != "metrics.k8s.io" {
		t.Errorf("group: %d %v", code, answer)
	}
	if code, answer := w.get("GET", Prefix+"/v1beta1"); code != 200 || answer["kind"] != "APIResourceList" || len(answer["resources"].([]any)) != 2 {
		t.Errorf("version: %d %v", code, answer)
	}
}

// All who ask within some seconds get one reading, and nothing is read while nobody asks.
func TestOneReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t}
		m := newMeter(w.read)
		began := time.Now()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if _, err := m.measure(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if w.reads != 2 || time.Since(began) != leastWindow {
			t.Errorf("%d readings in %s", w.reads, time.Since(began))
		}
		<-time.After(fresh)
		if w.reads != 2 {
			t.Errorf("%d readings after a while", w.reads)
		}
		if _, err := m.measure(t.Context()); err != nil || w.reads != 4 {
			t.Errorf("%d readings, %v", w.reads, err)
		}
		<-time.After(fresh)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := m.measure(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("of somebody who has gone: %v", err)
		}
	})
}
