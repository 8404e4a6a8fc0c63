//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// follower is a command that goes on until something ends it. Its output goes to a file.
type follower struct {
	n     *node
	cmd   *exec.Cmd
	out   string
	ended chan struct{}
}

// follow runs a berth command that goes on.
func (n *node) follow(args ...string) *follower {
	n.t.Helper()
	out, err := os.CreateTemp(n.place.Dir, "follow-")
	if err != nil {
		n.t.Fatal(err)
	}
	defer out.Close()
	f := &follower{n: n, out: out.Name(), ended: make(chan struct{})}
	f.cmd = exec.CommandContext(n.ctx, n.binary, append(args, "--run-dir", n.place.Run)...)
	f.cmd.Stdout, f.cmd.Stderr = out, out
	if err := f.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func() {
		_ = f.cmd.Wait() // the state tells more
		close(f.ended)
	}()
	return f
}

// awaitText waits until the command has printed what matches the regular expression.
func (f *follower) awaitText(pattern string) {
	f.n.t.Helper()
	re := regexp.MustCompile(pattern)
	until(f.n.t, fmt.Sprintf("%q to print %s", f.cmd.Args, pattern), func() bool { return re.MatchString(readText(f.n.t, f.out)) })
}

// awaitEnd waits until the command has ended by itself.
func (f *follower) awaitEnd() {
	f.n.t.Helper()
	<-f.ended // at the latest when the test has taken too long, which kills it
	if f.n.ctx.Err() != nil {
		f.n.t.Fatalf("%q does not end: %v", f.cmd.Args, context.Cause(f.n.ctx))
	}
}

// wait waits for the command's own end, which is a good one.
func (f *follower) wait() {
	f.n.t.Helper()
	f.awaitEnd()
	if code := f.cmd.ProcessState.ExitCode(); code != 0 {
		f.n.t.Errorf("%q ended with code %d, want 0:\n%s", f.cmd.Args, code, readText(f.n.t, f.out))
	}
}

// wantMatch checks that the text has what matches the regular expression.
func wantMatch(t *testing.T, where, text, pattern string) {
	t.Helper()
	if !regexp.MustCompile(pattern).MatchString(text) {
		t.Errorf("%s has nothing like %s:\n%s", where, pattern, text)
	}
}

func TestGetPods(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	examples(n)
	n.start()
	now := n.awaitReady("hello", "pair")
	hello := now.named("hello")

	n.awaitRows(nil, `^NAME +READY +STATUS +RESTARTS +AGE\nhello +1/1 +Running +0 +\d+s\npair +2/2 +Running +0 +\d+s\n$`)
	n.awaitRows([]string{"-o", "wide"},
		`(?m)^NAME .* IP +NODE +NOMINATED NODE +READINESS GATES$\n^hello .* `+regexp.QuoteMeta(hello.Status.PodIP)+` +`+regexp.QuoteMeta(hello.Spec.NodeName)+` +<none> +<none>$`)
	if got, want := n.berth("get", "pods", "-o", "name"), "pod/hello\npod/pair\n"; got != want {
		t.Errorf("get pods -o name: %q, want %q", got, want)
	}
	for format, decode := range map[string]func([]byte, any) error{
		"json": json.Unmarshal,
		"yaml": func(b []byte, into any) error { return yaml.UnmarshalStrict(b, into) },
	} {
		var list v1.List
		var one v1.Pod
		if err := decode([]byte(n.berth("get", "pods", "-o", format)), &list); err != nil || list.Kind != "List" || len(list.Items) != 2 {
			t.Errorf("get pods -o %s: kind %q with %d items, error %v; want a List of 2", format, list.Kind, len(list.Items), err)
		}
		if err := decode([]byte(n.berth("get", "pod/hello", "-o", format)), &one); err != nil || one.Kind != "Pod" || one.Annotations["kubernetes.io/config.mirror"] != string(hello.UID) || !isReady(&one) {
			t.Errorf("get pod/hello -o %s: kind %q, mirror of %s, error %v; want the ready pod %s", format, one.Kind, one.Annotations["kubernetes.io/config.mirror"], err, hello.UID)
		}
	}
	until(t, "berth describe to tell of what happened to the pod", func() bool {
		return regexp.MustCompile(`(?m)^  Normal +Started `).MatchString(n.berth("describe", "pod", "hello"))
	})
	if a := n.command(n.ctx, "get", "pods", "helo"); a.code != 1 || a.errOut != "Error from server (NotFound): pods \"helo\" not found\n" {
		t.Errorf("get pods helo: %v", a)
	}

	watch := n.follow("get", "pods", "-w")
	watch.awaitText(`(?m)^hello +1/1 +Running +0 `)
	n.signal(hello, "server", unix.SIGKILL)
	watch.awaitText(`(?m)^hello +1/1 +Running +1 `)
	n.remove("pair.yaml")
	watch.awaitText(`(?m)^pair +\d/2 +(Terminating|Completed) +0 `)
	if err := watch.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	watch.awaitEnd()
}

