//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"berth/internal/record/journal"
)

// testLimit bounds each test of the agent, its clean-up apart.
var testLimit = patience(5 * time.Minute)

// patience is a limit of waiting on this machine: an emulated one says by BERTH_SLOWER how many
// times slower than others it is.
func patience(limit time.Duration) time.Duration {
	slower, _ := strconv.Atoi(os.Getenv("BERTH_SLOWER")) // 0 when unset
	return limit * time.Duration(max(slower, 1))
}

// node is what an agent has for itself, and outlives the agents that run on it one after the other:
// folders, a cgroup, a network.
type node struct {
	t      *testing.T
	ctx    context.Context // done when the test has taken too long
	place  place
	binary string
	flags  []string // of berth run, besides the folders
	agents int
	conn   *grpc.ClientConn // to the runtime; nil before it is asked
}

// place says where on the host a node lives.
type place struct {
	Dir    string `json:"dir"`  // everything but the cgroup is below
	Root   string `json:"root"` // the agent's root directory
	Run    string `json:"run"`  // the agent's run directory
	Cgroup string `json:"cgroup"`
}

var nodes atomic.Int32

// newNode makes a node that is gone when the test ends, whatever becomes of the test. Nodes share
// nothing but the machine, so that tests of them run side by side.
func newNode(t *testing.T) *node {
	t.Helper()
	return newNodeFor(t, testLimit)
}

// newNodeFor makes a node for a test that may take longer than others.
func newNodeFor(t *testing.T, limit time.Duration) *node {
	t.Helper()
	n := &node{t: t, binary: os.Getenv("BERTH")}
	if _, err := os.Stat(n.binary); err != nil {
		t.Fatalf("BERTH must name the program under test, as make e2e does: %v", err)
	}
	// Short names: t.TempDir is too long for the path of a socket.
	dir, err := os.MkdirTemp("/tmp", "ba")
	if err != nil {
		t.Fatal(err)
	}
	n.place = place{Dir: dir, Root: dir + "/root", Run: dir + "/run", Cgroup: fmt.Sprintf("/berth-e2e-%d-%d", os.Getpid(), nodes.Add(1))}
	if driver := os.Getenv("BERTH_CGROUP_DRIVER"); driver != "" {
		n.flags = []string{"--cgroup-driver", driver}
	}
	n.flags = append(n.flags, handlerFlags()...)
	n.flags = append(n.flags, "--local-api-address", "127.0.0.1:0") // nodes share the machine
	forget, err := remember(n.place)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("the test took longer than %v", limit))
	n.ctx = ctx
	t.Cleanup(func() {
		cancel()
		if t.Failed() {
			n.tell()
		}
		if err := sweep(n.place); err != nil {
			t.Errorf("clean up: %v", err)
		} else {
			forget()
		}
	})
	if err := os.Mkdir(n.manifests(), 0o755); err != nil {
		t.Fatal(err)
	}
	return n
}

// handlerFlags name the runtime's handler for pods that name no RuntimeClass, if the tests are run
// for one.
func handlerFlags() []string {
	if handler := os.Getenv("BERTH_RUNTIME_HANDLER"); handler != "" {
		return []string{"--runtime-handler", handler}
	}
	return nil
}

func (n *node) manifests() string { return n.place.Dir + "/manifests" }
func (n *node) podLogs() string   { return n.place.Dir + "/logs" }
func (n *node) logLinks() string  { return n.place.Dir + "/links" }

// tell writes what a failure is understood from.
func (n *node) tell() {
	logs, _ := filepath.Glob(n.place.Dir + "/agent-*")
	for _, file := range append(logs, n.place.Root+"/runtime/containerd.log") {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if more := len(b) - 16<<10; more > 0 {
			b = append(fmt.Appendf(nil, "[%d bytes]…", more), b[more:]...)
		}
		n.t.Logf("%s:\n%s", file, b)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	pods, err := n.list(ctx)
	if err != nil {
		n.t.Logf("no agent answers: %v", err)
	}
	for _, p := range pods {
		status, err := json.Marshal(p.Status)
		n.t.Logf("pod %s/%s %s: %s (%v)", p.Namespace, p.Name, p.UID, status, err)
		n.t.Logf("%s", n.command(ctx, "explain", "--all", p.Namespace+"/"+p.Name))
	}
}

// write puts a manifest into the folder, or replaces it, in one step: there is no moment at which
// it is half there.
func (n *node) write(name, content string) {
	n.t.Helper()
	next := filepath.Join(n.manifests(), "."+name)
	if err := os.WriteFile(next, []byte(content), 0o644); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(n.manifests(), name)); err != nil {
		n.t.Fatal(err)
	}
}

