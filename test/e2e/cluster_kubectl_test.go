//go:build e2e

package e2e

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubectl logs shows what a container writes, follows it to its end, and has what the container
// before it wrote.
func TestClusterLogs(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	c.create(c.helloPod("web", "serve"))
	web := c.awaitAPIReady("web").named("web")
	answers(t, "http://"+web.Status.PodIP+":8080/first")
	until(t, "the log to have the request", func() bool {
		return strings.Contains(c.kubectl("logs", "web"), "GET /first 404")
	})
	wantMatch(t, "kubectl logs --timestamps --tail=1", c.kubectl("logs", "web", "--timestamps", "--tail=1"), `^\d{4}-\d\d-\d\dT\S+Z \d{4}-\S+ \S+ GET /first 404 \S+\n$`)
	if got := c.kubectl("logs", "web", "--limit-bytes=5"); len(got) != 5 {
		t.Errorf("kubectl logs --limit-bytes=5 says %q", got)
	}
	if got := c.kubectlIn("", "logs", "web", "--previous"); got.code == 0 || !strings.Contains(got.errOut, "previous terminated container") {
		t.Errorf("kubectl logs --previous of a container that is the first: %v", got)
	}
	if got := c.kubectlIn("", "logs", "web", "-c", "other"); got.code == 0 || !strings.Contains(got.errOut, "other") {
		t.Errorf("kubectl logs of a container that is not there: %v", got)
	}

	first := c.followKubectl("logs", "-f", "web")
	first.awaitText(`GET /first 404`)
	answers(t, "http://"+web.Status.PodIP+":8080/second")
	first.awaitText(`GET /second 404`)
	c.signal(web, "main", unix.SIGTERM)
	first.wait() // with the container
	wantText(t, "what was followed", readText(t, first.out), "listening on", "bye")

	c.awaitAPI("the container to be restarted", func(p pods) bool {
		return p.ready("web") && container(p.named("web"), "main").RestartCount == 1
	})
	wantText(t, "kubectl logs --previous", c.kubectl("logs", "web", "--previous"), "GET /first 404", "GET /second 404", "bye")
	if now := c.kubectl("logs", "web"); strings.Contains(now, "GET /first") {
		t.Errorf("kubectl logs of the second container has the first one's:\n%s", now)
	}
	until(t, "the log of the second container", func() bool { return strings.Contains(c.kubectl("logs", "web"), "listening on") })

	// A pod that has ended still has its log.
	done := c.helloPod("done", "nonsense")
	done.Spec.RestartPolicy = v1.RestartPolicyNever
	c.create(done)
	c.awaitAPI("the pod to fail", func(p pods) bool { return p.named("done") != nil && p.named("done").Status.Phase == v1.PodFailed })
	wantText(t, "the log of a pod that failed", c.kubectl("logs", "done"), "hello nonsense: unknown command")
	last := c.followKubectl("logs", "-f", "done")
	last.wait()
}

// kubectl exec brings a program's output, errors, input and exit code, also at a terminal.
func TestClusterExec(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	c.create(withTools(c.helloPod("web", "serve")))
	c.awaitAPIReady("web")
	large := strings.Repeat("0123456789abcdef", 64<<10) // a megabyte, there and back
	for _, e := range []struct {
		name, input string
		args        []string
		want        answer
	}{
		{"output", "", []string{"web", "--", "/usr/bin/echo", "a  b", "c"}, answer{out: "a  b c\n"}},
		{"standard error", "", []string{"web", "--", "/usr/bin/sh", "-c", "echo oops >&2"}, answer{errOut: "oops\n"}},
		{"exit code", "", []string{"web", "-c", "main", "--", "/hello", "exit", "7"}, answer{code: 7, errOut: "command terminated with exit code 7\n"}},
		{"input", large, []string{"-i", "web", "--", "/usr/bin/cat"}, answer{out: large}},
		{"input that is not sent", "ignored", []string{"web", "--", "/usr/bin/cat"}, answer{}},
	} {
		if got := c.kubectlIn(e.input, append([]string{"exec"}, e.args...)...); got != e.want {
			t.Errorf("%s: got code %d, %d bytes %.100q, %q; want %d, %d bytes, %q", e.name, got.code, len(got.out), got.out, got.errOut, e.want.code, len(e.want.out), e.want.errOut)
		}
	}
	if got := c.kubectlIn("", "exec", "web", "--", "/nothing"); got.code == 0 || !strings.Contains(got.errOut, "/nothing") {
		t.Errorf("a program that is not there: %v", got)
	}
	if got := c.kubectlIn("", "exec", "web", "-c", "other", "--", "/hello"); got.code == 0 || !strings.Contains(got.errOut, "other") {
		t.Errorf("a container that is not there: %v", got)
	}

	ours, theirs := openTerminal(t)
	cmd := c.kubectlCommand("exec", "-it", "web", "--", "/usr/bin/sh", "-c", `test -t 0 && test -t 1 && until [ "$(/usr/bin/stty size)" = "30 100" ]; do /usr/bin/sleep 0.05; done; /usr/bin/stty size; exit 5`)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := theirs.Close(); err != nil {
		t.Fatal(err)
	}
	seen := make(chan string)
	go func() {
		var all strings.Builder
		b := make([]byte, 4096)
		for {
			n, err := ours.Read(b)
			all.Write(b[:n])
			if err != nil { // EIO: nobody has the other end any more
				seen <- all.String()
				return
			}
		}
	}()
	err := cmd.Wait()
	said := <-seen
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 5 {
		t.Errorf("at a terminal: %v, want exit code 5\n%s", err, said)
	}
	wantText(t, "a program at a terminal of 100 columns and 30 lines", said, "30 100\r\n")
}

