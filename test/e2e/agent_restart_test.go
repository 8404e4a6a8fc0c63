//go:build e2e

package e2e

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// lives are what must stay as it is while containers go on running: their ids, start times and
// restart counts, by pod and container.
func lives(p pods) map[string]v1.ContainerStatus {
	out := map[string]v1.ContainerStatus{}
	for _, pod := range p {
		for _, c := range pod.Status.ContainerStatuses {
			out[pod.Name+"/"+c.Name] = v1.ContainerStatus{ContainerID: c.ContainerID, State: c.State, RestartCount: c.RestartCount}
		}
	}
	return out
}

// A killed agent leaves its containers as they are, and the next one finds them so.
func TestKilledAgentChangesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	examples(n)
	a := n.start()
	before := n.awaitReady("hello", "pair")
	processes := func(p pods) map[string]int {
		out := map[string]int{}
		for _, pod := range p {
			for _, c := range pod.Status.ContainerStatuses {
				out[pod.Name+"/"+c.Name] = n.pid(containerID(pod, c.Name))
			}
		}
		return out
	}
	ran := processes(before)
	a.kill()
	n.start()
	after := n.awaitReady("hello", "pair")
	if diff := cmp.Diff(lives(before), lives(after)); diff != "" {
		t.Errorf("containers changed with the agent (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(ran, processes(after)); diff != "" {
		t.Errorf("processes changed with the agent (-before +after):\n%s", diff)
	}
}

// What happened while no agent ran is made up for: a dead container is restarted, a removed
// manifest's pod is removed, a new one's started.
func TestKilledAgentCatchesUp(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for _, name := range []string{"steady", "dying", "leaving"} {
		n.write(name+".yaml", manifest(name, "serve"))
	}
	a := n.start()
	before := n.awaitReady("steady", "dying", "leaving")
	leaving := n.traces(before.named("leaving"))
	a.kill()
	n.signal(before.named("dying"), "main", unix.SIGKILL)
	n.remove("leaving.yaml")
	n.write("coming.yaml", manifest("coming", "serve"))

	n.start()
	after := n.await("the agent to catch up", func(p pods) bool {
		return p.ready("steady", "dying", "coming") && container(p.named("dying"), "main").RestartCount == 1
	})
	// A pod without a manifest is not shown: what the runtime and the disk have of it is removed in
	// the background.
	until(t, "the pod of the removed manifest to go", func() bool { return len(n.left(leaving)) == 0 })
	if ids := n.sandboxes(leaving.pod); len(ids) > 0 {
		t.Errorf("sandboxes of the removed pod: %v", ids)
	}
	if got, want := container(after.named("steady"), "main"), container(before.named("steady"), "main"); got.ContainerID != want.ContainerID {
		t.Errorf("the container that lived on was %s, is %s", want.ContainerID, got.ContainerID)
	}
	if got, want := n.sandboxes(after.named("dying")), 1; len(got) != want {
		t.Errorf("the pod of the dead container has the sandboxes %v, want the one that it had", got)
	}
	answers(t, "http://"+after.named("dying").Status.PodIP+":8080/")
}

// An agent that is killed while pods start or end leaves work half done, which the next one
// completes: one sandbox and one container run per pod, and none of a removed one.
func TestKilledAgentLeavesWorkHalfDone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	names := []string{"one", "two", "three"}
	a := n.start()
	for _, name := range names {
		n.write(name+".yaml", manifest(name, "serve"))
	}
	n.await("the pods to begin", func(p pods) bool { return len(p) == len(names) })
	a.kill()
	a = n.start()
	now := n.awaitReady(names...)
	for _, p := range now {
		if sandboxes, containers := n.running(p); sandboxes != 1 || containers != 1 {
			t.Errorf("pod %s has %d sandboxes and %d containers that run, want one of each", p.Name, sandboxes, containers)
		}
		answers(t, "http://"+p.Status.PodIP+":8080/")
	}
	var all []traces
	for _, p := range now {
		all = append(all, n.traces(p))
		n.remove(p.Name + ".yaml")
	}
	n.await("a pod to begin to end", func(p pods) bool {
		return slices.ContainsFunc(p, func(pod *v1.Pod) bool { return pod.DeletionTimestamp != nil }) || len(p) < len(names)
	})
	a.kill()
	n.start()
	for _, tr := range all {
		until(t, "pod "+tr.pod.Name+" to go", func() bool { return len(n.left(tr)) == 0 })
		if ids := n.sandboxes(tr.pod); len(ids) > 0 {
			t.Errorf("sandboxes of the removed pod %s: %v", tr.pod.Name, ids)
		}
	}
}

