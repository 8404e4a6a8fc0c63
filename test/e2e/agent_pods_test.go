//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// memoryPod has an emptyDir in memory.
const memoryPod = `apiVersion: v1
kind: Pod
metadata:
  name: memory
spec:
  volumes:
  - name: scratch
    emptyDir:
      medium: Memory
      sizeLimit: 8Mi
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["stamp", "/scratch/stamp"]
    volumeMounts:
    - {name: scratch, mountPath: /scratch}
`

// Init containers run one after the other before the rest, a sidecar from its turn on for as long
// as the rest.
func TestInitContainersAndSidecar(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("staged.yaml", `apiVersion: v1
kind: Pod
metadata:
  name: staged
spec:
  restartPolicy: OnFailure
  volumes:
  - name: shared
    emptyDir: {}
  initContainers:
  - name: first
    image: berth.local/hello:1
    args: ["sleep", "10ms"]
  - name: sidecar
    image: berth.local/hello:1
    restartPolicy: Always
    args: ["serve", "-dir", "/shared"]
    volumeMounts:
    - {name: shared, mountPath: /shared}
  - name: second
    image: berth.local/hello:1
    args: ["exit", "0"]
  containers:
  - name: main
    image: berth.local/hello:1
    args: ["stamp", "-every", "10ms", "/shared/stamp"]
    volumeMounts:
    - {name: shared, mountPath: /shared}
`)
	n.start()
	staged := n.awaitReady("staged").named("staged")
	first, sidecar, second, main := container(staged, "first"), container(staged, "sidecar"), container(staged, "second"), container(staged, "main")
	if first.State.Terminated == nil || second.State.Terminated == nil || sidecar.State.Running == nil || main.State.Running == nil {
		t.Fatalf("first %+v, sidecar %+v, second %+v, main %+v; want only the init containers ended", first.State, sidecar.State, second.State, main.State)
	}
	times := []struct {
		what string
		at   int64
	}{
		{"first ended", first.State.Terminated.FinishedAt.UnixNano()},
		{"sidecar started", sidecar.State.Running.StartedAt.UnixNano()},
		{"second started", second.State.Terminated.StartedAt.UnixNano()},
		{"second ended", second.State.Terminated.FinishedAt.UnixNano()},
		{"main started", main.State.Running.StartedAt.UnixNano()},
	}
	for i := range times[1:] {
		if times[i+1].at < times[i].at {
			t.Errorf("%s before %s", times[i+1].what, times[i].what)
		}
	}
	wantInOrder(t, n.explain("staged"), "first container started", "sidecar container started", "second container started", "main container started")
	n.awaitRows(nil, `(?m)^staged +2/2 +Running +0 `)
	stamp := "http://" + staged.Status.PodIP + ":8080/files/stamp"
	until(t, stamp, func() bool {
		body, err := get(stamp)
		return err == nil && strings.HasPrefix(body, "staged wrote stamp ")
	})

	// A sidecar is restarted whatever the pod's policy, and ends with the last container that is
	// none.
	n.signal(staged, "sidecar", unix.SIGTERM)
	staged = n.await("the sidecar to be restarted", func(p pods) bool {
		return p.ready("staged") && container(p.named("staged"), "sidecar").RestartCount == 1
	}).named("staged")
	n.signal(staged, "main", unix.SIGTERM)
	ended := n.await("the pod to succeed", func(p pods) bool {
		s := p.named("staged")
		return s != nil && s.Status.Phase == v1.PodSucceeded && container(s, "sidecar").State.Terminated != nil
	}).named("staged")
	if main := container(ended, "main"); main.State.Terminated == nil || main.State.Terminated.ExitCode != 0 {
		t.Errorf("main ended as %+v, want code 0", main.State)
	}
}