// stubborn is a pod that does not end when it is asked to.
func (c *cluster) stubborn(name string, grace int64) *v1.Pod {
	p := shell(c.helloPod(name), `trap "echo asked" TERM; echo began; while :; do /usr/bin/sleep 0.1; done`)
	p.Spec.TerminationGracePeriodSeconds = &grace
	return p
}

func (c *cluster) awaitKubectlLog(pod, text string) {
	c.t.Helper()
	until(c.t, "the log of "+pod+" to have "+text, func() bool {
		out, err := c.try("logs", pod)
		return err == nil && strings.Contains(out, text)
	})
}

// kubectl delete pod asks the containers to end, and kills those that do not in their time; the
// pod's object goes after them.
func TestClusterDelete(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.startMember()
	c.create(c.helloPod("polite", "serve"), c.stubborn("stubborn", 2), c.stubborn("shortened", 600), c.stubborn("forced", 2), c.stubborn("hurried", 600))
	before := c.awaitAPIReady("polite", "stubborn", "shortened", "forced", "hurried")
	var all []traces
	for _, p := range before {
		all = append(all, c.clusterTraces(p))
	}
	for _, name := range []string{"stubborn", "shortened", "forced", "hurried"} {
		c.awaitKubectlLog(name, "began")
	}
	c.awaitKubectlLog("polite", "listening on")
	polite, stubborn, shortened := c.followKubectl("logs", "-f", "polite"), c.followKubectl("logs", "-f", "stubborn"), c.followKubectl("logs", "-f", "shortened")
	polite.awaitText("listening on")
	stubborn.awaitText("began")
	shortened.awaitText("began")

	gone := func(name string) { c.wantEnded(before.named(name)) }
	c.kubectl("delete", "pod", "polite")
	gone("polite")
	polite.wait()
	wantText(t, "the log of the pod that was asked to end", readText(t, polite.out), "bye")

	began := time.Now()
	c.kubectl("delete", "pod", "stubborn", "--wait=false")
	ending := c.awaitAPI("the pod to be told to end", func(p pods) bool {
		return slices.ContainsFunc(p, func(p *v1.Pod) bool { return p.Name == "stubborn" && p.DeletionTimestamp != nil })
	})
	for _, p := range ending {
		if p.Name == "stubborn" && (p.Status.Phase != v1.PodRunning || *p.DeletionGracePeriodSeconds != 2) {
			t.Errorf("while it ends, the pod is %s and has %d s", p.Status.Phase, *p.DeletionGracePeriodSeconds)
		}
	}
	c.awaitAPI("the pod to go", func(p pods) bool { return !p.has(before.named("stubborn").UID) })
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("the pod had 2 s to end, and was gone after %v", took)
	}
	gone("stubborn")
	stubborn.wait()
	wantText(t, "the log of the pod that was killed", readText(t, stubborn.out), "asked")

	// A second deletion may make the time shorter.
	c.kubectl("delete", "pod", "shortened", "--wait=false")
	shortened.awaitText("asked")
	c.kubectl("delete", "pod", "shortened", "--grace-period=1")
	gone("shortened")
	shortened.wait()

	// By force the object goes at once, and a pod that is ending has no more time.
	c.kubectl("delete", "pod", "hurried", "--wait=false")
	c.awaitKubectlLog("hurried", "asked")
	for _, name := range []string{"forced", "hurried"} {
		c.kubectl("delete", "pod", name, "--force", "--grace-period=0")
		c.awaitAPI("the object of pod "+name+" to go", func(p pods) bool { return !p.has(before.named(name).UID) })
		until(t, "the containers of pod "+name+" to end", func() bool {
			_, containers := c.running(before.named(name))
			return containers == 0
		})
	}
	for _, tr := range all {
		until(t, "pod "+tr.pod.Name+" to leave nothing", func() bool { return len(c.left(tr)) == 0 && len(c.sandboxes(tr.pod)) == 0 })
	}
	if now, err := c.list(c.ctx); err != nil || len(now) != 0 {
		t.Errorf("the agent still has %v, error %v", now, err)
	}
}

