//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cri asks the node's own runtime, past the agent.
func (n *node) cri() runtimeapi.RuntimeServiceClient {
	n.t.Helper()
	return runtimeapi.NewRuntimeServiceClient(n.dial())
}

// dial connects to the node's own runtime, once.
func (n *node) dial() *grpc.ClientConn {
	n.t.Helper()
	if n.conn != nil {
		return n.conn
	}
	conn, err := grpc.NewClient("unix://"+n.place.Run+"/containerd.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	n.conn = conn
	return conn
}

// sandboxes are the ids of the pod's sandboxes, as the runtime tells them.
func (n *node) sandboxes(p *v1.Pod) []string {
	n.t.Helper()
	resp, err := n.cri().ListPodSandbox(n.ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
	if err != nil {
		n.t.Fatal(err)
	}
	var ids []string
	for _, s := range resp.Items {
		if s.Metadata.Uid == string(p.UID) {
			ids = append(ids, s.Id)
		}
	}
	return ids
}

// running counts the pod's sandboxes that are ready and its containers that run, as the runtime
// tells them.
func (n *node) running(p *v1.Pod) (sandboxes, containers int) {
	n.t.Helper()
	for _, id := range n.sandboxes(p) {
		status, err := n.cri().PodSandboxStatus(n.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		if grpcstatus.Code(err) == codes.NotFound {
			continue // removed since it was listed
		}
		if err != nil {
			n.t.Fatal(err)
		}
		if status.Status.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			sandboxes++
		}
		list, err := n.cri().ListContainers(n.ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			PodSandboxId: id, State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		}})
		if err != nil {
			n.t.Fatal(err)
		}
		containers += len(list.Containers)
	}
	return sandboxes, containers
}

// containerd is the process of the node's runtime, from the record that agents share.
func (n *node) containerd() int {
	n.t.Helper()
	var r struct {
		PID int `json:"pid"`
	}
	b, err := os.ReadFile(n.place.Run + "/containerd.json")
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return r.PID
}

// cgroupDirs are the node's cgroups in all hierarchies, of whatever driver.
func (p place) cgroupDirs() []string {
	var dirs []string
	for _, hierarchy := range []string{cgroupMount, cgroupMount + "/*"} {
		for _, name := range []string{p.Cgroup, p.slice()} {
			found, err := filepath.Glob(filepath.Join(hierarchy, name))
			if err != nil {
				panic(err) // the name of the cgroup is a mistake of the test
			}
			dirs = append(dirs, found...)
		}
	}
	return dirs
}

// slice is the node's cgroup when systemd makes it.
func (p place) slice() string { return strings.ReplaceAll(p.Cgroup, "-", "_") + ".slice" }

// cgroupTree lists the cgroups strictly below the node's own.
func (p place) cgroupTree() []string {
	var all []string
	for _, top := range p.cgroupDirs() {
		_ = filepath.WalkDir(top, func(dir string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && dir != top {
				all = append(all, dir)
			}
			return nil // cgroups go while they are walked
		})
	}
	return all
}

// pod shim is the process that keeps a sandbox, 0 for a sandbox that has a shim.
func (n *node) podshim(sandbox string) int {
	n.t.Helper()
	var record struct{ Pid int }
	b, err := os.ReadFile(n.place.Run + "/containerd/keepers/" + sandbox + "/pod.json")
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err == nil {
		err = json.Unmarshal(b, &record)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return record.Pid
}

// pid is the first process of a container, as its cgroup tells. That of a sandbox is its pod shim,
// or else the first process of its cgroup.
func (n *node) pid(id string) int {
	n.t.Helper()
	if id == "" {
		n.t.Fatal("a container without an id has no process")
	}
	if pid := n.podshim(id); pid > 0 {
		return pid
	}
	for _, dir := range n.place.cgroupTree() {
		if !strings.Contains(filepath.Base(dir), id) {
			continue
		}
		procs, err := os.ReadFile(dir + "/cgroup.procs")
		if err != nil {
			continue
		}
		first, _, _ := strings.Cut(string(procs), "\n")
		if pid, err := strconv.Atoi(first); err == nil {
			return pid
		}
	}
	n.t.Fatalf("no cgroup below %s holds a process of container %s", n.place.Cgroup, id)
	return 0
}

// signal sends a signal to the container's process.
func (n *node) signal(p *v1.Pod, name string, signal unix.Signal) {
	n.t.Helper()
	if err := unix.Kill(n.pid(containerID(p, name)), signal); err != nil {
		n.t.Fatal(err)
	}
}

// traces are what a running pod has on the host. Each must be there while it runs, and none when it
// is gone.
type traces struct {
	pod   *v1.Pod
	paths []string // files and folders
	net   []string // texts in the firewall's rules
}

// traces collects what the pod, which has an address of its own, has on the host.
func (n *node) traces(p *v1.Pod) traces {
	n.t.Helper()
	tr := traces{pod: p}
	add := func(what, pattern string) {
		n.t.Helper()
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			n.t.Errorf("pod %s runs without %s: nothing is at %s (%v)", p.Name, what, pattern, err)
		}
		tr.paths = append(tr.paths, found...)
	}
	add("a folder of logs", filepath.Join(n.podLogs(), p.Namespace+"_"+p.Name+"_"+string(p.UID)))
	add("a folder", filepath.Join(n.place.Root, "pods", string(p.UID)))
	for _, c := range p.Status.ContainerStatuses {
		add("a link to the log of "+c.Name, filepath.Join(n.logLinks(), fmt.Sprintf("%s_%s_%s-%s.log", p.Name, p.Namespace, c.Name, containerID(p, c.Name))))
	}
	cgroups := 0
	for _, dir := range n.place.cgroupTree() {
		if strings.Contains(filepath.Base(dir), string(p.UID)) || strings.Contains(filepath.Base(dir), strings.ReplaceAll(string(p.UID), "-", "_")) {
			tr.paths = append(tr.paths, dir)
			cgroups++
		}
	}
	if cgroups == 0 {
		n.t.Errorf("pod %s runs without a cgroup below %s", p.Name, n.place.Cgroup)
	}
	if p.Spec.HostNetwork {
		return tr
	}
	add("an address", n.place.Run+"/addresses/*/"+p.Status.PodIP)
	for _, id := range n.sandboxes(p) {
		add("a network attachment", "/var/lib/cni/results/*"+id+"*")
		cables, namespaces := attachment(id)
		for _, name := range cables {
			add("the host's end of its cable", "/sys/class/net/"+name)
		}
		for _, path := range namespaces {
			add("a network namespace", path)
		}
		if len(cables) != 1 || len(namespaces) != 1 {
			n.t.Errorf("pod %s has cables %q and network namespaces %q, want one each", p.Name, cables, namespaces)
		}
	}
	opensPort := func(c v1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(port v1.ContainerPort) bool { return port.HostPort > 0 })
	}
	if tr.net = []string{p.Status.PodIP + " "}; slices.ContainsFunc(p.Spec.Containers, opensPort) && len(n.rulesWith(tr.net[0])) == 0 {
		n.t.Errorf("pod %s has host ports, and nftables nothing for its address %s", p.Name, p.Status.PodIP)
	}
	return tr
}