// Pods whose containers are not to run for ever end, and their logs stay until the manifest goes.
func TestPodsThatEnd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	policy := func(policy, m string) string { return m + "  restartPolicy: " + policy + "\n" }
	n.write("done.yaml", policy("Never", manifest("done", "exit", "0")))
	n.write("failed.yaml", policy("Never", manifest("failed", "nonsense")))
	n.write("asked.yaml", policy("OnFailure", manifest("asked", "serve")))
	n.write("killed.yaml", policy("Never", manifest("killed", "serve")))
	n.start()
	now := n.await("the first pods to end and the others to run", func(p pods) bool {
		done, failed := p.named("done"), p.named("failed")
		return p.ready("asked", "killed") && done != nil && done.Status.Phase == v1.PodSucceeded && failed != nil && failed.Status.Phase == v1.PodFailed
	})
	if c := container(now.named("failed"), "main"); c.State.Terminated == nil || c.State.Terminated.ExitCode != 1 || c.RestartCount != 0 {
		t.Errorf("the failed container is %+v, want ended with code 1 and never restarted", c)
	}
	wantText(t, "the log of the failed pod", n.berth("logs", "failed"), "hello nonsense: unknown command")

	n.signal(now.named("killed"), "main", unix.SIGKILL)
	n.signal(now.named("asked"), "main", unix.SIGKILL)
	now = n.await("one pod to fail and the other to restart", func(p pods) bool {
		killed := p.named("killed")
		return killed != nil && killed.Status.Phase == v1.PodFailed && p.ready("asked") && container(p.named("asked"), "main").RestartCount == 1
	})
	if c := container(now.named("killed"), "main"); c.State.Terminated == nil || c.State.Terminated.ExitCode != 137 || c.RestartCount != 0 {
		t.Errorf("the killed container is %+v, want ended with code 137 and never restarted", c)
	}
	n.awaitLog("asked", "listening on")
	// Of the dead ones a container keeps the last; once it has ended again, this one may go.
	wantText(t, "the log before", n.berth("logs", "-p", "asked"), "listening on")
	n.signal(now.named("asked"), "main", unix.SIGTERM)
	now = n.await("the other to succeed", func(p pods) bool {
		asked := p.named("asked")
		return asked != nil && asked.Status.Phase == v1.PodSucceeded
	})
	wantText(t, "the log of the pod that was asked to end", n.berth("logs", "asked"), "listening on", "bye")
	n.awaitRows(nil, `(?m)^done +0/1 +Completed +0 `, `(?m)^failed +0/1 +Error +0 `, `(?m)^asked +0/1 +Completed +1 `, `(?m)^killed +0/1 +Error +0 `)

	// The next agent leaves them ended.
	failed := now.named("failed")
	n.berth("stop")
	n.start()
	now = n.await("the ended pods to be found as they were", func(p pods) bool {
		return !slices.ContainsFunc([]string{"done", "failed", "asked", "killed"}, func(name string) bool {
			pod := p.named(name)
			return pod == nil || pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed
		})
	})
	if got := containerID(now.named("failed"), "main"); got != containerID(failed, "main") {
		t.Errorf("the next agent ran the failed container again: %s, was %s", got, containerID(failed, "main"))
	}
	n.remove("failed.yaml")
	n.awaitGone(failed.UID)
	if logs := n.podLogs() + "/default_failed_" + string(failed.UID); exists(t, logs) {
		t.Errorf("the logs of the removed pod are left: %s", logs)
	}
}

// A container that fails again and again waits longer and longer, which is said; its pod can go at
// any time.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("crashing.yaml", manifest("crashing", "exit", "3"))
	n.start()
	now := n.await("the container to wait for its restart", func(p pods) bool {
		w := container(p.named("crashing"), "main").State.Waiting
		return w != nil && w.Reason == "CrashLoopBackOff"
	})
	crashing := now.named("crashing")
	c := container(crashing, "main")
	if last := c.LastTerminationState.Terminated; c.RestartCount < 1 || last == nil || last.ExitCode != 3 || !strings.Contains(c.State.Waiting.Message, "back-off 10s") {
		t.Errorf("the container is %+v, want one restart, the last end with code 3, and a back-off of 10 s", c)
	}
	n.awaitRows(nil, `(?m)^crashing +0/1 +CrashLoopBackOff +1 `)
	wantInOrder(t, n.explain("crashing"), "container started: for the first time", "exit code 3", "container started: restart 1", "exit code 3", "CrashLoopBackOff")
	n.remove("crashing.yaml")
	n.awaitGone(crashing.UID)
	wantInOrder(t, n.explain("crashing"), "CrashLoopBackOff", "pod removed")
}

