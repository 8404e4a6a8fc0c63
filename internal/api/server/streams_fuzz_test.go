package server

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// pickyRuntime fails the test when it is asked for what no request may ask for, and refuses
// everything.
type pickyRuntime struct{ t *testing.T }

var errRefusedByRuntime = errors.New("the runtime refuses")

func (r pickyRuntime) check(id string, sound bool) error {
	if id != "c1" && id != "sb" || !sound {
		r.t.Errorf("the runtime is asked for %q, soundly: %v", id, sound)
	}
	return errRefusedByRuntime
}

func (r pickyRuntime) Exec(_ context.Context, q *runtimeapi.ExecRequest) (string, error) {
	return "", r.check(q.ContainerId, len(q.Cmd) > 0 && (q.Stdin || q.Stdout || q.Stderr) && !(q.Tty && q.Stderr))
}

func (r pickyRuntime) Attach(_ context.Context, q *runtimeapi.AttachRequest) (string, error) {
	return "", r.check(q.ContainerId, (q.Stdin || q.Stdout || q.Stderr) && !(q.Tty && q.Stderr))
}

func (r pickyRuntime) PortForward(_ context.Context, q *runtimeapi.PortForwardRequest) (string, error) {
	wrong := func(port int32) bool { return port < 1 || port > 65535 }
	return "", r.check(q.PodSandboxId, len(q.Port) <= maxForwardedPorts && !slices.ContainsFunc(q.Port, wrong))
}

func (r pickyRuntime) ExecSync(_ context.Context, q *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return nil, r.check(q.ContainerId, len(q.Cmd) > 0)
}

func (r pickyRuntime) CheckpointContainer(_ context.Context, q *runtimeapi.CheckpointContainerRequest) error {
	return r.check(q.ContainerId, q.Timeout >= 0 && q.Timeout <= maxCheckpointSeconds)
}

// FuzzStreamQueries enters a container that runs with any query: it is refused for what is wrong
// with it, or the runtime is asked for something that makes sense.
func FuzzStreamQueries(f *testing.F) {
	for _, query := range []string{
		"", "command=ls&output=1", "command=&output=true", "command=a&command=b&input=1&tty=1&error=1", "command=%00&error=1", "output=1;command=ls", "input=2",
		"input=1&input=0", "tty=1", "command=ls&output=TRUE", "%zz=1", "port=80", "port=0", "port=65536", "port=-1", "port=1e3", "port=80,81&port=82", "port=,", "port=",
		"port=" + strings.Repeat("1,", 1000) + "1", "cmd=ls+-l", "cmd=", "cmd=%09%0a", "cmd=a;b", "timeout=0", "timeout=-1", "timeout=3600", "timeout=3601",
		"timeout=9223372036854775808", "timeout=1s", "=&=&==", strings.Repeat("command=a&", 2000) + "output=1",
	} {
		f.Add(query)
	}
	runs := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}}}
	observed := &pod.Status{
		UID: "1", Sandboxes: []pod.SandboxStatus{{ID: "sb", Ready: true}}, Containers: []pod.ContainerStatus{{ID: "c1", Name: "main", State: pod.StateRunning}},
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, query string) {
		runtime := pickyRuntime{t}
		finder := podFinder{
			Pods{List: func() []*v1.Pod { return []*v1.Pod{runs} }, Get: func(pod.UID) (*v1.Pod, bool) { return runs, true }},
			func(pod.UID) (*pod.Status, bool) { return observed, true },
		}
		mux := http.NewServeMux()
		streamHandlers{out: testResponder(), pods: finder, streams: Streams{Runtime: runtime}}.route(mux)
		checkpointHandlers{testResponder(), finder, Checkpoints{Runtime: runtime, Dir: dir}}.route(mux)
		for _, path := range []string{
			PathExec + "/default/web/main", PathAttach + "/default/web/main", PathPortForward + "/default/web", PathRun + "/default/web/main", PathCheckpoint + "/default/web/main",
		} {
			r := httptest.NewRequest(http.MethodPost, path, nil)
			r.URL.RawQuery = query
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, r)
			refused := w.Code == http.StatusInternalServerError && strings.Contains(w.Body.String(), errRefusedByRuntime.Error())
			if !refused && (w.Code != http.StatusBadRequest || w.Body.Len() == 0) {
				t.Errorf("%s?%s is answered with %d: %s", path, url.QueryEscape(query), w.Code, w.Body)
			}
		}
	})
}
