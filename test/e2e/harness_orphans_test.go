//go:build e2e

package e2e

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// possessions are what the node's runtime knows, which is all that there may be of it on the host.
type possessions struct {
	sandboxes, ready []string // ids
	containers       []string // ids
	namespaces       []string // files of network namespaces
	cables           []string // the hosts' ends
	addresses        []string
}

// possessions asks the node's runtime. A sandbox that is removed meanwhile is none.
func (n *node) possessions() (possessions, error) {
	var has possessions
	client := n.cri()
	list, err := client.ListPodSandbox(n.ctx, &runtimeapi.ListPodSandboxRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return has, err
	}
	for _, s := range list.Items {
		has.sandboxes = append(has.sandboxes, s.Id)
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			has.ready = append(has.ready, s.Id)
		}
		status, err := client.PodSandboxStatus(n.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: s.Id})
		if err != nil {
			return has, err
		}
		has.addresses = append(has.addresses, status.Status.GetNetwork().GetIp())
		cables, namespaces := attachment(s.Id)
		has.cables = append(has.cables, cables...)
		for _, path := range namespaces {
			has.namespaces = append(has.namespaces, filepath.Base(path))
		}
	}
	all, err := client.ListContainers(n.ctx, &runtimeapi.ListContainersRequest{})
	for _, c := range all.GetContainers() {
		has.containers = append(has.containers, c.Id)
	}
	return has, err
}

// orphans are what there is on the host of sandboxes and containers of the node's runtime that it
// does not know, and "no shim of …" for each that runs without.
func (n *node) orphans() ([]string, error) {
	n.t.Helper()
	has, err := n.possessions()
	if err != nil {
		return nil, err
	}
	ids := slices.Concat(has.sandboxes, has.containers)
	var orphans []string
	look := func(what string, known []string, found ...string) {
		for _, name := range found {
			if !slices.ContainsFunc(known, func(k string) bool { return k != "" && strings.Contains(name, k) }) {
				orphans = append(orphans, what+" "+name)
			}
		}
	}
	shims := n.shims()
	look("shim", has.sandboxes, shims...)
	for _, id := range has.ready {
		if !slices.ContainsFunc(shims, func(s string) bool { return strings.Contains(s, id) }) {
			orphans = append(orphans, "no shim of "+id)
		}
	}
	tasks, err := n.tasks()
	if err != nil {
		return nil, err
	}
	look("task", ids, tasks...)
	state := n.place.Run + "/containerd"
	look("state of runc", ids, glob(n.place.Run+"/runc/k8s.io/*")...)
	look("bundle", ids, glob(state+"/io.containerd.runtime.v2.task/k8s.io/{,.}*")...)
	look("folder", ids, glob(state+"/io.containerd.grpc.v1.cri/{sandboxes,containers}/*")...)
	look("folder", ids, glob(n.place.Root+"/containerd/io.containerd.grpc.v1.cri/{sandboxes,containers}/*")...)
	look("network namespace", has.namespaces, glob(state+"/io.containerd.grpc.v1.cri/netns/*")...)
	bridge := n.bridge()
	look("attachment", has.sandboxes, glob("/var/lib/cni/results/"+bridge+"-*")...)
	look("cable", has.cables, glob("/sys/class/net/"+bridge+"/brif/*")...)
	for _, file := range glob(n.place.Run + "/addresses/*/[0-9]*") {
		owner, _ := os.ReadFile(file) // gone meanwhile
		look("address "+filepath.Base(file)+" of", has.sandboxes, strings.Fields(string(owner))[:min(1, len(owner))]...)
	}
	look("address in a rule:", has.addresses, n.addressesInRules()...)
	mounts, err := n.place.mounts()
	for _, m := range mounts {
		if strings.HasPrefix(m, state) {
			look("mount", append(has.namespaces, ids...), m)
		}
	}
	for _, dir := range n.place.cgroupTree() {
		if id := containerName.FindString(filepath.Base(dir)); id != "" {
			look("cgroup "+dir+" of", ids, id)
		}
	}
	return orphans, err
}

