package server

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

// FuzzContainerLogsQuery asks for the log of a container that has ended with any query: the answer
// is the log or a part of it, or says what is wrong, and it is never longer than limitBytes.
func FuzzContainerLogsQuery(f *testing.F) {
	for _, query := range []string{
		"", "follow=true", "follow=false&previous=true", "previous=yes", "timestamps=1", "tailLines=0", "tailLines=1&timestamps=true", "tailLines=-1",
		"tailLines=9223372036854775807", "tailLines=9223372036854775808", "tailLines=0x1", "tailLines=1e3", "tailLines=+1", "tailLines=%001",
		"tailLines=1&tailLines=x", "tailLines=x&tailLines=1", "tailLines=", "limitBytes=0", "limitBytes=1", "limitBytes=-1", "limitBytes=9223372036854775807",
		"limitBytes=3&follow=true", "sinceSeconds=0", "sinceSeconds=1", "sinceSeconds=-9223372036854775808", "sinceSeconds=9223372036854775807",
		"sinceTime=2026-01-01T00:00:00Z", "sinceTime=0000-01-01T00:00:00Z", "sinceTime=9999-12-31T23:59:59Z", "sinceTime=2026-01-01",
		"sinceTime=2026-01-01T00:00:00.999999999%2B23:59", "sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", "stream=All", "stream=Stdout", "stream=Stderr",
		"stream=stdout", "stream=../../etc/passwd", "stream=", "container=../../etc/passwd", "tailLines=1;limitBytes=1", "%zz=1", "=&=&==", "a=b&c",
		strings.Repeat("tailLines=1&", 2000),
	} {
		f.Add(query)
	}
	path := filepath.Join(f.TempDir(), "0.log")
	const written = "2026-01-02T03:04:05.000000006Z stdout F one\n2026-01-02T03:04:05.000000007Z stderr P tw\n2026-01-02T03:04:05.000000008Z stderr F o\n2026-01-02T03:04:06Z stdout F three\n"
	if err := os.WriteFile(path, []byte(written), 0o600); err != nil {
		f.Fatal(err)
	}
	ended := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "1"},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main"}}},
		Status: v1.PodStatus{Phase: v1.PodSucceeded, ContainerStatuses: []v1.ContainerStatus{{
			Name: "main", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: "fake://c1"}},
		}}},
	}
	l := logHandlers{out: testResponder(), files: func(pod.UID, pod.ContainerID) (string, error) { return path, nil }, pods: podFinder{pods: Pods{
		List:      func() []*v1.Pod { return []*v1.Pod{ended} },
		Get:       func(pod.UID) (*v1.Pod, bool) { return ended, true },
		Subscribe: func() (*pod.Inbox[pod.UID], func()) { return pod.NewInbox[pod.UID](), func() {} },
	}}}
	mux := http.NewServeMux()
	l.route(mux)
	f.Fuzz(func(t *testing.T, query string) {
		r := httptest.NewRequest(http.MethodGet, PathContainerLogs+"/default/web/main", nil)
		r.URL.RawQuery = query
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		body, err := io.ReadAll(w.Result().Body)
		if err != nil {
			t.Fatal(err)
		}
		switch w.Code {
		case http.StatusBadRequest, http.StatusUnprocessableEntity:
			if len(body) == 0 {
				t.Errorf("%q is refused with %d and no word", query, w.Code)
			}
			return
		case http.StatusOK:
		default:
			t.Fatalf("%q is answered with %d: %s", query, w.Code, body)
		}
		if why := w.Result().Trailer.Get(LogErrorTrailer); why != "" {
			t.Errorf("%q: the log breaks off: %s", query, why)
		}
		values, _ := url.ParseQuery(query) // as the server does, which takes what it understands
		if limit, err := strconv.Atoi(values.Get("limitBytes")); err == nil && len(body) > limit {
			t.Errorf("%q: %d bytes", query, len(body))
		}
		if lines := bytes.Count(body, []byte("\n")); lines > strings.Count(written, "\n") {
			t.Errorf("%q: %d lines of %d", query, lines, strings.Count(written, "\n"))
		}
	})
}
