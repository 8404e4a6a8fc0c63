//go:build e2e

package e2e

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/resources/devicemanager/devicetest"
)

// Pods are run by pod shims, if nobody asks for something else, beside those of a RuntimeClass that
// are not. They live on when containerd is killed, and the exit code of a container that ends
// meanwhile is not lost, by either.
func TestPodshims(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.flags = append(n.flags, "--runtime-handler=") // the default
	shim := strings.Replace(manifest("shim", "serve"), "spec:\n", "spec:\n  runtimeClassName: runc\n", 1)
	names := []string{"shim", "podshim", "meanwhile", "shim-meanwhile"}
	for name, text := range map[string]string{
		"shim": shim, "podshim": manifest("podshim", "serve"), "meanwhile": manifest("meanwhile", "serve"), "shim-meanwhile": strings.Replace(shim, "name: shim", "name: shim-meanwhile", 1),
	} {
		n.write(name+".yaml", text)
	}
	n.start()
	before := n.awaitReady(names...)
	var all []traces
	for _, p := range before {
		all = append(all, n.traces(p))
	}
	if kept := glob(n.place.Run + "/containerd/keepers/*/pod.json"); len(kept) != 2 {
		t.Fatalf("two pods are to have pod shims; there are %q", kept)
	}
	for name, want := range map[string]string{"shim": "attempt 0, by runtime handler runc", "podshim": "attempt 0, by runtime handler podshim"} {
		if said := n.berth("explain", name, "--all"); !strings.Contains(said, want) {
			t.Errorf("explain %s does not say %q:\n%s", name, want, said)
		}
	}
	n.awaitLog("podshim", "listening on")
	exec := exec.CommandContext(n.ctx, n.binary, "exec", "--run-dir", n.place.Run, "podshim", "--", "/hello", "nonsense")
	if said, err := exec.CombinedOutput(); exec.ProcessState.ExitCode() != 1 || !strings.Contains(string(said), "nonsense: unknown command") {
		t.Errorf("an exec said %s, %v", said, err)
	}
	if link := glob(n.logLinks() + "/podshim_default_main-*.log"); len(link) != 1 {
		t.Errorf("links to the log: %q", link)
	} else if _, err := filepath.EvalSymlinks(link[0]); err != nil {
		t.Error(err)
	}

	if err := unix.Kill(n.containerd(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended := []string{"meanwhile", "shim-meanwhile"}
	for _, name := range ended {
		n.signal(before.named(name), "main", unix.SIGKILL)
	}
	after := n.await("the containers to be restarted", func(p pods) bool {
		return p.ready(names...) && !slices.ContainsFunc(ended, func(name string) bool { return container(p.named(name), "main").RestartCount != 1 })
	})
	for _, name := range ended {
		last := container(after.named(name), "main").LastTerminationState.Terminated
		if last == nil || last.ExitCode != 137 || last.Reason != "Error" {
			t.Errorf("the container of %s ended with %+v, want code 137, Error", name, last)
		}
	}
	if was, is := containerID(before.named("podshim"), "main"), containerID(after.named("podshim"), "main"); was != is {
		t.Errorf("the pod that nobody touched has container %s, had %s", is, was)
	}
	for _, name := range names {
		n.remove(name + ".yaml")
	}
	n.await("the pods to go", func(p pods) bool { return len(p) == 0 })
	for _, tr := range all {
		n.wantGone(tr)
	}
	if left := glob(n.place.Run + "/containerd/keepers/*/"); len(left) > 0 {
		t.Errorf("of the pods there is left %q", left)
	}
	n.awaitNoOrphans("at the end")
}

// A pod with a device of a plugin is run by a shim where others have pod shims: CDI may have
// programs be run for a device, which pod shims do not.
func TestDevicesAreForShims(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.flags = append(n.flags, "--runtime-handler=podshim")
	d := n.newDevicePlugin("example.com/zero", devicetest.Device{ID: "one", Host: "/dev/zero"})
	n.write("podshim.yaml", manifest("podshim", "serve"))
	n.start()
	d.start()
	until(t, "the node to have the device", func() bool {
		q := n.self().Status.Allocatable["example.com/zero"]
		return q.Value() == 1
	})
	n.write("shim.yaml", manifest("shim", "serve")+"    resources: {limits: {example.com/zero: 1}}\n")
	n.awaitReady("podshim", "shim")
	for name, want := range map[string]string{"podshim": "attempt 0, by runtime handler podshim", "shim": "attempt 0, by runtime handler runc, as it has devices"} {
		if said := n.berth("explain", name, "--all"); !strings.Contains(said, want) {
			t.Errorf("explain %s does not say %q:\n%s", name, want, said)
		}
	}
}

// A runtime that does not have the handler is told at the start.
func TestRuntimeHandlerThatIsNotThere(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := n.launch("--runtime-handler", "kata")
	a.wait()
	if said := a.said(); !strings.Contains(said, `runtime handler "kata": the runtime has these: pod shim, runc`) {
		t.Errorf("the agent said:\n%s", said)
	}
}
