//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Agents, containerds, and both at once are killed at any time, while pods are created, edited and
// deleted. In the end each pod that shall be there runs once, with what is its on the host, and
// nothing else is there; when the manifests are gone nothing at all is.
//
// TEST_KILL_PODS says how many pods there are, 5 unless it is set. Twice as many agents are killed,
// two thirds of that containerds, and as many pairs.
func TestLifeKillsUnderChurn(t *testing.T) {
	many := 5
	if text := os.Getenv("TEST_KILL_PODS"); text != "" {
		var err error
		if many, err = strconv.Atoi(text); err != nil {
			t.Fatalf("TEST_KILL_PODS: %v", err)
		}
	}
	n := newNodeFor(t, testLimit+time.Duration(many)*30*time.Second)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := &churn{n: n, random: rand.New(rand.NewPCG(seed, 0)), wanted: map[string]int{}}
	n.write("objects.yaml", shownObjects)
	for i := range many {
		port := 0
		if i%5 == 0 {
			port = freePort(t)
		}
		c.ports = append(c.ports, port)
		c.change(i)
	}
	a := n.start()
	began := time.Now()
	stage := func(what string, kills int, kill func()) {
		for range kills {
			for range 1 + c.random.IntN(3) {
				c.change(c.random.IntN(many))
			}
			c.wait()
			kill()
		}
		t.Logf("%4.0fs: %d times %s killed", time.Since(began).Seconds(), kills, what)
	}
	stage("the agent", 2*many, func() { a.kill(); a = n.launch() })
	a.kill()
	a = n.start()
	stage("containerd", (2*many+2)/3, n.killContainerd)
	stage("both", (2*many+2)/3, func() { n.killContainerd(); a.kill(); a = n.launch() })
	a.kill()
	n.start()
	for i := range many {
		if c.wanted[c.name(i)] == 0 {
			c.change(i)
		}
	}
	n.await("the pods to be those of the manifests", func(p pods) bool { return c.settled(p) })
	t.Logf("%4.0fs: %d pods are ready", time.Since(began).Seconds(), len(c.wanted))
	n.awaitOnly(slices.Collect(maps.Keys(c.wanted)))
	for i, port := range c.ports {
		if port > 0 {
			wantText(t, c.name(i)+" at its host port", answers(t, fmt.Sprintf("http://127.0.0.1:%d/", port)), "Hello from "+c.name(i))
		}
	}
	t.Logf("%4.0fs: there is nothing else", time.Since(began).Seconds())
	for name := range c.wanted {
		n.remove(name + ".yaml")
	}
	n.awaitOnly(nil)
	t.Logf("%4.0fs: there is nothing", time.Since(began).Seconds())
}

// churn creates, edits and deletes pods.
type churn struct {
	n      *node
	random *rand.Rand
	ports  []int          // host ports, by pod; 0: none
	wanted map[string]int // the version of each pod whose manifest is there
	last   int            // version
}

func (c *churn) name(i int) string { return fmt.Sprintf("p%d", i) }

// wait lets some time go by.
func (c *churn) wait() {
	select {
	case <-time.After(time.Duration(c.random.Int64N(int64(time.Second)))):
	case <-c.n.ctx.Done():
	}
}

// change creates the pod, or else edits or deletes it.
func (c *churn) change(i int) {
	name := c.name(i)
	if c.wanted[name] > 0 && c.random.IntN(2) == 0 {
		c.n.remove(name + ".yaml")
		delete(c.wanted, name)
		return
	}
	c.last++
	c.wanted[name] = c.last
	mounts := "    - {name: conf, mountPath: /one, subPath: a}\n"
	if port := c.ports[i]; port > 0 {
		mounts += fmt.Sprintf("    ports: [{containerPort: 8080, hostPort: %d}]\n", port)
	}
	text := volumesPod(name, "", mounts)
	c.n.write(name+".yaml", strings.Replace(text, "metadata: {name: "+name+"}", fmt.Sprintf("metadata: {name: %s, labels: {version: v%d}}", name, c.last), 1))
}

// settled reports whether the pods are those of the manifests, and ready.
func (c *churn) settled(p pods) bool {
	for name, version := range c.wanted {
		if pod := p.named(name); pod == nil || !isReady(pod) || pod.Labels["version"] != fmt.Sprintf("v%d", version) {
			return false
		}
	}
	return len(p) == len(c.wanted)
}

// killContainerd kills the node's runtime, if it runs.
func (n *node) killContainerd() {
	n.t.Helper()
	n.signalContainerd(unix.SIGKILL)
}

