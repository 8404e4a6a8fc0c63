//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// controlPlane is a control plane in a folder of its own.
type controlPlane struct {
	t      *testing.T
	ctx    context.Context // done when the test has taken too long
	binary string
	dir    string
}

func newControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	return newControlPlaneFor(t, testLimit)
}

// newControlPlaneFor is newControlPlane for a test that may take longer than others.
func newControlPlaneFor(t *testing.T, limit time.Duration) *controlPlane {
	t.Helper()
	binary := os.Getenv("CONTROLPLANE")
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("CONTROLPLANE must name the control plane for tests, as make e2e does: %v", err)
	}
	parent, err := os.MkdirTemp("/tmp", "bc") // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("the test took longer than %v", limit))
	c := &controlPlane{t: t, ctx: ctx, binary: binary, dir: parent + "/plane"}
	t.Cleanup(func() {
		cancel()
		if t.Failed() {
			c.tell()
		}
		if out, err := exec.Command(binary, "down", "--rm", "--dir", c.dir).CombinedOutput(); err != nil {
			t.Errorf("clean up: %v: %s", err, out)
		}
		if err := os.RemoveAll(parent); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return c
}

// tell writes what a failure is understood from.
func (c *controlPlane) tell() {
	logs, _ := filepath.Glob(c.dir + "/logs/*")
	for _, file := range logs {
		b, err := os.ReadFile(file)
		if more := len(b) - 2<<10; more > 0 {
			b = b[more:]
		}
		c.t.Logf("%s: %v\n%s", file, err, b)
	}
}

// foreground is a control plane that ends with its standard input, which is closed when the test
// program ends in whatever way.
type foreground struct {
	*exec.Cmd
	stdin  io.Closer
	stderr *bytes.Buffer
}

// up starts the control plane and returns when it is ready.
func (c *controlPlane) up(flags ...string) foreground {
	c.t.Helper()
	cmd := exec.CommandContext(c.ctx, c.binary, append([]string{"up", "--stdin", "--rm", "--dir", c.dir}, flags...)...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if want := fmt.Sprintf("export KUBECONFIG='%s/admin.kubeconfig'\n", c.dir); line != want {
		c.t.Fatalf("up says %q (%v), want %q; %v\n%s", line, err, want, cmd.Wait(), &stderr)
	}
	return foreground{Cmd: cmd, stdin: stdin, stderr: &stderr}
}

// run runs a command of the control plane's program and returns what it prints.
func (c *controlPlane) run(stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(c.ctx, c.binary, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%q: %w: %s", cmd.Args, err, &stderr)
	}
	return string(out), nil
}

// kubectl runs kubectl as the user of a kubeconfig; objects are its standard input.
func (c *controlPlane) kubectl(as, objects string, args ...string) (string, error) {
	return c.run(objects, append([]string{"kubectl", "--kubeconfig", c.dir + "/" + as + ".kubeconfig"}, args...)...)
}

// mustKubectl is kubectl as the administrator, without an error.
func (c *controlPlane) mustKubectl(objects string, args ...string) string {
	c.t.Helper()
	out, err := c.kubectl("admin", objects, args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *controlPlane) must(args ...string) {
	c.t.Helper()
	if _, err := c.run("", append(args, "--dir", c.dir)...); err != nil {
		c.t.Fatal(err)
	}
}

func (c *controlPlane) pod(namespace, name string) *v1.Pod {
	c.t.Helper()
	var p v1.Pod
	if err := json.Unmarshal([]byte(c.mustKubectl("", "get", "pod", "-n", namespace, name, "-o", "json")), &p); err != nil {
		c.t.Fatal(err)
	}
	return &p
}

// processes are the command lines, by pid, of all that has to do with the folder.
func (c *controlPlane) processes() map[int]string {
	c.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		c.t.Fatal(err)
	}
	found := map[int]string{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended meanwhile
		}
		if err != nil {
			c.t.Fatal(err)
		}
		if line := strings.ReplaceAll(string(b), "\x00", " "); strings.Contains(line, c.dir) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				c.t.Fatal(err)
			}
			found[pid] = line
		}
	}
	return found
}

var portFlag = regexp.MustCompile(`--[a-z-]+(?:=https://127\.0\.0\.1:|-port=)([1-9][0-9]*)`)

