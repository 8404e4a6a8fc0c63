//go:build e2e && vm

package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// unit is an agent as a service of systemd, by the unit file that the documentation has.
type unit struct {
	n    *node
	name string
	file string
}

// unit is the service of that name.
func (n *node) unit(name string) *unit {
	return &unit{n: n, name: name, file: "/etc/systemd/system/" + name}
}

// writeUnit writes the unit file for the node's agent.
func (n *node) writeUnit(name string) *unit {
	n.t.Helper()
	text, err := os.ReadFile("../../docs/berth.service")
	if err != nil {
		n.t.Fatal(err)
	}
	const documented = "ExecStart=/usr/local/bin/berth run /etc/berth/manifests\n"
	before, after, found := strings.Cut(string(text), documented)
	if !found {
		n.t.Fatalf("docs/berth.service lacks %q", documented)
	}
	u := n.unit(name)
	line := "ExecStart=" + strings.Join(n.newAgent().cmd.Args, " ") + "\n"
	must(n.t, os.WriteFile(u.file, []byte(before+line+after), 0o644))
	systemctl(n.t, "daemon-reload")
	return u
}

// remove stops the service and takes its file away.
func (u *unit) remove() {
	u.n.t.Helper()
	systemctl(u.n.t, "disable", "--now", u.name)
	must(u.n.t, os.Remove(u.file))
	systemctl(u.n.t, "daemon-reload")
}

// pid is the agent's process, 0 when it does not run.
func (u *unit) pid() int {
	u.n.t.Helper()
	pid, err := strconv.Atoi(systemctl(u.n.t, "show", "-P", "MainPID", u.name))
	if err != nil {
		u.n.t.Fatal(err)
	}
	return pid
}

// awaitAnswer waits until an agent answers that is not the one of the process.
func (u *unit) awaitAnswer(not int) {
	u.n.t.Helper()
	until(u.n.t, "the service to answer", func() bool {
		if pid := u.pid(); pid == 0 || pid == not {
			return false
		}
		_, err := u.n.list(u.n.ctx)
		return err == nil
	})
}

// As a service of systemd the agent is stopped, restarted, killed and started, and no container
// notices; the runtime is not restarted either.
func TestVMUnit(t *testing.T) {
	needsSystemd(t)
	n := newNode(t)
	u := n.writeUnit("berth-e2e.service")
	t.Cleanup(u.remove)
	n.put(n.act("worker", v1.RestartPolicyAlways, nil, actor("main", "say began\nwhile :; do date +%s.%N >> /shared/ticks; sleep 0.2; done\n")))
	n.put(n.act("other", v1.RestartPolicyAlways, nil, actor("main", "stay\n")))
	systemctl(t, "start", u.name)
	u.awaitAnswer(0)
	before, runtime := lives(n.awaitReady("worker", "other")), n.containerd()
	ticks := func() int64 {
		info, err := os.Stat(filepath.Join(n.stage("worker"), "ticks"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	unchanged := func(after string) {
		t.Helper()
		if diff := cmp.Diff(before, lives(n.awaitReady("worker", "other"))); diff != "" {
			t.Errorf("containers changed over %s (-before +after):\n%s", after, diff)
		}
		if now := n.containerd(); now != runtime {
			t.Errorf("the runtime was process %d, and is %d after %s", runtime, now, after)
		}
		seen := ticks()
		until(t, "the worker to go on after "+after, func() bool { return ticks() > seen })
	}

	pid := u.pid()
	systemctl(t, "restart", u.name)
	u.awaitAnswer(pid)
	unchanged("a restart")

	pid = u.pid()
	must(t, unix.Kill(pid, unix.SIGKILL))
	u.awaitAnswer(pid)
	unchanged("a kill")

	systemctl(t, "stop", u.name)
	if pid := u.pid(); pid != 0 {
		t.Errorf("the service is stopped, and its process is %d", pid)
	}
	seen := ticks()
	until(t, "the worker to go on without an agent", func() bool { return ticks() > seen })
	systemctl(t, "start", u.name)
	u.awaitAnswer(0)
	unchanged("a stop and a start")

	var all []traces
	for _, p := range n.awaitReady("worker", "other") {
		all = append(all, n.traces(p))
	}
	n.berth("stop", "--all")
	until(t, "the service to end", func() bool { return systemctl(t, "show", "-P", "SubState", u.name) != "running" })
	for _, tr := range all {
		n.wantGone(tr)
	}
}