func TestLogs(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("web.yaml", manifest("web", "serve"))
	n.write("once.yaml", manifest("once", "serve")+"  restartPolicy: Never\n")
	n.write("pair.yaml", strings.Replace(manifest("pair", "serve"), "    args:", "    env: [{name: PORT, value: \"8081\"}]\n  - name: side\n    image: "+helloImage+"\n    args:", 1))
	n.start()
	now := n.awaitReady("web", "once", "pair")
	web, once := now.named("web"), now.named("once")

	// The log of the incarnation that runs, and of the one before.
	following := n.follow("logs", "-f", "web")
	following.awaitText(`web listening on`)
	answers(t, "http://"+web.Status.PodIP+":8080/healthz")
	following.awaitText(`GET /healthz 200`)
	n.signal(web, "main", unix.SIGTERM)
	following.wait() // it follows one incarnation
	wantText(t, "logs -f", readText(t, following.out), "bye")
	n.await("the container to be restarted", func(p pods) bool {
		return p.ready("web") && container(p.named("web"), "main").RestartCount == 1
	})
	until(t, "the new incarnation to say something", func() bool { return n.berth("logs", "web") != "" })
	wantText(t, "logs -p", n.berth("logs", "-p", "web"), "listening on", "GET /healthz", "bye")
	if log := n.berth("logs", "web"); strings.Contains(log, "GET /healthz") {
		t.Errorf("the log of the new incarnation has a request of the old one:\n%s", log)
	}
	wantMatch(t, "logs --timestamps --tail 1", n.berth("logs", "--timestamps", "--tail", "1", "web"), `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\S* .*listening on.*\n$`)

	// A follower ends with its container, and with its pod.
	ending := n.follow("logs", "-f", "once")
	ending.awaitText(`once listening on`)
	n.signal(once, "main", unix.SIGTERM)
	ending.wait()
	wantText(t, "logs -f of a pod that ended", readText(t, ending.out), "bye")
	deleted := n.follow("logs", "-f", "web")
	deleted.awaitText(`web listening on`)
	n.remove("web.yaml")
	deleted.wait()
	n.awaitGone(web.UID)

	// Several containers, both of which have begun.
	n.awaitLog("pair", "listening on [::]:8081")
	until(t, "the log of the other container", func() bool { return n.berth("logs", "pair", "-c", "side") != "" })
	a := n.command(n.ctx, "logs", "pair")
	wantText(t, "logs of a pod of two", a.out, "listening on [::]:8081")
	wantText(t, "logs of a pod of two, on the choice", a.errOut, `Defaulted container "main" out of: main, side`)
	wantText(t, "logs -c", n.berth("logs", "pair", "-c", "side"), "listening on [::]:8080")
	wantText(t, "logs --all-containers --prefix", n.berth("logs", "pair", "--all-containers", "--prefix"), "[pod/pair/main] ", "[pod/pair/side] ")
	if a := n.command(n.ctx, "logs", "pair", "-c", "none"); a.code != 1 || !strings.Contains(a.errOut, "container none is not valid for pod pair") {
		t.Errorf("logs of a container that is not there: %v", a)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("web.yaml", manifest("web", "serve"))
	n.start()
	web := n.awaitReady("web").named("web")
	wantInOrder(t, n.explain("web"), "accepted", "sandbox created", "container started", "phase Pending → Running", "ready")
	took := false
	for _, e := range n.explain("web") {
		took = took || e.Took > 0
		if e.Time.IsZero() || e.Component == "" || e.Decision == "" {
			t.Errorf("an entry lacks its time, its component or its decision: %+v", e)
		}
	}
	if !took {
		t.Error("no entry says how long anything took")
	}
	wantMatch(t, "explain web", n.berth("explain", "--all", "web"), `(?m)^TIME +AFTER +COMPONENT +CONTAINER +DECISION$(.*\n)+.*runtime +main +container started.*took `)
	n.remove("web.yaml")
	n.awaitGone(web.UID)
	until(t, "the journal to tell of the end", func() bool { return strings.Contains(n.berth("explain", "--all", "web"), "pod removed") })
	if a := n.command(n.ctx, "explain", "--all", "nobody"); a.code == 0 || !strings.Contains(a.errOut, `"nobody" not found`) {
		t.Errorf("explain of a pod that never was: %v", a)
	}
}

func TestVersionAndCheck(t *testing.T) {
	n := newNode(t)
	wantMatch(t, "version without an agent", n.berth("version"), `(?m)^berth +\S.*go1\.\d+.*linux/.*\nagent +not running on `)
	a := n.start()
	wantMatch(t, "version", n.berth("version"), fmt.Sprintf(`(?m)^berth +\S.*\nagent +.* process %d\nruntime +containerd v2\.\S+ on unix://%s`, a.cmd.Process.Pid, n.place.Run))
	var v struct {
		Agent struct{ RuntimeName string }
	}
	if err := json.Unmarshal([]byte(n.berth("version", "-o", "json")), &v); err != nil {
		t.Error(err)
	}

	port := freePort(t)
	check := n.command(n.ctx, "check", "--root-dir", n.place.Root, "--port", fmt.Sprint(port))
	if check.code != 0 {
		t.Errorf("this host runs pods, and berth check says that it cannot: %v", check)
	}
	wantMatch(t, "check", check.out, `(?m)^CHECK +RESULT +FOUND$`)
	for _, what := range []string{"cgroups", "overlayfs", "seccomp", "nftables", fmt.Sprintf(`port %d`, port), "container runtime"} {
		wantMatch(t, "check", check.out, `(?m)^.*`+what+`.* +(ok|warn) +\S`)
	}
	for line := range strings.Lines(check.out) {
		if strings.Contains(line, " warn ") && !strings.Contains(check.out[strings.Index(check.out, line)+len(line):], "→ ") {
			t.Errorf("nothing is said to follow from: %s", line)
		}
	}
	var checks []struct{ Name, Result, Found string }
	if err := json.Unmarshal([]byte(n.berth("check", "-o", "json")), &checks); err != nil || len(checks) < 6 {
		t.Errorf("check -o json: %d checks, error %v", len(checks), err)
	}
}
