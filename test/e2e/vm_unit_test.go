//go:build e2e && vm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// unit is an agent as a service of systemd, by a unit file that the documentation has.
type unit struct {
	n    *node
	name string
}

// unitFolder is where an administrator has unit files.
const unitFolder = "/etc/systemd/system/"

// unit is the service of that name.
func (n *node) unit(name string) *unit { return &unit{n: n, name: name} }

// writeUnit writes docs/berth.service for an agent with this command line.
func (n *node) writeUnit(name string, args ...string) *unit {
	n.t.Helper()
	text, err := os.ReadFile("../../docs/berth.service")
	if err != nil {
		n.t.Fatal(err)
	}
	const documented = "ExecStart=/usr/local/bin/berth run $BERTH_EXTRA_ARGS /etc/berth/manifests\n"
	before, after, found := strings.Cut(string(text), documented)
	if !found {
		n.t.Fatalf("docs/berth.service lacks %q", documented)
	}
	line := "ExecStart=" + strings.Join(args, " ") + "\n"
	must(n.t, os.WriteFile(unitFolder+name, []byte(before+line+after), 0o644))
	systemctl(n.t, "daemon-reload")
	return n.unit(name)
}

// change adds lines to the section [Service] of the unit, in a drop-in.
func (u *unit) change(lines string) {
	u.n.t.Helper()
	folder := unitFolder + u.name + ".d"
	must(u.n.t, os.MkdirAll(folder, 0o755))
	must(u.n.t, os.WriteFile(folder+"/test.conf", []byte("[Service]\n"+lines+"\n"), 0o644))
	systemctl(u.n.t, "daemon-reload")
}

// remove stops the service and takes its files away.
func (u *unit) remove() {
	u.n.t.Helper()
	systemctl(u.n.t, "disable", "--now", u.name)
	must(u.n.t, os.Remove(unitFolder+u.name), os.RemoveAll(unitFolder+u.name+".d"))
	systemctl(u.n.t, "daemon-reload")
}

// show is what systemd says of a property of the unit.
func (u *unit) show(property string) string {
	u.n.t.Helper()
	return systemctl(u.n.t, "show", "-P", property, u.name)
}

// pid is the agent's process, 0 when it does not run.
func (u *unit) pid() int {
	u.n.t.Helper()
	pid, err := strconv.Atoi(u.show("MainPID"))
	if err != nil {
		u.n.t.Fatal(err)
	}
	return pid
}