// attachment reads what the network plugins made for a sandbox, from where CNI keeps it: the hosts'
// ends of its cables, and the files of its network namespaces.
func attachment(id string) (cables, namespaces []string) {
	for _, file := range glob("/var/lib/cni/results/*" + id + "*") {
		var kept struct {
			Result struct {
				Interfaces []struct{ Name, Sandbox string }
			}
		}
		b, err := os.ReadFile(file)
		if err != nil || json.Unmarshal(b, &kept) != nil {
			continue // it goes
		}
		for _, i := range kept.Result.Interfaces {
			switch {
			case strings.HasPrefix(i.Name, "veth"):
				cables = append(cables, i.Name)
			case i.Name == "eth0":
				namespaces = append(namespaces, i.Sandbox)
			}
		}
	}
	return cables, namespaces
}

// rulesWith returns the rules of the host's firewall that have the text.
func (n *node) rulesWith(text string) []string {
	n.t.Helper()
	out, err := exec.CommandContext(n.ctx, "nft", "list", "ruleset").Output()
	if err != nil {
		n.t.Fatalf("list rules: %v", err)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(strings.ReplaceAll(line, ":", " "), text) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// left are the pod's traces that are still there.
func (n *node) left(tr traces) []string {
	n.t.Helper()
	var left []string
	for _, path := range tr.paths {
		if exists(n.t, path) {
			left = append(left, path)
		}
	}
	for _, text := range tr.net {
		left = append(left, n.rulesWith(text)...)
	}
	return left
}

// wantGone checks that the pod has left no trace.
func (n *node) wantGone(tr traces) {
	n.t.Helper()
	for _, trace := range n.left(tr) {
		n.t.Errorf("pod %s is gone and has left %s", tr.pod.Name, trace)
	}
}

// bridge is the interface that the node's pods are joined by.
func (n *node) bridge() string {
	n.t.Helper()
	var list struct {
		Plugins []struct{ Bridge string }
	}
	b, err := os.ReadFile(n.place.Root + "/runtime/cni/10-berth.conflist")
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	for _, p := range list.Plugins {
		if p.Bridge != "" {
			return p.Bridge
		}
	}
	n.t.Fatalf("no bridge in %s", b)
	return ""
}

// mounts lists the mount points below the place.
func (p place) mounts() ([]string, error) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(info)) {
		// Field 5 is the mount point (proc_pid_mountinfo(5)).
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], p.Dir+"/") {
			found = append(found, f[4])
		}
	}
	return found, nil
}

// processes lists the processes of the place: those that run a program below it, were started with
// a path below it, or live in its cgroup.
func (p place) processes() ([]int, error) {
	found := map[int]bool{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)) // gone meanwhile, or a kernel's
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.HasPrefix(exe, p.Dir+"/") || strings.Contains(string(cmdline), p.Dir+"/") {
			found[pid] = true
		}
	}
	for _, dir := range append(p.cgroupTree(), p.cgroupDirs()...) {
		procs, err := os.ReadFile(dir + "/cgroup.procs")
		if err != nil {
			continue
		}
		for _, field := range strings.Fields(string(procs)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
				found[pid] = true
			}
		}
	}
	var pids []int
	for pid := range found {
		pids = append(pids, pid)
	}
	return pids, nil
}