// Pods live on when containerd is killed, and the agent works on as soon as it is back, also with
// what happened meanwhile.
func TestKilledContainerdComesBack(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for _, name := range []string{"steady", "later", "meanwhile"} {
		n.write(name+".yaml", manifest(name, "serve"))
	}
	n.start()
	before := n.awaitReady("steady", "later", "meanwhile")
	steady := n.pid(containerID(before.named("steady"), "main"))

	runtime := n.containerd()
	if err := unix.Kill(runtime, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Nobody may see this end: the one that would tell of it is dead or not yet ready.
	n.signal(before.named("meanwhile"), "main", unix.SIGKILL)
	restarted := func(name string) {
		n.await(name+" to be restarted", func(p pods) bool {
			return p.ready(name) && container(p.named(name), "main").RestartCount == 1
		})
	}
	restarted("meanwhile")
	n.signal(before.named("later"), "main", unix.SIGKILL)
	restarted("later")
	n.write("fresh.yaml", manifest("fresh", "serve"))
	after := n.awaitReady("steady", "fresh")

	if n.containerd() == runtime {
		t.Error("containerd was not started again")
	}
	if got := n.pid(containerID(after.named("steady"), "main")); got != steady {
		t.Errorf("the container that nobody killed was process %d, is %d", steady, got)
	}
	if diff := cmp.Diff(lives(pods{before.named("steady")}), lives(pods{after.named("steady")})); diff != "" {
		t.Errorf("the container that nobody killed changed (-before +after):\n%s", diff)
	}
	answers(t, "http://"+after.named("fresh").Status.PodIP+":8080/")
}

// A pod that is ending when containerd is killed ends when it is back.
func TestKilledContainerdWhilePodsEnd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	names := []string{"one", "two", "three"}
	for _, name := range names {
		n.write(name+".yaml", manifest(name, "serve"))
	}
	n.start()
	var all []traces
	for _, p := range n.awaitReady(names...) {
		all = append(all, n.traces(p))
	}
	for _, name := range names {
		n.remove(name + ".yaml")
	}
	n.await("a pod to begin to end", func(p pods) bool {
		return slices.ContainsFunc(p, func(pod *v1.Pod) bool { return pod.DeletionTimestamp != nil }) || len(p) < len(names)
	})
	if err := unix.Kill(n.containerd(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.await("the pods to go", func(p pods) bool { return len(p) == 0 })
	for _, tr := range all {
		n.wantGone(tr)
		if ids := n.sandboxes(tr.pod); len(ids) > 0 {
			t.Errorf("sandboxes of the removed pod %s: %v", tr.pod.Name, ids)
		}
	}
}

// readLines returns the numbers of the lines of the pod's container that runs hello write, over all
// files of its log. The last one may be cut off: it is being written.
func (n *node) readLines(pod string) []int {
	n.t.Helper()
	var lines []int
	for text := range strings.Lines(n.berth("logs", pod)) {
		if !strings.HasSuffix(text, "\n") {
			break
		}
		number, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			n.t.Fatalf("line %d is %q", len(lines)+1, text)
		}
		lines = append(lines, number)
	}
	return lines
}

// writesOn waits until a container that runs hello write has written another megabyte, whose log
// may be rotated meanwhile.
func writesOn(t *testing.T, log string) {
	t.Helper()
	const megabyte = 1 << 20 / 64 // lines
	start, began := 0, false
	until(t, "the container to write", func() bool {
		number, ok := newestLine(t, log)
		if ok && !began {
			start, began = number, true
		}
		return ok && number > start+megabyte
	})
}

// newestLine returns the number in the last line of a log; false when it has none yet.
func newestLine(t *testing.T, log string) (number int, ok bool) {
	t.Helper()
	f, err := os.Open(log)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false // it is being rotated
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	text := make([]byte, min(end, 4096))
	if _, err := f.ReadAt(text, end-int64(len(text))); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 3 { // the first and the last may be parts of one
		return 0, false
	}
	field := strings.Fields(lines[len(lines)-2]) // time, stream, tag, text (CRI logs)
	if len(field) != 4 {
		t.Fatalf("%s has the line %q", log, lines[len(lines)-2])
	}
	if number, err = strconv.Atoi(field[3]); err != nil {
		t.Fatal(err)
	}
	return number, true
}

// A container that writes a megabyte per second notices neither that the agent is stopped, nor that
// it is killed, nor that another build with another runtime inside replaces it. Under that one it
// can be entered, stopped and deleted.
func TestWriterOutlivesAgents(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("writer.yaml", manifest("writer", "write", "-rate", "409600"))
	a := n.start()
	pod := n.awaitReady("writer").named("writer")
	tr := n.traces(pod)
	log := filepath.Join(n.podLogs(), "default_writer_"+string(pod.UID), "main", "0.log")
	began := lives(pods{pod})

	without := func(end func(a *agent)) {
		t.Helper()
		end(a)
		writesOn(t, log)
	}
	same := func(after string) {
		t.Helper()
		if diff := cmp.Diff(began, lives(pods{n.awaitReady("writer").named("writer")})); diff != "" {
			t.Errorf("the container changed %s (-before +after):\n%s", after, diff)
		}
		writesOn(t, log)
	}
	without(func(a *agent) { a.end(unix.SIGTERM) })
	a = n.start()
	same("after a stop of the agent")
	without((*agent).kill)
	a = n.start()
	same("after a kill of the agent")
	// Up to here containerd was left alone, and so not a line may be missing.
	lines := n.readLines("writer")
	for i, l := range lines {
		if l != i {
			t.Errorf("line %d of the log has number %d: lines are lost", i, l)
			break
		}
	}

	old, runtime := bundleOf(n), n.containerd()
	other := buildWithOtherBundle(n, old)
	without(func(a *agent) { a.end(unix.SIGTERM) })
	n.binary = other
	n.start()
	same("under another build")
	if got := bundleOf(n); got == old {
		t.Errorf("the other build uses the same bundle %s", got)
	}
	if got := n.containerd(); got == runtime {
		t.Errorf("the containerd of the old bundle, process %d, still runs", runtime)
	}
	wantText(t, "berth version", n.berth("version"), "another")

	lines = n.readLines("writer")
	for i := range lines[1:] {
		if lines[i+1] <= lines[i] {
			t.Fatalf("line %d has number %d, and the next %d: the writer began anew", i, lines[i], lines[i+1])
		}
	}

	out, err := n.cri().ExecSync(n.ctx, &runtimeapi.ExecSyncRequest{ContainerId: containerID(pod, "main"), Cmd: []string{"/hello", "exit", "7"}, Timeout: 10})
	if err != nil || out.ExitCode != 7 {
		t.Errorf("entered under another build: exit code %d, error %v; want code 7", out.GetExitCode(), err)
	}
	n.remove("writer.yaml")
	n.awaitGone(pod.UID)
	n.wantGone(tr)
	if ids := n.sandboxes(pod); len(ids) > 0 {
		t.Errorf("sandboxes of the removed pod: %v", ids)
	}
}

// bundleOf is the folder of the runtime in use.
func bundleOf(n *node) string {
	n.t.Helper()
	name, err := os.Readlink(n.place.Root + "/bundle/current")
	if err != nil {
		n.t.Fatal(err)
	}
	return filepath.Join(n.place.Root, "bundle", name)
}

// buildWithOtherBundle builds berth with a bundle whose content is the given one's and whose hash
// is another, and returns the program.
func buildWithOtherBundle(n *node, bundle string) string {
	n.t.Helper()
	archive := otherBundle(n.t, bundle, n.place.Dir+"/other.tar.zst")
	here, err := filepath.Abs("../..")
	if err != nil {
		n.t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{here + "/internal/runtime/embedded/bundle/bundle.tar.zst": archive}})
	if err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(n.place.Dir+"/overlay.json", overlay, 0o644); err != nil {
		n.t.Fatal(err)
	}
	program := n.place.Dir + "/another-berth"
	// But for the bundle and the version as make build does it, so that next to everything comes
	// from Go's cache.
	cmd := exec.CommandContext(n.ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", "bundle", "-overlay", n.place.Dir+"/overlay.json",
		"-ldflags", "-s -w -X main.version=another -X berth/internal/runtime/embedded.bundleHash="+hashOf(n.t, archive), "-o", program, "./cmd/berth")
	cmd.Dir = here
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("build with another bundle: %v\n%s", err, out)
	}
	return program
}

// hashOf is a bundle's hash: that of its first entry, the manifest.
func hashOf(t *testing.T, archive string) string {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	in := tar.NewReader(z)
	if h, err := in.Next(); err != nil || h.Name != "manifest.json" {
		t.Fatalf("%s begins with %v, error %v; want its manifest", archive, h, err)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