// command has systemctl start or restart the unit, which returns when the agent has said that it is
// ready: it answers.
func (u *unit) command(verb string) {
	u.n.t.Helper()
	systemctl(u.n.t, verb, u.name)
	if _, err := u.n.list(u.n.ctx); err != nil {
		u.n.t.Fatalf("the agent is ready after a %s, and does not answer: %v", verb, err)
	}
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

// steady is what no restart of an agent changes.
type steady struct {
	u       *unit
	pods    []string
	lives   map[string]v1.ContainerStatus
	bodies  map[string]int // the processes of containers
	runtime int
}

// ticking is a script of an actor that shows that it goes on.
const ticking = "say began\nwhile :; do date +%s.%N >> /shared/ticks; sleep 0.2; done\n"

// steady waits for the pods, of which the manifest "worker" is ticking.
func (u *unit) steady(names ...string) *steady {
	u.n.t.Helper()
	s := &steady{u: u, pods: names, runtime: u.n.containerd()}
	s.lives, s.bodies = s.now()
	return s
}

func (s *steady) now() (map[string]v1.ContainerStatus, map[string]int) {
	s.u.n.t.Helper()
	now := s.u.n.awaitReady(s.pods...)
	return lives(now), s.u.n.bodies(now)
}

// goesOn checks that the pods run, with an agent or without.
func (s *steady) goesOn(when string) {
	s.u.n.t.Helper()
	ticks := func() int64 {
		info, err := os.Stat(filepath.Join(s.u.n.stage("worker"), "ticks"))
		if err != nil {
			s.u.n.t.Fatal(err)
		}
		return info.Size()
	}
	seen := ticks()
	until(s.u.n.t, "the worker to go on "+when, func() bool { return ticks() > seen })
}

// unchanged checks that the containers are the same, with the same processes, and the runtime is.
func (s *steady) unchanged(after string) {
	t := s.u.n.t
	t.Helper()
	lives, bodies := s.now()
	if diff := cmp.Diff(s.lives, lives); diff != "" {
		t.Errorf("containers changed over %s (-before +after):\n%s", after, diff)
	}
	if diff := cmp.Diff(s.bodies, bodies); diff != "" {
		t.Errorf("processes of containers changed over %s (-before +after):\n%s", after, diff)
	}
	if now := s.u.n.containerd(); now != s.runtime {
		t.Errorf("the runtime was process %d, and is %d after %s", s.runtime, now, after)
	}
	s.goesOn("after " + after)
}

// ownBinary has the node's agents be a program of its own, which can be replaced.
func (n *node) ownBinary() {
	n.t.Helper()
	program := n.place.Dir + "/berth"
	n.copyProgram(n.binary, program, "")
	n.binary = program
}

// upgrade replaces the program as a package manager does.
func (n *node) upgrade() {
	n.t.Helper()
	n.copyProgram(n.binary, n.binary+".new", "another version")
	must(n.t, os.Rename(n.binary+".new", n.binary))
}

// copyProgram copies a program; what follows it in the file does not matter to it.
func (n *node) copyProgram(from, to, and string) {
	n.t.Helper()
	b, err := os.ReadFile(from)
	must(n.t, err, os.WriteFile(to, append(b, and...), 0o755))
}

// outlives goes through what becomes of a service while its pods run.
func (s *steady) outlives(t *testing.T) {
	u := s.u
	u.command("restart")
	s.unchanged("a restart")

	pid := u.pid()
	must(t, unix.Kill(pid, unix.SIGKILL))
	u.awaitAnswer(pid)
	s.unchanged("a kill")

	systemctl(t, "stop", u.name)
	if pid := u.pid(); pid != 0 {
		t.Errorf("the service is stopped, and its process is %d", pid)
	}
	s.goesOn("without an agent")
	u.command("start")
	s.unchanged("a stop and a start")

	old := u.n.binary + " (deleted)"
	u.n.upgrade()
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", u.pid())); err != nil || exe != old {
		t.Errorf("the agent runs %s, %v: its program was not replaced", exe, err)
	}
	if said := u.n.execIn("", s.pods[len(s.pods)-1], "--", "/usr/bin/true"); said.code != 0 {
		t.Errorf("exec by an agent whose program was replaced: %v", said)
	}
	u.command("restart")
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", u.pid())); err != nil || exe != u.n.binary {
		t.Errorf("after the upgrade the agent runs %s, %v", exe, err)
	}
	s.unchanged("an upgrade")

	// An agent that hangs gives no sign of life.
	u.change("WatchdogSec=30")
	u.command("restart")
	pid = u.pid()
	must(t, unix.Kill(pid, unix.SIGSTOP))
	u.awaitAnswer(pid)
	if restarts := u.show("NRestarts"); restarts != "1" {
		t.Errorf("systemd has restarted the service %s times, want once", restarts)
	}
	if said := journalOf(t, u.name); !strings.Contains(said, "Watchdog timeout") {
		t.Errorf("the service was not ended by its watchdog:\n%s", said)
	}
	s.unchanged("a hang")
}

// wantTold waits until systemd was told so many pods.
func (u *unit) wantTold(status string) {
	u.n.t.Helper()
	until(u.n.t, "systemd to be told "+status, func() bool { return u.show("StatusText") == status })
	if said := systemctl(u.n.t, "status", u.name); !strings.Contains(said, `Status: "`+status+`"`) {
		u.n.t.Errorf("systemctl status lacks the status:\n%s", said)
	}
}

// journalOf is what the journal has of the unit, a line of text each.
func journalOf(t *testing.T, unit string, flags ...string) string {
	t.Helper()
	must(t, exec.Command("journalctl", "--sync").Run())
	out, err := exec.Command("journalctl", append([]string{"--no-pager", "-u", unit}, flags...)...).Output()
	must(t, err)
	return string(out)
}

// As a service of systemd the agent is stopped, restarted, killed, replaced and hangs, and no
// container notices; the runtime is not restarted either.
func TestVMUnit(t *testing.T) {
	needsSystemd(t)
	n := newNode(t)
	n.ownBinary()
	u := n.writeUnit("berth-e2e.service", n.newAgent().cmd.Args...)
	t.Cleanup(u.remove)
	n.put(n.act("worker", v1.RestartPolicyAlways, nil, actor("main", ticking)))
	n.put(n.act("other", v1.RestartPolicyAlways, nil, actor("main", "stay\n")))
	u.command("start")
	s := u.steady("other", "worker")
	u.wantTold("2 of 2 pods are ready")
	s.outlives(t)

	var all []traces
	for _, p := range n.awaitReady("worker", "other") {
		all = append(all, n.traces(p))
	}
	n.berth("stop", "--all")
	until(t, "the service to end", func() bool { return u.show("SubState") != "running" })
	for _, tr := range all {
		n.wantGone(tr)
	}
}