// stopContainerd stops the node's runtime with SIGSTOP, and waits until all its threads stand: the
// kernel stops each at the next chance, and one that still runs may answer a call.
func (n *node) stopContainerd() {
	n.t.Helper()
	if !n.signalContainerd(unix.SIGSTOP) {
		n.t.Fatal("containerd does not run")
	}
	until(n.t, "all threads of containerd to stop", func() bool {
		states, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", n.containerd()))
		if err != nil {
			n.t.Fatal(err)
		}
		return !slices.ContainsFunc(states, func(path string) bool {
			text, err := os.ReadFile(path)
			return err == nil && !strings.Contains(string(text), ") T ")
		})
	})
}

// signalContainerd sends the node's runtime a signal, and reports whether it runs.
func (n *node) signalContainerd(signal unix.Signal) bool {
	n.t.Helper()
	pid := n.containerd()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return false
	}
	if err != nil {
		n.t.Fatal(err)
	}
	defer unix.Close(fd)
	// The number could be another's by now.
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || !strings.HasPrefix(exe, n.place.Dir+"/") {
		return false
	}
	return unix.PidfdSendSignal(fd, signal, nil, 0) == nil
}

// awaitOnly waits until the pods of these names are all that there is on the node, each with one
// sandbox and one container, and with no more than belongs to them.
func (n *node) awaitOnly(names []string) {
	n.t.Helper()
	n.awaitNothing("besides "+strings.Join(names, " "), func() ([]string, error) {
		wrong, err := n.orphans()
		if err != nil {
			return wrong, err
		}
		now, err := n.list(n.ctx)
		if err != nil {
			return wrong, err
		}
		for _, p := range now {
			if !slices.Contains(names, p.Name) {
				wrong = append(wrong, "pod "+p.Name)
			}
		}
		return append(wrong, n.beyond(now)...), nil
	})
}

// beyond is what the node has, or lacks, for pods of one container each.
func (n *node) beyond(now pods) (wrong []string) {
	n.t.Helper()
	count := func(what string, got, want int) {
		if got != want {
			wrong = append(wrong, fmt.Sprintf("%d %s, want %d", got, what, want))
		}
	}
	for _, p := range now {
		sandboxes, containers := n.running(p)
		count("sandboxes of "+p.Name, sandboxes, 1)
		count("containers of "+p.Name, containers, 1)
	}
	uids := map[string]bool{}
	for _, p := range now {
		uids[string(p.UID)] = true
	}
	for _, pattern := range []string{n.place.Root + "/pods/*", n.podLogs() + "/*"} {
		found := glob(pattern)
		count(pattern, len(found), len(now))
		for _, path := range found {
			name := filepath.Base(path)
			if uid := name[strings.LastIndexByte(name, '_')+1:]; !uids[uid] {
				wrong = append(wrong, path)
			}
		}
	}
	has, err := n.possessions()
	if err != nil {
		return append(wrong, err.Error())
	}
	count("sandboxes that are ready", len(has.ready), len(now))
	count("addresses", len(glob(n.place.Run+"/addresses/*/[0-9]*")), len(now))
	count("network namespaces", len(glob(n.place.Run+"/containerd/io.containerd.grpc.v1.cri/netns/*")), len(now))
	count("cables", len(glob("/sys/class/net/"+n.bridge()+"/brif/*")), len(now))
	count("shims", len(n.shims()), len(now))
	processes := map[string]bool{}
	for _, dir := range n.place.cgroupTree() {
		if i := strings.Index(dir, "/pod"); i >= 0 && !uids[strings.Split(dir[i+len("/pod"):], "/")[0]] {
			wrong = append(wrong, dir)
		}
		if strings.HasPrefix(filepath.Base(dir), apiserverCgroup) {
			continue // of the agent
		}
		pids, _ := os.ReadFile(dir + "/cgroup.procs") // gone meanwhile
		for _, pid := range strings.Fields(string(pids)) {
			processes[pid] = true
		}
	}
	pauses := 0 // a pod shim needs no process that holds the pod
	for _, id := range has.ready {
		if n.podshim(id) == 0 {
			pauses++
		}
	}
	count("processes in containers", len(processes), len(now)+pauses)
	mounts, err := n.place.mounts()
	if err != nil {
		return append(wrong, err.Error())
	}
	for _, m := range mounts {
		if rest, ok := strings.CutPrefix(m, n.place.Root+"/pods/"); ok && !uids[strings.Split(rest, "/")[0]] {
			wrong = append(wrong, "mount "+m)
		}
	}
	return wrong
}
