//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// link is the node's way to the API server: through a network namespace of the test, where packets
// can be dropped.
type link struct {
	c       *cluster
	process *exec.Cmd // has the namespace; ends with its standard input, and so with the test program
	// sent and received are the bytes that went through, as the node sees it: TLS and all that is
	// in it.
	sent, received atomic.Int64
}

// viaLink has agents that are started from now on reach the API server through a namespace.
func (c *cluster) viaLink() *link {
	c.t.Helper()
	l := &link{c: c, process: exec.Command("cat")}
	l.process.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	stdin, err := l.process.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := l.process.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		stdin.Close()
		_ = l.process.Wait()
	})
	var number int
	if _, err := fmt.Sscanf(c.name, "n%d", &number); err != nil {
		c.t.Fatal(err)
	}
	// Addresses that are for tests of networks (RFC 2544).
	near, device := fmt.Sprintf("198.18.%d.1", number), "berth-e2e-"+c.name
	far := fmt.Sprintf("198.18.%d.2", number)
	l.run("ip", "link", "add", device, "type", "veth", "peer", "name", "far", "netns", fmt.Sprint(l.process.Process.Pid))
	l.run("ip", "address", "add", near+"/30", "dev", device)
	l.run("ip", "link", "set", device, "up")
	l.inside("ip", "address", "add", far+"/30", "dev", "far")
	l.inside("ip", "link", "set", "far", "up")

	kubeconfig, err := os.ReadFile(c.plane.dir + "/node-" + c.name + ".kubeconfig")
	if err != nil {
		c.t.Fatal(err)
	}
	found := regexp.MustCompile(`"server": "https://([^"]+)"`).FindSubmatch(kubeconfig)
	if found == nil {
		c.t.Fatal("the kubeconfig names no server")
	}
	server := string(found[1])
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		c.t.Fatal(err)
	}
	listener := l.listen(far + ":0")
	go l.forward(listener, server)
	linked := strings.Replace(string(kubeconfig), string(found[0]), fmt.Sprintf(`"server": "https://%s", "tls-server-name": %q`, listener.Addr(), host), 1)
	path := c.place.Dir + "/linked.kubeconfig"
	if err := os.WriteFile(path, []byte(linked), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.identity = []string{"--kubeconfig", path}
	return l
}

// run runs a program of the host, which must succeed.
func (l *link) run(program ...string) {
	l.c.t.Helper()
	if out, err := exec.CommandContext(l.c.ctx, program[0], program[1:]...).CombinedOutput(); err != nil {
		l.c.t.Fatalf("%q: %v: %s", program, err, out)
	}
}

// inside runs a program of the host in the namespace.
func (l *link) inside(program ...string) {
	l.c.t.Helper()
	l.run(append([]string{"nsenter", "--net", "--target", fmt.Sprint(l.process.Process.Pid)}, program...)...)
}

// listen makes a listener in the namespace. It closes when the test ends.
func (l *link) listen(address string) net.Listener {
	l.c.t.Helper()
	type result struct {
		listener net.Listener
		err      error
	}
	made := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, because it is in the namespace
		namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", l.process.Process.Pid))
		if err != nil {
			made <- result{err: err}
			return
		}
		defer namespace.Close()
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			made <- result{err: fmt.Errorf("enter %s: %w", namespace.Name(), err)}
			return
		}
		listener, err := net.Listen("tcp", address)
		made <- result{listener, err}
	}()
	r := <-made
	if r.err != nil {
		l.c.t.Fatal(r.err)
	}
	l.c.t.Cleanup(func() { r.listener.Close() })
	return r.listener
}

// forward connects what comes to the listener with the server, until the listener is closed.
func (l *link) forward(listener net.Listener, server string) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				return // the client sees its connection closed
			}
			defer upstream.Close()
			go func() {
				defer client.Close()
				defer upstream.Close()
				_, _ = io.Copy(counted{upstream, &l.sent}, client)
			}()
			_, _ = io.Copy(counted{client, &l.received}, upstream)
		}()
	}
}

// counted counts what is written.
type counted struct {
	io.Writer
	bytes *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.bytes.Add(int64(n))
	return n, err
}

