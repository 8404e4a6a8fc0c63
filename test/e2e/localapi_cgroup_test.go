//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/host/cgroups"
)

// apiserverCgroup is how the cgroup of an API writer begins.
const apiserverCgroup = "berth-apiserver-"

// apiserverCgroups are the cgroups of the node's API writers.
func (n *node) apiserverCgroups() []string {
	n.t.Helper()
	var all []string
	for _, hierarchy := range []string{cgroupMount, cgroupMount + "/*"} {
		found, err := filepath.Glob(filepath.Join(hierarchy, n.place.Cgroup, apiserverCgroup+"*"))
		must(n.t, err)
		all = append(all, found...)
	}
	return all
}

// onlyRegistry is the cgroup of the only program, and the process in it.
func (n apiNode) onlyRegistry() (dir string, pid int) {
	n.t.Helper()
	all := n.apiserverCgroups()
	if len(all) != 1 {
		n.t.Fatalf("cgroups of programs: %v, want one", all)
	}
	procs, err := os.ReadFile(filepath.Join(all[0], "cgroup.procs"))
	must(n.t, err)
	if pid, err = strconv.Atoi(strings.TrimSpace(string(procs))); err != nil {
		n.t.Fatalf("processes of %s: %q, want one", all[0], procs)
	}
	return all[0], pid
}

// untilNoRegistry waits until there is no cgroup of a program.
func (n apiNode) untilNoRegistry(when string) {
	n.t.Helper()
	until(n.t, "no cgroup to be left "+when, func() bool { return len(n.apiserverCgroups()) == 0 })
}

// The program that judges what is written runs in a cgroup of its own with a limit of memory, which
// goes with it: when it dies, when its agent ends, and when that was killed.
func TestLocalAPICgroup(t *testing.T) {
	t.Parallel()
	n := newAPINode(t)
	a := n.start()
	n.kubectl("create", "configmap", "one")
	dir, pid := n.onlyRegistry()
	file, want := "memory.max", "268435456"
	if version, _ := cgroups.Detect(); version == 1 {
		file = "memory.limit_in_bytes"
	}
	if got, err := os.ReadFile(filepath.Join(dir, file)); err != nil || strings.TrimSpace(string(got)) != want {
		t.Errorf("the limit is %q, %v; want %s", got, err, want)
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || filepath.Base(exe) != "apiserver" {
		t.Errorf("in the cgroup is %q, %v", exe, err)
	}
	// The thread that started it was there, too, and is gone.
	if tasks, err := os.ReadFile(filepath.Join(dir, "tasks")); err == nil {
		for _, task := range strings.Fields(string(tasks)) {
			if !exists(t, fmt.Sprintf("/proc/%d/task/%s", pid, task)) {
				t.Errorf("task %s in the cgroup is not the program's", task)
			}
		}
	}

	must(t, unix.Kill(pid, unix.SIGKILL))
	n.untilNoRegistry("after the program died")
	n.kubectl("create", "configmap", "two")
	n.onlyRegistry()

	a.kill()
	a = n.start()
	n.untilNoRegistry("after the agent was killed")
	n.kubectl("create", "configmap", "three")
	n.onlyRegistry()
	a.end(unix.SIGTERM)
	if left := n.apiserverCgroups(); len(left) != 0 {
		t.Errorf("after the end of the agent there are %v", left)
	}

	a = n.start()
	n.kubectl("create", "configmap", "four")
	n.onlyRegistry()
	a.kill()
	n.berth("stop", "--all") // without an agent
	if left := n.apiserverCgroups(); len(left) != 0 {
		t.Errorf("after berth stop --all without an agent there are %v", left)
	}
}

// A program that takes more memory than it may is killed, which who has asked is told. Pods, the
// agent and readers do not notice, and the next request is answered.
func TestLocalAPIMemory(t *testing.T) {
	t.Parallel()
	n := newAPINode(t)
	n.start()
	n.kubectl("run", "web", "--image", helloImage, "--", "serve")
	n.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=30s")
	before := n.kubectl("get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}")

	var killed atomic.Bool
	var answer atomic.Value
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			for round := 0; round < 10 && !killed.Load(); round++ {
				code, header, body := n.apply(fmt.Sprintf("large-%d-%d", i, round), 40000)
				if code == http.StatusServiceUnavailable && strings.Contains(body, "more than 256 MiB") {
					answer.Store(body + " Retry-After: " + header.Get("Retry-After"))
					killed.Store(true)
				}
			}
		})
	}
	all.Wait()
	if !killed.Load() {
		t.Fatal("the program was not killed for its memory")
	}
	wantText(t, "the answer", answer.Load().(string), `"code":503`, "Retry-After: 1")
	after := n.kubectl("get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}")
	if after != before {
		t.Errorf("the container was %s, and is %s", before, after)
	}
	wantText(t, "the page of web", n.forwarded("web"), "Hello from web")
	if events := n.kubectl("get", "events", "-A"); strings.Contains(events, "SystemOOM") {
		t.Errorf("the node is said to have no memory left:\n%s", events)
	}
	n.kubectl("create", "configmap", "small")
}

// apply applies a ConfigMap of so many keys by the agent's socket, each of them its own field.
func (n apiNode) apply(name string, keys int) (code int, header http.Header, body string) {
	n.t.Helper()
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{`, name)
	for i := range keys {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"key-%d":"v"`, i)
	}
	b.WriteString("}}")
	q, err := http.NewRequestWithContext(n.ctx, http.MethodPatch, "http://local/api/v1/namespaces/default/configmaps/"+name+"?fieldManager=test", &b)
	must(n.t, err)
	q.Header.Set("Content-Type", "application/apply-patch+yaml")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: n.dialAPI}}
	r, err := client.Do(q)
	if err != nil {
		n.t.Error(err)
		return 0, nil, ""
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		n.t.Error(err)
	}
	return r.StatusCode, r.Header, string(text)
}
