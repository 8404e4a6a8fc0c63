package embedded

import (
	"context"
	"fmt"
	"os"
	"time"

	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// inventory is the set of objects that containerd knows, by ID.
type inventory struct {
	known  map[string]bool // sandboxes and containers of CRI, and active
	active map[string]bool // sandboxes that a call is creating, or cleaning up after a failure
	stale  []string        // leases of calls to an earlier containerd process
	tasks  map[string]bool // also those unknown to CRI; only CRI creates tasks, since that API is disabled
	ended  map[string]bool // terminated sandboxes and containers, see computeEnded
}

// maxAnswer is the maximum size of a containerd response, in bytes (its max_send_message_size).
const maxAnswer = 16 << 20

// takeInventory lists containerd's objects. A host resource that existed before and is not in the
// result belongs to no active call: RunPodSandbox first creates a lease with the sandbox's ID and,
// if it fails, deletes it last, after its cleanup; until RemovePodSandbox the lease belongs to the
// sandbox. Therefore leases are listed before sandboxes.
func takeInventory(ctx context.Context, conn grpc.ClientConnInterface, p paths, agentBegan time.Time) (inventory, error) {
	has := inventory{known: map[string]bool{}, active: map[string]bool{}, tasks: map[string]bool{}}
	fail := func(err error) (inventory, error) { return has, fmt.Errorf("ask containerd what it knows: %w", err) }
	began, err := os.Stat(p.record) // written when containerd was started
	if err != nil {
		return fail(err)
	}
	leases, err := leasesapi.NewLeasesClient(conn).List(inPods(ctx), &leasesapi.ListRequest{})
	if err != nil {
		return fail(err)
	}
	var (
		sandboxes  runtimeapi.ListPodSandboxResponse
		containers runtimeapi.ListContainersResponse
		large      = grpc.MaxCallRecvMsgSize(maxAnswer)
	)
	if err := conn.Invoke(ctx, "/runtime.v1.RuntimeService/ListPodSandbox", &runtimeapi.ListPodSandboxRequest{}, &sandboxes, large); err != nil {
		return fail(err)
	}
	if err := conn.Invoke(ctx, "/runtime.v1.RuntimeService/ListContainers", &runtimeapi.ListContainersRequest{}, &containers, large); err != nil {
		return fail(err)
	}
	tasks, err := tasksapi.NewTasksClient(conn).List(inPods(ctx), &tasksapi.ListTasksRequest{})
	if err != nil {
		return fail(err)
	}
	for _, s := range sandboxes.GetItems() {
		has.known[s.GetId()] = true
	}
	for _, c := range containers.GetContainers() {
		has.known[c.GetId()] = true
	}
	has.addLeases(leases.GetLeases(), began.ModTime(), time.Now())
	for _, t := range tasks.GetTasks() {
		has.tasks[t.GetID()] = true
	}
	has.ended = computeEnded(sandboxes.GetItems(), containers.GetContainers(), has.tasks, agentBegan)
	return has, nil
}

// computeEnded returns the IDs that are terminated from CRI's view: containers that have exited and
// have no task; containers that were created before this agent started and have a task, whose start
// was interrupted (this agent only starts containers that it created, and containerd cannot remove
// a container with a task); sandboxes that are not ready and have no task left, and all their
// containers. containerd has lost track of their remaining shims, runc state and cgroups.
func computeEnded(sandboxes []*runtimeapi.PodSandbox, containers []*runtimeapi.Container, tasks map[string]bool, agentBegan time.Time) map[string]bool {
	ended := map[string]bool{}
	for _, s := range sandboxes {
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_NOTREADY && !tasks[s.GetId()] {
			ended[s.GetId()] = true
		}
	}
	for _, c := range containers {
		if tasks[c.GetId()] {
			delete(ended, c.GetPodSandboxId())
		}
	}
	for _, c := range containers {
		exited := c.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED && !tasks[c.GetId()]
		cutOff := c.GetState() == runtimeapi.ContainerState_CONTAINER_CREATED && tasks[c.GetId()] && c.GetCreatedAt() < agentBegan.UnixNano()
		if exited || cutOff || ended[c.GetPodSandboxId()] {
			ended[c.GetId()] = true
		}
	}
	return ended
}

// addLeases classifies the leases of unlisted sandboxes. A lease from before containerd's start
// belongs to no active call. If containerd's start time is in the future, the host's clock was set
// back: the times are meaningless, and every lease counts as that of an active call.
func (has *inventory) addLeases(leases []*leasesapi.Lease, began, now time.Time) {
	for _, l := range leases {
		switch id := l.GetID(); {
		case !isID(id) || has.known[id]:
		case !began.After(now) && l.GetCreatedAt().AsTime().Before(began):
			has.stale = append(has.stale, id)
		default:
			has.known[id], has.active[id] = true, true
		}
	}
}

// isID reports whether a name is a sandbox or container ID: 32 bytes in hexadecimal. Leases of
// pulls have other names.
func isID(name string) bool {
	for _, c := range name {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(name) == 64
}
