//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The node's own logs, through the API server: files, and the query of services that log to files.
// A host without a journal has those alone.
func TestClusterNodeLogs(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.configure("enableSystemLogQuery: true\n")
	c.startMember()
	c.create(c.helloPod("web", "serve"))
	c.awaitAPIReady("web")
	service := "berth-" + c.namespace
	file := filepath.Join("/var/log", service+".log")
	t.Cleanup(func() {
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(file, []byte("one\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	logs := "/api/v1/nodes/" + c.name + "/proxy/logs/"
	wantText(t, "the list of /var/log", c.kubectl("get", "--raw", logs), `<a href="`+service+`.log">`)
	for path, want := range map[string]string{
		service + ".log": "one\ntwo\nthree\n",
		"?query=" + service + "&tailLines=2&pattern=o": "one\ntwo\n",
		"?query=/" + service + ".log&tailLines=1":      "three\n",
	} {
		if got := c.kubectl("get", "--raw", logs+path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}

	admin, secure := c.certificateOf("admin"), fmt.Sprintf("https://127.0.0.1:%d", c.port)
	for path, want := range map[string]int{
		"/logs/?query=" + service + "&boot=0":    http.StatusNotAcceptable,
		"/logs/?query=" + service + "&boot=x":    http.StatusBadRequest,
		"/logs/?query=berth-nothing-of-the-kind": http.StatusNotFound,
		"/logs/%2e%2e/%2e%2e/etc/passwd":         http.StatusNotFound,
		"/logs/?query=/../../etc/passwd":         http.StatusNotAcceptable,
		"/debug/pprof/goroutine?debug=1":         http.StatusOK,
	} {
		if code, body := c.ask(admin, secure+path); code != want {
			t.Errorf("%s: %d %.200s, want %d", path, code, body, want)
		}
	}

	// A runtime without CRIU says so, and nothing is left of it; one that has it makes an archive.
	path := "/checkpoint/" + c.namespace + "/web/main"
	code, body := c.send(admin, http.MethodPost, secure+path, "")
	switch folder := filepath.Join(c.place.Root, "checkpoints"); code {
	case http.StatusOK:
		wantText(t, path, body, folder+"/checkpoint-web_"+c.namespace+"-main-")
	case http.StatusInternalServerError:
		wantText(t, path, body, "checkpoint of "+c.namespace+"/web/main: ", "criu")
	default:
		t.Errorf("%s: %d %s", path, code, body)
	}

	if code, body := c.send(admin, http.MethodPut, secure+"/debug/flags/v", "5"); code != http.StatusOK || !strings.Contains(body, "successfully set klog.logging.verbosity to 5") {
		t.Errorf("/debug/flags/v: %d %s", code, body)
	}
}
