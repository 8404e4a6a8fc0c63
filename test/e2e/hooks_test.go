//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/record/journal"
)

// hookedPod has a folder of the host, /shared, and the host's programs in each container. The
// settings are lines of its spec, containers its containers.
func hookedPod(name, shared, settings string, containers ...string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %s
spec:
%s
  volumes:
  - name: shared
    hostPath: {path: %s}
  - name: usr
    hostPath: {path: /usr}
  - name: lib
    hostPath: {path: /usr/lib}
  - name: lib64
    hostPath: {path: /lib64}
  containers:
%s`, name, settings, shared, strings.Join(containers, ""))
}

// hooked is a container of a hookedPod; lifecycle is a value in YAML's flow style, "{}" for none.
func hooked(name, lifecycle string, args ...string) string {
	return fmt.Sprintf(`  - name: %s
    image: %s
    args: ["%s"]
    lifecycle: %s
    volumeMounts:
    - {name: shared, mountPath: /shared}
    - {name: usr, mountPath: /usr, readOnly: true}
    - {name: lib, mountPath: /lib, readOnly: true}
    - {name: lib64, mountPath: /lib64, readOnly: true}
`, name, helloImage, strings.Join(args, `", "`), lifecycle)
}

// shellHook is an exec handler of a hook.
func shellHook(command string) string {
	return fmt.Sprintf(`{exec: {command: ["/usr/bin/sh", "-c", "export PATH=/usr/bin; %s"]}}`, command)
}

// shared makes a folder for /shared of pods.
func (n *node) shared() string {
	n.t.Helper()
	dir := filepath.Join(n.place.Dir, "shared")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	return dir
}

// entryOf returns the first entry of the journal about the container with the decision.
func entryOf(t *testing.T, entries []journal.Entry, container, decision string) journal.Entry {
	t.Helper()
	for _, e := range entries {
		if e.Container == container && strings.HasPrefix(e.Decision, decision) {
			return e
		}
	}
	t.Fatalf("the journal has no %q of container %s: %v", decision, container, entries)
	return journal.Entry{}
}

// A postStart hook runs in its container, and the next container waits for its end.
func TestPostStartHook(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	shared := n.shared()
	n.write("web.yaml", hookedPod("web", shared, "",
		hooked("first", "{postStart: "+shellHook("uname -n > /shared/post; while [ ! -e /shared/go ]; do sleep 0.05; done; echo done >> /shared/post")+"}", "serve"),
		hooked("second", "{}", "sleep")))
	n.start()
	post := filepath.Join(shared, "post")
	until(t, "the hook to begin", func() bool { return exists(t, post) })
	if p := n.await("the pod to be shown", func(p pods) bool { return p.named("web") != nil }).named("web"); container(p, "second").State.Running != nil {
		t.Error("the second container runs before the first one's hook has ended")
	}
	if err := os.WriteFile(filepath.Join(shared, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.awaitReady("web")
	text, err := os.ReadFile(post)
	if err != nil || string(text) != "web\ndone\n" {
		t.Errorf("the hook left %q, error %v", text, err)
	}
	wantInOrder(t, n.explain("web"), "first container started", "first postStart hook ended", "second container started")
}

// A container whose postStart hook fails is killed and started again.
func TestFailedPostStartHook(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	shared := n.shared()
	n.write("web.yaml", hookedPod("web", shared, "",
		hooked("main", "{postStart: "+shellHook("test -e /shared/good || { touch /shared/good; exit 3; }")+"}", "serve")))
	n.start()
	web := n.awaitReady("web").named("web")
	if c := container(web, "main"); c.RestartCount != 1 || c.LastTerminationState.Terminated == nil {
		t.Errorf("the container is %+v, want it restarted once", c)
	}
	wantInOrder(t, n.explain("web"), "main FailedPostStartHook", "main Killing: FailedPostStartHook", "main container stopped", "main container started")
}

// A preStop hook runs before its container is told to end.
func TestPreStopHook(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	shared := n.shared()
	n.write("web.yaml", hookedPod("web", shared, "  terminationGracePeriodSeconds: 30",
		hooked("main", "{preStop: "+shellHook("echo bye > /shared/bye")+"}", "serve")))
	n.start()
	web := n.awaitReady("web").named("web")
	n.remove("web.yaml")
	n.awaitGone(web.UID)
	if text, err := os.ReadFile(filepath.Join(shared, "bye")); err != nil || string(text) != "bye\n" {
		t.Errorf("the hook left %q, error %v", text, err)
	}
	wantInOrder(t, n.explain("web"), "main preStop hook ended", "main container stopped", "sandbox stopped")
}

// A preStop hook that does not end is ended with the grace period, and that is told.
func TestPreStopHookIsBoundedByGrace(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	shared := n.shared()
	n.write("web.yaml", hookedPod("web", shared, "  terminationGracePeriodSeconds: 2",
		hooked("main", "{preStop: "+shellHook("echo begun > /shared/begun; sleep 600; touch /shared/ended")+"}", "serve")))
	n.start()
	web := n.awaitReady("web").named("web")
	n.remove("web.yaml")
	n.awaitGone(web.UID)
	if !exists(t, filepath.Join(shared, "begun")) || exists(t, filepath.Join(shared, "ended")) {
		t.Error("want the hook begun and not ended")
	}
	wantInOrder(t, n.explain("web"), "main preStop hook ended", "main FailedPreStopHook", "main container stopped")
}

// An agent that is killed while a preStop hook runs has the next one end the pod without running
// the hook again.
func TestPreStopHookIsNotRepeated(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	shared := n.shared()
	n.write("web.yaml", hookedPod("web", shared, "  terminationGracePeriodSeconds: 30",
		hooked("main", "{preStop: "+shellHook("echo run >> /shared/runs; sleep 600")+"}", "serve")))
	first := n.start()
	web := n.awaitReady("web").named("web")
	n.remove("web.yaml")
	runs := filepath.Join(shared, "runs")
	until(t, "the hook to begin", func() bool { return exists(t, runs) })
	first.kill()
	n.start()
	until(t, "the pod's containers to end", func() bool {
		sandboxes, containers := n.running(web)
		return sandboxes+containers == 0
	})
	if text, err := os.ReadFile(runs); err != nil || string(text) != "run\n" {
		t.Errorf("the hook left %q, error %v, want one run", text, err)
	}
}

// When the last regular container has ended, sidecars end in reverse order; their hooks run at
// once. A hook may ask its own container.
func TestHooksOfSidecars(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	shared := n.shared()
	sidecar := func(name, lifecycle string, args ...string) string {
		return hooked(name, lifecycle, args...) + "    restartPolicy: Always\n"
	}
	n.write("staged.yaml", hookedPod("staged", shared, "  restartPolicy: Never\n  initContainers:\n"+
		sidecar("first", `{preStop: {httpGet: {path: /farewell, port: 8080}}}`, "serve")+
		sidecar("second", "{preStop: "+shellHook("echo second > /shared/second")+"}", "sleep"),
		hooked("main", "{}", "serve", "-port", "8081")))
	n.start()
	staged := n.awaitReady("staged").named("staged")
	n.awaitLog("staged", "listening on", "-c", "first")
	n.awaitLog("staged", "listening on", "-c", "main")
	n.signal(staged, "main", unix.SIGTERM)
	n.await("the pod to succeed", func(p pods) bool {
		s := p.named("staged")
		return s != nil && s.Status.Phase == v1.PodSucceeded && container(s, "first").State.Terminated != nil && container(s, "second").State.Terminated != nil
	})
	wantText(t, "the log of the first sidecar", n.berth("logs", "staged", "-c", "first"), "GET /farewell 404")
	if !exists(t, filepath.Join(shared, "second")) {
		t.Error("the hook of the second sidecar has left nothing")
	}
	entries := n.explain("staged")
	wantInOrder(t, entries, "first preStop hook ended", "first container stopped")
	wantInOrder(t, entries, "second preStop hook ended", "second container stopped", "first container stopped", "sandbox stopped")
}

// A hook that sleeps holds the end back, and no longer than its container lives.
func TestSleepHook(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	shared := n.shared()
	n.write("short.yaml", hookedPod("short", shared, "  terminationGracePeriodSeconds: 30", hooked("main", "{preStop: {sleep: {seconds: 1}}}", "serve")))
	n.write("long.yaml", hookedPod("long", shared, "  terminationGracePeriodSeconds: 600", hooked("main", "{preStop: {sleep: {seconds: 600}}}", "serve")))
	n.start()
	now := n.awaitReady("short", "long")
	short, long := now.named("short"), now.named("long")
	n.awaitLog("long", "listening on")
	n.remove("short.yaml")
	n.remove("long.yaml")
	n.awaitGone(short.UID)
	entries := n.explain("short")
	wantInOrder(t, entries, "main preStop hook ended", "main container stopped")
	if e := entryOf(t, entries, "main", "preStop hook ended"); e.Took < time.Second || e.Error != "" {
		t.Errorf("the hook is %+v, want a second of sleep", e)
	}
	n.signal(long, "main", unix.SIGTERM)
	n.awaitGone(long.UID)
	wantInOrder(t, n.explain("long"), "main preStop hook ended", "main FailedPreStopHook", "main container stopped")
}

// A container is told to end by the signal that its spec names.
func TestStopSignal(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	shared := n.shared()
	const command = `    command: ["/usr/bin/sh", "-c", "trap 'echo USR1 > /shared/signal; exit 0' USR1; /usr/bin/touch /shared/ready; while :; do /usr/bin/sleep 0.05; done"]` + "\n"
	n.write("web.yaml", hookedPod("web", shared, "  os: {name: linux}\n  terminationGracePeriodSeconds: 30",
		hooked("main", "{stopSignal: SIGUSR1}")+command))
	n.start()
	web := n.awaitReady("web").named("web")
	until(t, "the trap to be set", func() bool { return exists(t, filepath.Join(shared, "ready")) })
	n.remove("web.yaml")
	n.awaitGone(web.UID)
	if text, err := os.ReadFile(filepath.Join(shared, "signal")); err != nil || string(text) != "USR1\n" {
		t.Errorf("the container noted %q, error %v", text, err)
	}
}
