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

// inventory is what containerd knows, by ids.
type inventory struct {
	known    map[string]bool // sandboxes and containers of CRI, and underWay
	underWay map[string]bool // sandboxes that a call is making, or is tidying after it failed
	stale    []string        // leases of calls that ended with the containerd that answered them
	tasks    map[string]bool // also of what CRI does not know; nobody else makes any, since the API for that is disabled
	ended    map[string]bool // sandboxes and containers that have ended for good, see computeEnded
}

// maxAnswer is the most that containerd sends as one answer, in bytes (its max_send_message_size).
const maxAnswer = 16 << 20

// takeInventory asks containerd what it knows. What was on the host before, and is not in the
// answer, is of no call that is under way: containerd takes a lease of the sandbox's id as the
// first step of RunPodSandbox and gives it back as the last step of a failed one, after its
// cleaning up; until RemovePodSandbox it is the sandbox's. Hence the order, leases before
// sandboxes.
func takeInventory(ctx context.Context, conn grpc.ClientConnInterface, p paths, agentBegan time.Time) (inventory, error) {
	has := inventory{known: map[string]bool{}, underWay: map[string]bool{}, tasks: map[string]bool{}}
	fail := func(err error) (inventory, error) { return has, fmt.Errorf("ask containerd what it knows: %w", err) }
	began, err := os.Stat(p.record()) // written when containerd was started
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

// computeEnded returns the ids of what has ended for good, as far as CRI goes: the containers that
// have exited and have no task; those that were created before this agent began and have a task,
// whose start was cut off (this agent starts only what it has created, and containerd refuses to
// remove what has a task); the sandboxes that are not ready and of which no task is left, and all
// their containers. Of what is left on the host of them containerd has lost the way to shims,
// runc's state and cgroups.
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

// addLeases sorts the leases of sandboxes that are not there. One from before containerd was
// started is of no call that it is answering. If containerd seems to have been started in the
// future, the host's clock was set back since then: the times tell nothing, and every lease counts
// as that of a call.
func (has *inventory) addLeases(leases []*leasesapi.Lease, began, now time.Time) {
	for _, l := range leases {
		switch id := l.GetID(); {
		case !isID(id) || has.known[id]:
		case !began.After(now) && l.GetCreatedAt().AsTime().Before(began):
			has.stale = append(has.stale, id)
		default:
			has.known[id], has.underWay[id] = true, true
		}
	}
}

// isID reports whether a name can be that of a sandbox or a container: 32 bytes in hexadecimal.
// Leases of pulls have other names.
func isID(name string) bool {
	for _, c := range name {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(name) == 64
}