// remove takes a manifest out of the folder.
func (n *node) remove(name string) {
	n.t.Helper()
	if err := os.Remove(filepath.Join(n.manifests(), name)); err != nil {
		n.t.Fatal(err)
	}
}

// manifest is a pod with one container, main, that runs the hello image with the arguments.
func manifest(name string, args ...string) string {
	list, err := json.Marshal(args)
	if err != nil {
		panic(err) // strings can be written
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %s
spec:
  containers:
  - name: main
    image: %s
    args: %s
`, name, helloImage, list)
}

// agent is one process of berth run. Its output goes to files, so that neither a full pipe nor our
// end disturbs it.
type agent struct {
	n        *node
	cmd      *exec.Cmd
	out, log string // files of its standard output and standard error
	ended    chan struct{}
}

// launch starts an agent over the node's manifests and does not wait for anything.
func (n *node) launch(flags ...string) *agent {
	n.t.Helper()
	a := n.newAgent(flags...)
	out, err := os.Create(a.out)
	if err != nil {
		n.t.Fatal(err)
	}
	defer out.Close()
	log, err := os.Create(a.log)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	a.cmd.Stdout, a.cmd.Stderr = out, log
	// A group of its own: an interrupt of the tests at a terminal is not one of the agent.
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	a.run()
	return a
}

// newAgent is an agent that is not started, over the node's manifests.
func (n *node) newAgent(flags ...string) *agent {
	n.agents++
	args := []string{
		"run", "--root-dir", n.place.Root, "--run-dir", n.place.Run, "--cgroup-root", n.place.Cgroup,
		"--pod-logs-dir", n.podLogs(), "--container-logs-dir", n.logLinks(),
	}
	args = append(append(append(args, n.flags...), flags...), n.manifests())
	return &agent{
		n: n, cmd: exec.Command(n.binary, args...), ended: make(chan struct{}),
		out: fmt.Sprintf("%s/agent-%d.out", n.place.Dir, n.agents),
		log: fmt.Sprintf("%s/agent-%d.log", n.place.Dir, n.agents),
	}
}

// run starts the process.
func (a *agent) run() {
	a.n.t.Helper()
	if err := a.cmd.Start(); err != nil {
		a.n.t.Fatal(err)
	}
	go func() {
		_ = a.cmd.Wait() // the state tells more
		close(a.ended)
	}()
}

// start starts an agent and returns when it answers.
func (n *node) start(flags ...string) *agent {
	n.t.Helper()
	a := n.launch(flags...)
	until(n.t, "the agent to answer", func() bool {
		select {
		case <-a.ended:
			n.t.Fatalf("the agent ended at its start, %v:\n%s", a.cmd.ProcessState, a.said())
		default:
		}
		_, err := n.list(n.ctx)
		return err == nil
	})
	return a
}

// wait waits for the agent's end and returns its exit code, -1 if a signal ended it.
func (a *agent) wait() int {
	a.n.t.Helper()
	select {
	case <-a.ended:
	case <-a.n.ctx.Done():
		a.n.t.Fatalf("the agent does not end: %v", context.Cause(a.n.ctx))
	}
	return a.cmd.ProcessState.ExitCode()
}

// end ends the agent by a signal that it can obey, and returns when it has.
func (a *agent) end(signal unix.Signal) {
	a.n.t.Helper()
	if err := a.cmd.Process.Signal(signal); err != nil {
		a.n.t.Fatal(err)
	}
	if code := a.wait(); code != 0 {
		a.n.t.Fatalf("the agent ended with code %d at the signal %v, want 0:\n%s", code, signal, a.said())
	}
}

// kill ends the agent without its having a say.
func (a *agent) kill() {
	a.n.t.Helper()
	if err := a.cmd.Process.Kill(); err != nil {
		a.n.t.Fatal(err)
	}
	a.wait()
}

// said is what the agent printed and logged up to now.
func (a *agent) said() string {
	out, err := os.ReadFile(a.out)
	log, lerr := os.ReadFile(a.log)
	if err := errors.Join(err, lerr); err != nil {
		return err.Error()
	}
	return string(out) + string(log)
}

// answer is what a command said.
type answer struct {
	code        int
	out, errOut string
}

func (a answer) String() string { return fmt.Sprintf("exit code %d\n%s%s", a.code, a.out, a.errOut) }

// command runs berth with the arguments against the node's agent.
func (n *node) command(ctx context.Context, args ...string) answer {
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, n.binary, append(args, "--run-dir", n.place.Run)...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	a := answer{code: cmd.ProcessState.ExitCode(), out: out.String(), errOut: errOut.String()}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		a.code, a.errOut = -1, a.errOut+err.Error()
	}
	return a
}

// berth runs berth with the arguments, which must succeed, and returns what it printed.
func (n *node) berth(args ...string) string {
	n.t.Helper()
	a := n.command(n.ctx, args...)
	if a.code != 0 {
		n.t.Fatalf("berth %s: %v", strings.Join(args, " "), a)
	}
	return a.out
}

// awaitLog waits until a container of the pod, which flags of berth logs name if it has more than
// one, has written the text. A program that has just been started may not yet have made itself
// ready for a signal: the kernel keeps from the first process of a container what that has no
// handler for.
func (n *node) awaitLog(pod, text string, flags ...string) {
	n.t.Helper()
	until(n.t, fmt.Sprintf("the log of %s to have %q", pod, text), func() bool {
		return strings.Contains(n.command(n.ctx, append([]string{"logs", pod}, flags...)...).out, text)
	})
}

// events are what berth events tells: of the pod, if one is named.
func (n *node) events(pod string) string {
	n.t.Helper()
	if pod == "" {
		return n.berth("events", "-A")
	}
	return n.berth("events", "--for", "pod/"+pod)
}

// awaitEvents waits until the events have all the parts: an event is told a moment after what it
// tells of.
func (n *node) awaitEvents(pod string, parts ...string) {
	n.t.Helper()
	until(n.t, fmt.Sprintf("the events to have %q", parts), func() bool {
		said := n.events(pod)
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(said, part) })
	})
}

// awaitRows waits until what berth get pods prints, with the flags, matches the regular
// expressions: the API has a status a moment after the agent.
func (n *node) awaitRows(flags []string, patterns ...string) {
	n.t.Helper()
	until(n.t, fmt.Sprintf("berth get pods to show %q", patterns), func() bool {
		table := n.berth(append([]string{"get", "pods"}, flags...)...)
		return !slices.ContainsFunc(patterns, func(p string) bool { return !regexp.MustCompile(p).MatchString(table) })
	})
}

// explain returns the journal of a pod or of a manifest.
func (n *node) explain(name string) []journal.Entry {
	n.t.Helper()
	var said struct {
		Stories []journal.Timeline `json:"stories"`
	}
	a := n.command(n.ctx, "explain", "--all", name, "-o", "json")
	if a.code != 0 && strings.Contains(a.errOut, "not found") {
		return nil
	}
	if err := json.Unmarshal([]byte(a.out), &said); err != nil {
		n.t.Fatalf("berth explain %s: %v: %v", name, err, a)
	}
	var entries []journal.Entry
	for _, s := range said.Stories {
		entries = append(entries, s.Entries...)
	}
	return entries
}

// wantInOrder checks that the journal has entries with these texts in their decision, container or
// reason, in this order.
func wantInOrder(t *testing.T, entries []journal.Entry, wants ...string) {
	t.Helper()
	left := wants
	for _, e := range entries {
		if len(left) > 0 && strings.Contains(fmt.Sprintf("%s %s %s: %s %s", e.Component, e.Container, e.Decision, e.Why, e.Error), left[0]) {
			left = left[1:]
		}
	}
	if len(left) > 0 {
		var said []string
		for _, e := range entries {
			said = append(said, fmt.Sprintf("%s %s %s: %s %s", e.Component, e.Container, e.Decision, e.Why, e.Error))
		}
		t.Errorf("the journal lacks %q of %q, in this order; it has:\n%s", left[0], wants, strings.Join(said, "\n"))
	}
}

// wantText checks that the text has all the parts.
func wantText(t *testing.T, where, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s lacks %q:\n%s", where, p, text)
		}
	}
}

// exists reports whether there is such a file.
func exists(t *testing.T, name string) bool {
	t.Helper()
	_, err := os.Lstat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}
