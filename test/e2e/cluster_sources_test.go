//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// manifestServer is an HTTP source whose answer the test sets.
type manifestServer struct {
	*httptest.Server
	mu   sync.Mutex
	code int
	body string
	seen int // requests
}

func newManifestServer(t *testing.T) *manifestServer {
	s := &manifestServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen++
		w.WriteHeader(s.code)
		_, _ = w.Write([]byte(s.body)) // a client that is gone is no harm
	}))
	t.Cleanup(s.Close)
	return s
}

// answer sets the answer; the returned function reports whether it has been given.
func (s *manifestServer) answer(code int, body string) (given func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.code, s.body = code, body
	before := s.seen
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.seen > before+1 // the first may have begun before
	}
}

func podList(items ...string) string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: PodList\nitems:\n")
	for _, m := range items {
		b.WriteString("- " + strings.ReplaceAll(strings.TrimSpace(m), "\n", "\n  ") + "\n")
	}
	return b.String()
}

// Pods from a folder, a URL and the API server run side by side. Whatever a source answers while it
// is out of order, and whenever the agent is killed, no pod is lost, none is there twice, and no
// container is restarted.
func TestClusterSources(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	l := c.viaLink()
	web := newManifestServer(t)
	c.configure(fmt.Sprintf("staticPodURL: %s/pods\nhttpCheckFrequency: 1s\nfileCheckFrequency: 1s\n", web.URL))
	inNamespace := func(m string) string {
		return strings.Replace(m, "metadata:\n", "metadata:\n  namespace: "+c.namespace+"\n", 1)
	}
	fromFile, one, two := inNamespace(manifest("file", "serve")), inNamespace(manifest("one", "serve", "-port", "8081")), inNamespace(manifest("two", "serve", "-port", "8082"))
	c.write("file.yaml", fromFile)
	web.answer(http.StatusOK, podList(one, two))
	a := c.startMember()
	c.create(c.helloPod("api", "serve", "-port", "8083"))
	names := []string{"file-" + c.name, "one-" + c.name, "two-" + c.name, "api"}
	before := c.awaitAPIReady(names...)
	began, bodies := lives(before), c.bodies(before)

	same := func(what string) {
		t.Helper()
		now := c.awaitReady(names...)
		if len(now) != len(names) {
			t.Errorf("%s: there are %d pods, want %d", what, len(now), len(names))
		}
		if diff := cmp.Diff(began, lives(now)); diff != "" {
			t.Errorf("%s the containers changed (-before +after):\n%s", what, diff)
		}
		if diff := cmp.Diff(bodies, c.bodies(now)); diff != "" {
			t.Errorf("%s the processes changed (-before +after):\n%s", what, diff)
		}
	}
	restart := func(what string) {
		t.Helper()
		a.kill()
		a = c.startKubelet()
		same(what + ", and the agent was killed and started,")
	}
	for _, bad := range []struct {
		what string
		code int
		body string
	}{
		{"the URL answers 500", http.StatusInternalServerError, podList()},
		{"the URL answers nothing", http.StatusOK, ""},
		{"the URL answers what is no manifest", http.StatusOK, "<html>moved</html>"},
		{"the URL answers a pod that is not valid", http.StatusOK, podList(one, strings.Replace(two, "name: main", "name: Main_", 1))},
	} {
		given := web.answer(bad.code, bad.body)
		until(t, bad.what, given)
		same(bad.what)
		restart(bad.what)
	}
	until(t, "the URL to be well again", web.answer(http.StatusOK, podList(one, two)))
	same("the URL is well again")

	c.write("file.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: [")
	until(t, "the refusal of the file", func() bool {
		return strings.Contains(c.command(c.ctx, "explain", "--all", "file.yaml").out, "file.yaml")
	})
	same("the file is broken")
	restart("the file is broken")
	c.write("file.yaml", fromFile)
	same("the file is mended")

	l.cut()
	same("the API server is away")
	a.kill()
	a = c.startKubelet()
	c.awaitReady(names[:3]...)
	// Of the API's pod this agent has not heard yet, and leaves it alone.
	c.stays("everything runs", 3*time.Second, func() bool {
		now, err := c.list(c.ctx)
		return err == nil && now.ready(names[:3]...) && cmp.Equal(bodies, c.bodies(before))
	})
	l.mend()
	c.awaitAPIReady(names...)
	same("the API server is back")

	// What a source no longer has goes, and nothing else.
	web.answer(http.StatusOK, podList(two))
	c.remove("file.yaml")
	c.kubectl("delete", "pod", "api", "--wait=false")
	left := c.await("three pods to go", func(p pods) bool { return len(p) == 1 && p.ready("two-"+c.name) })
	if got := lives(left); !cmp.Equal(got["two-"+c.name+"/main"], began["two-"+c.name+"/main"]) {
		t.Errorf("the pod that stays changed: %v", got)
	}
	web.answer(http.StatusOK, podList())
	c.await("the last pod to go", func(p pods) bool { return len(p) == 0 })
	c.awaitAPI("all pods to go from the API", func(p pods) bool { return !slices.ContainsFunc(p, isReady) && len(p) == 0 })
}