// wantEnded checks that a pod that the API has no more has nothing that runs.
func (c *cluster) wantEnded(p *v1.Pod) {
	c.t.Helper()
	if _, containers := c.running(p); containers > 0 {
		c.t.Errorf("the object of pod %s went before its containers", p.Name)
	}
}

// A pod with a finalizer stays in the API until that is taken away, and nothing of it runs; its
// name is free only then.
func TestClusterFinalizer(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a := c.startMember()
	web := c.helloPod("web", "serve")
	web.Finalizers = []string{"berth.local/e2e"}
	c.create(web)
	before := c.awaitAPIReady("web").named("web")
	c.kubectl("delete", "pod", "web", "--wait=false")
	ended := func(p pods) bool {
		return len(p) == 1 && p[0].UID == before.UID && container(p[0], "main").State.Terminated != nil
	}
	c.awaitAPI("the container to end", ended)
	still := func() bool {
		sandboxes, containers := c.running(before)
		return sandboxes+containers == 0
	}
	until(t, "the pod's sandbox to end", still)
	c.awaitAPI("the agent to have no more use for the pod", func(p pods) bool { return ended(p) && *p[0].DeletionGracePeriodSeconds == 0 })
	// An agent that comes later does not start it again.
	a.kill()
	c.startMember()
	c.stays("the pod with a finalizer is ended and in the API", 3*time.Second, func() bool {
		now, _ := c.apiPods()
		return ended(now) && still()
	})
	c.kubectl("patch", "pod", "web", "--type=json", "-p", `[{"op": "remove", "path": "/metadata/finalizers"}]`)
	c.awaitAPI("the pod to go", func(p pods) bool { return len(p) == 0 })
	again := c.helloPod("web", "serve")
	c.create(again)
	if now := c.awaitAPIReady("web").named("web"); now.UID == before.UID {
		t.Errorf("the new pod has the old one's UID")
	}
}

// What the pods of another node are is not this one's to say.
func TestClusterOtherNodesPods(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	foreign := c.helloPod("foreign", "serve")
	foreign.Spec.NodeName = "elsewhere-" + c.name
	c.create(foreign)
	c.startMember()
	ours := c.helloPod("ours", "serve")
	ours.Spec.NodeName = c.name
	late := c.helloPod("late", "serve")
	late.Spec.NodeName = "elsewhere-" + c.name
	c.create(ours, late)
	c.awaitAPIReady("ours")
	for _, name := range []string{"foreign", "late"} {
		p, err := c.client.GetPod(c.ctx, c.namespace, name)
		if err != nil {
			t.Fatal(err)
		}
		if p.Status.StartTime != nil || len(p.Status.ContainerStatuses) > 0 {
			t.Errorf("the pod of another node has the status %+v", p.Status)
		}
	}
	if now, err := c.list(c.ctx); err != nil || len(now) != 1 {
		t.Errorf("the agent has the pods %v, error %v; want one", now, err)
	}
	c.kubectl("delete", "pod", "foreign", "--wait=false")
	c.stays("the deleted pod of another node is left to that node", 2*time.Second, func() bool {
		p, err := c.client.GetPod(c.ctx, c.namespace, "foreign")
		return err == nil && p.DeletionTimestamp.After(metav1.NewTime(time.Time{}).Time)
	})
}