// cut drops every packet of the link, in both directions and without a word.
func (l *link) cut() {
	l.c.t.Helper()
	l.inside("nft", `table ip cut {
	chain received { type filter hook input priority 0; policy drop; }
	chain sent { type filter hook output priority 0; policy drop; }
}`)
}

func (l *link) mend() {
	l.c.t.Helper()
	l.inside("nft", "delete table ip cut")
}

// A node that the network cuts off for so long that the cluster gives it up does its work
// meanwhile, and afterwards tells it all: nothing is restarted, no status lost, and what happened
// in the API meanwhile is made up for.
func TestClusterNetworkCut(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	l := c.viaLink()
	c.startMember()
	done := c.helloPod("done", "sleep", "15s")
	done.Spec.RestartPolicy = v1.RestartPolicyNever
	c.create(done, c.helloPod("web", "serve"), c.helloPod("crashing", "serve"), c.helloPod("dropped", "serve"), c.stubborn("ending", 8))
	before := c.awaitAPIReady("web", "crashing", "dropped", "done", "ending")

	late := c.helloPod("late", "serve")
	late.Spec.NodeName = c.name
	late.Spec.AutomountServiceAccountToken = new(false) // a token is the API server's to give
	c.kubectl("delete", "pod", "ending", "--wait=false")
	c.create(late)
	c.await("the agent to know of both", func(p pods) bool {
		return p.named("late") != nil && p.named("ending") == nil // but for pods that end
	})
	l.cut()
	c.signal(before.named("crashing"), "main", unix.SIGKILL)
	c.kubectl("delete", "pod", "dropped", "--wait=false")
	fresh := c.helloPod("fresh", "serve")
	fresh.Spec.NodeName = c.name
	c.create(fresh)
	c.await("the pods to go on without the network", func(p pods) bool {
		return p.ready("web", "crashing", "late", "dropped") && container(p.named("crashing"), "main").RestartCount == 1 &&
			p.named("done").Status.Phase == v1.PodSucceeded
	})
	until(t, "the pod that ends to end without the network", func() bool {
		_, containers := c.running(before.named("ending"))
		return containers == 0
	})
	c.awaitWithin("the cluster to give the node up", func() bool {
		n, err := c.client.GetNode(c.ctx, c.name)
		now, _ := c.apiPods()
		return err == nil && nodeCondition(n, v1.NodeReady).Status == v1.ConditionUnknown && podCondition(now.named("web"), v1.PodReady).Status == v1.ConditionFalse
	})
	meanwhile, err := c.list(c.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !meanwhile.ready("web", "crashing", "late", "dropped") || meanwhile.named("fresh") != nil {
		t.Errorf("before the network is back the agent has the pods %+v", lives(meanwhile))
	}
	run := pods{meanwhile.named("web"), meanwhile.named("crashing"), meanwhile.named("late")}
	began, bodies := lives(run), c.bodies(run)
	l.mend()

	after := c.awaitAPI("the statuses to catch up", func(p pods) bool {
		return p.ready("web", "crashing", "late", "fresh") && p.named("done").Status.Phase == v1.PodSucceeded &&
			!p.has(before.named("ending").UID) && !p.has(before.named("dropped").UID)
	})
	ran := pods{after.named("web"), after.named("crashing"), after.named("late")}
	if diff := cmp.Diff(began, lives(ran)); diff != "" {
		t.Errorf("containers changed (-cut off +after):\n%s", diff)
	}
	if diff := cmp.Diff(bodies, c.bodies(ran)); diff != "" {
		t.Errorf("processes changed (-cut off +after):\n%s", diff)
	}
	if last := container(after.named("crashing"), "main").LastTerminationState.Terminated; last == nil || last.ExitCode != 137 {
		t.Errorf("the end of the container that was killed is told as %+v", last)
	}
	if end := container(after.named("done"), "main"); end.RestartCount != 0 || end.State.Terminated == nil || end.State.Terminated.ExitCode != 0 {
		t.Errorf("the end of the container that ended is told as %+v", end)
	}
	if n := container(after.named("fresh"), "main").RestartCount; n != 0 {
		t.Errorf("the container of the pod that came meanwhile was restarted %d times", n)
	}
	until(t, "the node to be ready", func() bool {
		n, err := c.client.GetNode(c.ctx, c.name)
		return err == nil && nodeCondition(n, v1.NodeReady).Status == v1.ConditionTrue
	})
}