// containerName is what the ids of sandboxes and containers look like.
var containerName = regexp.MustCompile("[0-9a-f]{64}")

// shims are the ids that the shims and pod shims of the node's runtime were started for, each
// followed by its process.
func (n *node) shims() []string {
	n.t.Helper()
	var found []string
	for _, file := range glob("/proc/[0-9]*/cmdline") {
		line, _ := os.ReadFile(file) // gone meanwhile
		args := strings.Split(string(line), "\x00")
		at := slices.Index(args, "-id")
		if at > 0 && at+1 < len(args) && slices.Contains(args, n.place.Run+"/containerd.sock") {
			found = append(found, args[at+1]+" "+filepath.Base(filepath.Dir(file)))
		}
		if len(args) > 2 && strings.HasPrefix(args[2], n.place.Run+"/containerd/keepers/") { // NAME-OF-HOST FOLDER/shm
			found = append(found, filepath.Base(filepath.Dir(args[2]))+" "+filepath.Base(filepath.Dir(file)))
		}
	}
	return found
}

// tasks are the ids of the tasks that the node's runtime has.
func (n *node) tasks() ([]string, error) {
	conn := n.dial()
	ctx := metadata.AppendToOutgoingContext(n.ctx, "containerd-namespace", "k8s.io")
	list, err := tasksapi.NewTasksClient(conn).List(ctx, &tasksapi.ListTasksRequest{})
	var ids []string
	for _, task := range list.GetTasks() {
		ids = append(ids, task.ID)
	}
	return ids, err
}

// addressesInRules are the addresses of the node's range that the host's firewall has rules for,
// but for those of the range itself.
func (n *node) addressesInRules() []string {
	n.t.Helper()
	var network struct{ Subnets []netip.Prefix }
	b, err := os.ReadFile(n.place.Root + "/runtime/network.json")
	if err == nil {
		err = json.Unmarshal(b, &network)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	subnet := network.Subnets[0]
	gateway := subnet.Addr().Next()
	var found []string
	for _, rule := range n.rulesWith("") {
		// A node that was here before may have had the same range.
		if _, of, named := strings.Cut(rule, ", net: "); named && !strings.HasPrefix(of, n.bridge()+",") {
			continue
		}
		for _, text := range regexp.MustCompile(`[0-9]+(\.[0-9]+){3}`).FindAllString(rule, -1) {
			a, err := netip.ParseAddr(text)
			if err == nil && subnet.Contains(a) && a != subnet.Addr() && a != gateway {
				found = append(found, text)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// glob lists the files of a pattern, in which one {a,b} stands for either.
func glob(pattern string) (found []string) {
	before, rest, either := strings.Cut(pattern, "{")
	if !either {
		found, err := filepath.Glob(pattern)
		if err != nil {
			panic(err) // the pattern is a mistake of the test
		}
		return found
	}
	choices, after, _ := strings.Cut(rest, "}")
	for choice := range strings.SplitSeq(choices, ",") {
		found = append(found, glob(before+choice+after)...)
	}
	return found
}

// awaitNoOrphans waits until there is nothing on the host that the node's runtime does not know.
func (n *node) awaitNoOrphans(where string) {
	n.t.Helper()
	n.awaitNothing(where, n.orphans)
}

// awaitNothing waits until there is nothing of a kind, which may go while it is looked at.
func (n *node) awaitNothing(where string, find func() ([]string, error)) {
	n.t.Helper()
	var left []string
	limit := time.Now().Add(patience(2 * time.Minute))
	for ; time.Now().Before(limit) && n.ctx.Err() == nil; <-time.After(500 * time.Millisecond) {
		found, err := find()
		if err == nil && len(found) == 0 {
			return
		}
		if left = found; err != nil {
			left = append(left, err.Error())
		}
	}
	n.t.Errorf("%s: there are %d things too many or too few:\n%s", where, len(left), strings.Join(left, "\n"))
}