// portsOf are those that the processes listen on, as they are told.
func portsOf(processes map[int]string) []string {
	var found []string
	for _, line := range processes {
		for _, m := range portFlag.FindAllStringSubmatch(line, -1) {
			found = append(found, m[1])
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func TestControlPlane(t *testing.T) {
	t.Parallel()
	c := newControlPlane(t)
	up := c.up("--node", "here")
	processes := c.processes()
	listening := portsOf(processes)
	if len(processes) != 5 || len(listening) != 3 {
		t.Errorf("there are the ports %q and the processes %v, want 3 and 5", listening, processes)
	}

	var version struct {
		ClientVersion, ServerVersion struct{ Major, Minor, GitVersion string }
	}
	if err := json.Unmarshal([]byte(c.mustKubectl("", "version", "-o", "json")), &version); err != nil {
		t.Fatal(err)
	}
	if s := version.ServerVersion; s != version.ClientVersion || !strings.HasPrefix(s.GitVersion, "v"+s.Major+"."+s.Minor+".") || s.Major != "1" {
		t.Errorf("the versions are %+v", version)
	}

	// A pod waits for a node.
	c.mustKubectl("", "create", "namespace", "story")
	until(t, "the ServiceAccount of a new namespace", func() bool {
		_, err := c.kubectl("admin", "", "get", "serviceaccount", "-n", "story", "default")
		return err == nil
	})
	c.mustKubectl(manifest("web"), "create", "-n", "story", "-f", "-")
	until(t, "the scheduler to look at the pod", func() bool {
		return slices.ContainsFunc(c.pod("story", "web").Status.Conditions, func(cond v1.PodCondition) bool {
			return cond.Type == v1.PodScheduled && cond.Reason == v1.PodReasonUnschedulable
		})
	})
	if p := c.pod("story", "web"); p.Status.Phase != v1.PodPending || p.Spec.NodeName != "" || p.Spec.ServiceAccountName != "default" {
		t.Errorf("the pod is %s on node %q with the ServiceAccount %q", p.Status.Phase, p.Spec.NodeName, p.Spec.ServiceAccountName)
	}

	// The node may register itself, and nobody else.
	const node = `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": %q}, "status": {
		"capacity": {"cpu": "1", "memory": "1Gi", "pods": "10"}, "allocatable": {"cpu": "1", "memory": "1Gi", "pods": "10"},
		"conditions": [{"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": %q}]}}`
	now := time.Now().UTC().Format(time.RFC3339)
	if _, err := c.kubectl("node-here", fmt.Sprintf(node, "elsewhere", now), "create", "-f", "-"); err == nil || !strings.Contains(err.Error(), "is not allowed to modify node") {
		t.Errorf("the node registers another: %v", err)
	}
	if _, err := c.kubectl("node-here", fmt.Sprintf(node, "here", now), "create", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	until(t, "the pod to be scheduled", func() bool { return c.pod("story", "web").Spec.NodeName == "here" })

	// An outage: the same server at the same address, with what it had.
	c.must("stop-apiserver")
	if _, err := c.kubectl("admin", "", "get", "nodes", "--request-timeout=5s"); err == nil {
		t.Error("the API server answers, although it was stopped")
	}
	if got := len(c.processes()); got != 4 {
		t.Errorf("without the API server there are %d processes, want 4", got)
	}
	c.must("start-apiserver")
	if p := c.pod("story", "web"); p.Spec.NodeName != "here" {
		t.Errorf("after the outage the pod is on node %q", p.Spec.NodeName)
	}
	// The others find it again.
	c.mustKubectl("", "create", "namespace", "later")
	until(t, "the ServiceAccount of a namespace made after the outage", func() bool {
		_, err := c.kubectl("admin", "", "get", "serviceaccount", "-n", "later", "default")
		return err == nil
	})

	if err := up.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := up.Wait(); err != nil {
		t.Errorf("up ended: %v\n%s", err, up.stderr)
	}
	c.wantNothingLeft(listening)
}

// However it ends, its components end with it.
func TestControlPlaneEnds(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*controlPlane) (end func()){
		"in the background, by down": func(c *controlPlane) func() {
			c.must("up", "--detach")
			return func() { c.must("down", "--rm") }
		},
		"killed": func(c *controlPlane) func() {
			c.must("up", "--detach")
			return func() {
				c.kill()
				until(c.t, "the components to die", func() bool { return len(c.processes()) == 0 })
				c.must("down", "--rm")
			}
		},
		"with its standard input": func(c *controlPlane) func() {
			up := c.up()
			return func() {
				if err := errors.Join(up.stdin.Close(), up.Wait()); err != nil {
					c.t.Errorf("up ended: %v\n%s", err, up.stderr)
				}
			}
		},
	}
	for name, start := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newControlPlane(t)
			end := start(c)
			c.must("status")
			listening := portsOf(c.processes())
			end()
			c.wantNothingLeft(listening)
		})
	}
}

// kill kills the process that the others belong to.
func (c *controlPlane) kill() {
	c.t.Helper()
	for pid, line := range c.processes() {
		if strings.Contains(line, " up ") {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				c.t.Fatal(err)
			}
			return
		}
	}
	c.t.Fatal("there is no process to kill")
}

func (c *controlPlane) wantNothingLeft(ports []string) {
	c.t.Helper()
	if left := c.processes(); len(left) > 0 {
		c.t.Errorf("processes are left: %v", left)
	}
	for _, port := range ports {
		// A process that is killed has no command line any more while its last threads still hold
		// what it had open.
		until(c.t, "port "+port+" to be free", func() bool {
			l, err := net.Listen("tcp", "127.0.0.1:"+port)
			return err == nil && l.Close() == nil
		})
	}
	if _, err := os.Stat(c.dir); !errors.Is(err, fs.ErrNotExist) {
		c.t.Errorf("the folder is left: %v", err)
	}
}
