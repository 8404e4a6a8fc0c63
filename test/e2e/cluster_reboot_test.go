//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// cutPower ends the agent, the runtime and all containers at once, with what a machine forgets that
// has no power: mounts, cgroups, the run directory.
func (c *cluster) cutPower(a *agent) {
	c.t.Helper()
	a.kill()
	must(c.t, halt(c.ctx, c.place))
	must(c.t, os.RemoveAll(c.place.Run))
}

// kept returns the names of what is kept in a folder. What is just being written is not.
func (c *cluster) kept(folder string) []string {
	c.t.Helper()
	files, err := filepath.Glob(filepath.Join(c.place.Root, "kept", folder, "*"))
	must(c.t, err)
	return slices.DeleteFunc(files, func(f string) bool { return strings.HasPrefix(filepath.Base(f), ".") })
}

// keptRunning returns how many pods are kept of which the API server has said that they run.
func (c *cluster) keptRunning() int {
	c.t.Helper()
	n := 0
	for _, file := range c.kept("objects") {
		if b, err := os.ReadFile(file); err == nil && strings.Contains(string(b), `"phase":"Running"`) {
			n++
		}
	}
	return n
}

// A machine that comes back from a power cut while the API server is away runs its pods by what was
// kept on disk; those that need a Secret or a token only where these are kept too. When the server
// is back, what it says holds.
func TestClusterRebootWithoutAPIServer(t *testing.T) {
	c := newCluster(t)
	plainly := c.identity
	c.identity = append(slices.Clone(plainly), "--keep-objects=all")
	a := c.startMember()
	c.apply(objectsManifest)
	plain, gone := c.helloPod("plain", "serve"), c.helloPod("gone", "serve")
	for _, p := range []*v1.Pod{plain, gone} {
		p.Spec.AutomountServiceAccountToken = new(false)
	}
	c.create(plain, gone)
	before := c.awaitAPIReady("plain", "gone", "reader")
	until(t, "the Secret and the tokens of the reader to be kept, and that one is absent", func() bool { return len(c.kept("secrets")) == 4 })
	until(t, "pods, ConfigMaps and Services to be kept", func() bool { return len(c.kept("objects")) == 3+3+2 })
	// One that is not known to have run waits for the server.
	until(t, "pods to be kept as they run", func() bool { return c.keptRunning() == 3 })

	// One pod is deleted while the machine is off.
	c.cutPower(a)
	c.kubectl("delete", "pod", "gone", "--force", "--grace-period=0")
	start := c.stopServer()
	a = c.startKubelet()
	for _, p := range c.awaitReady("plain", "gone", "reader") {
		if s := container(p, "main"); p.UID != before.named(p.Name).UID || s.RestartCount != 1 {
			t.Errorf("pod %s has UID %s and %d restarts, want %s and 1", p.Name, p.UID, s.RestartCount, before.named(p.Name).UID)
		}
	}
	for file, want := range map[string]string{"/conf/greeting": "hi", "/keys/password": "p@ss"} {
		got, err := exec.CommandContext(c.ctx, c.binary, "exec", "--run-dir", c.place.Run, "-n", c.namespace, "reader", "--", "/usr/bin/cat", file).CombinedOutput()
		if err != nil || string(got) != want {
			t.Errorf("%s has %q, want %q; %v", file, got, want, err)
		}
	}
	said := c.command(c.ctx, "explain", "--all", c.namespace+"/reader").String()
	wantText(t, "berth explain", said, "synced from the offline cache")
	start()
	c.awaitAPI("the pods to be what the server says", func(p pods) bool {
		return p.ready("plain", "reader") && container(p.named("reader"), "main").RestartCount == 1
	})
	// Rules of nftables, which a machine forgets without power, are still there.
	c.await("the pod to go that is deleted", func(p pods) bool { return len(p) == 2 && p.ready("plain", "reader") })
	until(t, "its folder to go", func() bool {
		_, err := os.Stat(filepath.Join(c.place.Root, "pods", string(before.named("gone").UID)))
		return os.IsNotExist(err)
	})

	// Without the flag what was kept of Secrets is gone, and who needs one waits.
	a.kill()
	c.identity = plainly
	a = c.startMember()
	c.awaitReady("plain", "reader")
	if left := append(c.kept("secrets"), c.kept("key")...); len(left) > 0 {
		t.Errorf("left of Secrets: %v", left)
	}
	c.cutPower(a)
	start = c.stopServer()
	c.startKubelet()
	c.awaitReady("plain")
	until(t, "berth explain to say what the reader lacks", func() bool {
		said := c.command(c.ctx, "explain", "--all", c.namespace+"/reader")
		return strings.Contains(said.String(), "keys is not cached (--keep-objects=all caches Secrets and tokens)")
	})
	now, err := c.list(c.ctx)
	must(t, err)
	if now.ready("reader") {
		t.Error("the reader runs without its Secret")
	}
	start()
	c.awaitAPIReady("plain", "reader")
}