// A folder in memory is a tmpfs of its size, and goes with the pod.
func TestMemoryEmptyDir(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("memory.yaml", memoryPod)
	n.start()
	p := n.awaitReady("memory").named("memory")
	tr := n.traces(p)
	dir := n.place.Root + "/pods/" + string(p.UID) + "/volumes/kubernetes.io~empty-dir/scratch"
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type != unix.TMPFS_MAGIC || fs.Blocks*uint64(fs.Bsize) != 8<<20 {
		t.Errorf("%s is a file system of type %#x with %d bytes, want a tmpfs of 8 MiB", dir, fs.Type, fs.Blocks*uint64(fs.Bsize))
	}
	until(t, "the container to write into it", func() bool { return exists(t, dir+"/stamp") })

	// It outlives its container, as it belongs to the pod.
	mark := dir + "/mark"
	if err := os.WriteFile(mark, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.signal(p, "main", unix.SIGKILL)
	n.await("the container to be restarted", func(p pods) bool {
		return p.ready("memory") && container(p.named("memory"), "main").RestartCount == 1
	})
	if !exists(t, mark) {
		t.Error("a restart of the container emptied the folder")
	}
	n.remove("memory.yaml")
	n.awaitGone(p.UID)
	n.wantGone(tr)
	if mounts, err := n.place.mounts(); err != nil || slices.Contains(mounts, dir) {
		t.Errorf("%s is still mounted (%v)", dir, err)
	}
}

// A folder of the host is the container's too, and is nobody's to remove.
func TestHostPath(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	shared := n.place.Dir + "/shared"
	n.write("host.yaml", strings.Replace(manifest("host", "stamp", "/host/stamp"), "spec:\n", fmt.Sprintf(`spec:
  volumes:
  - name: host
    hostPath: {path: %s, type: DirectoryOrCreate}
`, shared), 1)+"    volumeMounts:\n    - {name: host, mountPath: /host}\n")
	n.start()
	p := n.awaitReady("host").named("host")
	until(t, "the container to write into the host's folder", func() bool { return exists(t, shared+"/stamp") })
	n.remove("host.yaml")
	n.awaitGone(p.UID)
	if !exists(t, shared+"/stamp") {
		t.Error("the host's folder was emptied with the pod")
	}
}

// What a container leaves as its last words is in the pod's status: the file that it wrote, or the
// end of its log.
func TestTerminationMessage(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("file.yaml", manifest("file", "serve"))
	n.write("log.yaml", manifest("log", "nonsense")+"    terminationMessagePolicy: FallbackToLogsOnError\n  restartPolicy: Never\n")
	n.start()
	now := n.await("one pod to run and the other to end", func(p pods) bool {
		log := p.named("log")
		return p.ready("file") && log != nil && log.Status.Phase == v1.PodFailed
	})
	if got := container(now.named("log"), "main").State.Terminated.Message; !strings.Contains(got, "unknown command") {
		t.Errorf("the message of the failed container is %q, want the end of its log", got)
	}

	n.awaitLog("file", "listening on")
	// As the container itself would: by its own view of the file.
	pid := n.pid(containerID(now.named("file"), "main"))
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root/dev/termination-log", pid), []byte("the disk is full"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.signal(now.named("file"), "main", unix.SIGTERM)
	last := container(n.await("the container to be restarted", func(p pods) bool {
		return p.ready("file") && container(p.named("file"), "main").RestartCount == 1
	}).named("file"), "main").LastTerminationState.Terminated
	if last == nil || last.Message != "the disk is full" || last.ExitCode != 0 {
		t.Errorf("the last state is %+v, want code 0 and the message that was written", last)
	}
}

// A pod on the host's network has the host's name and addresses, and no cable of its own.
func TestHostNetwork(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	port := freePort(t)
	n.write("host.yaml", manifest("host", "serve", "-port", strconv.Itoa(port))+"  hostNetwork: true\n")
	n.start()
	p := n.awaitReady("host").named("host")
	tr := n.traces(p)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, "its answer", answers(t, "http://127.0.0.1:"+strconv.Itoa(port)+"/"), "Hello from "+host)
	if p.Status.PodIP != p.Status.HostIP || p.Status.PodIP == "" {
		t.Errorf("the pod has address %q, the host %q; want them equal", p.Status.PodIP, p.Status.HostIP)
	}
	if cables, err := os.ReadDir("/sys/class/net/" + n.bridge() + "/brif"); err == nil && len(cables) > 0 {
		t.Errorf("the pod has cables of its own: %v", cables)
	}
	n.remove("host.yaml")
	n.awaitGone(p.UID)
	n.wantGone(tr)
	if _, err := get("http://127.0.0.1:" + strconv.Itoa(port) + "/"); err == nil {
		t.Error("the removed pod still answers")
	}
}

// An environment that the kernel would not take is told of by its size; one just below starts.
func TestLargeEnvironment(t *testing.T) {
	t.Parallel()
	const size = 120_000 // bytes of a variable
	var stack unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_STACK, &stack); err != nil {
		t.Fatal(err)
	}
	fits := int(min(stack.Cur/4, 6<<20)-1<<14) / (size + 64)
	large := func(name string, variables, size int) string {
		var env strings.Builder
		for i := range variables {
			fmt.Fprintf(&env, "    - {name: V%d, value: %s}\n", i, strings.Repeat("x", size))
		}
		return strings.Replace(manifest(name, "sleep"), "    image: ", "    env:\n"+env.String()+"    image: ", 1)
	}
	n := newNode(t)
	n.write("fits.yaml", large("fits", fits, size))
	n.write("together.yaml", large("together", fits+2, size))
	n.write("single.yaml", large("single", 1, 32*os.Getpagesize()))
	n.start()
	wantText(t, "the message of together", n.awaitWaiting("together", "CreateContainerConfigError"), "command, args and env take", "show large values to the container as files")
	wantText(t, "the message of single", n.awaitWaiting("single", "CreateContainerConfigError"), "env: variable V0", "show the value to the container as a file")
	n.awaitReady("fits")
}
