package agenttest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/config"
	"berth/internal/observe/stats"
	"berth/internal/pod"
	"berth/internal/runtime/cri/critest"
	"berth/internal/sync/eviction"
)

// Usage is the available resources of the machine, and the usage of running pods. The zero value
// has plenty of all.
type Usage struct {
	runtime *critest.Runtime

	mu    sync.Mutex
	has   map[eviction.Signal]uint64            // guarded by mu; without pods
	takes map[eviction.Signal]map[string]uint64 // guarded by mu; by pod name
	reads map[string]int                        // guarded by mu; number of reads
}

// capacities of the machine that Usage reports.
var capacities = map[eviction.Signal]uint64{
	eviction.MemoryAvailable: 8 << 30, eviction.AllocatableMemoryAvailable: 8 << 30, eviction.PIDAvailable: 32768,
	eviction.NodeFsAvailable: 100 << 30, eviction.NodeFsInodesFree: 1 << 20,
}

func newUsage(r *critest.Runtime) *Usage {
	return &Usage{runtime: r, has: maps.Clone(capacities), takes: map[eviction.Signal]map[string]uint64{}, reads: map[string]int{}}
}

// Reads returns how often a value was read: memory and tasks ("use"), or a disk ("disk").
func (u *Usage) Reads(what string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.reads[what]
}

// room returns the available amount of a signal.
func (u *Usage) room(s eviction.Signal) stats.Amount {
	left := u.has[s]
	if len(u.takes[s]) == 0 { // agents read it for hours of virtual time, and each list of containers copies them
		return stats.Amount{Available: left, Capacity: capacities[s]}
	}
	for _, c := range u.runtime.Containers() {
		if taken, ok := u.takes[s][c.Pod.GetName()]; ok && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			left -= min(taken, left)
		}
	}
	return stats.Amount{Available: left, Capacity: capacities[s]}
}

// Use implements eviction.Readings.
func (u *Usage) Use(context.Context) (stats.Use, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reads["use"]++
	return stats.Use{
		Time: time.Now(), Memory: u.room(eviction.MemoryAvailable), PodsMemory: u.room(eviction.AllocatableMemoryAvailable),
		Tasks: u.room(eviction.PIDAvailable),
	}, nil
}

// PodUses implements eviction.Readings.
func (u *Usage) PodUses(context.Context) (map[pod.UID]stats.PodUse, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := map[pod.UID]stats.PodUse{}
	for _, c := range u.runtime.Containers() {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			name := c.Pod.GetName()
			memory := u.takes[eviction.MemoryAvailable][name]
			out[pod.UID(c.Pod.GetUid())] = stats.PodUse{
				Memory: memory, Tasks: u.takes[eviction.PIDAvailable][name], Containers: map[string]uint64{c.Name: memory},
			}
		}
	}
	return out, nil
}

// Places implements eviction.Readings.
func (u *Usage) Places(context.Context) (stats.Places, error) {
	return stats.Places{Node: "/node", Images: "/node", Containers: "/node"}, nil
}

// FileSystem implements eviction.Readings.
func (u *Usage) FileSystem(string) (stats.FileSystem, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reads["disk"]++
	return stats.FileSystem{Device: 1, Space: u.room(eviction.NodeFsAvailable), Inodes: u.room(eviction.NodeFsInodesFree)}, nil
}

// doUsage runs the scenario commands about the available resources of the machine, and about its
// shutdown.
//
//	flags NAME=VALUE…          restart the agent with these flags of berth run
//	machine-has SIGNAL AMOUNT  the available amount without pods
//	takes POD SIGNAL AMOUNT    the pod's usage while it runs
//	expect-pressure none | CONDITION…   the true pressure conditions of the Node
//	shutdown begins | cancelled   a notification of systemd-logind
//	expect-delayed yes | no    an inhibitor lock delays shutdowns
//	expect-reads use | disk MOST   the maximum number of reads since the scenario began
func (s *story) doUsage(verb string, args []string) error {
	switch verb {
	case "flags":
		return s.setRunFlags(args)
	case "machine-has", "takes":
		q, err := resource.ParseQuantity(args[len(args)-1])
		if err != nil {
			return err
		}
		signal := eviction.Signal(args[len(args)-2])
		if _, ok := capacities[signal]; !ok {
			return fmt.Errorf("the machine has no %s", signal)
		}
		s.Usage.mu.Lock()
		defer s.Usage.mu.Unlock()
		if verb == "machine-has" {
			s.Usage.has[signal] = uint64(q.Value())
			return nil
		}
		if s.Usage.takes[signal] == nil {
			s.Usage.takes[signal] = map[string]uint64{}
		}
		s.Usage.takes[signal][args[0]] = uint64(q.Value())
	case "expect-pressure":
		n, err := s.Agent.Node(s.T.Context())
		if err != nil {
			return err
		}
		var is []string
		for _, c := range n.Status.Conditions {
			if strings.HasSuffix(string(c.Type), "Pressure") && c.Status != "False" {
				is = append(is, string(c.Type))
			}
		}
		if is == nil {
			is = []string{"none"}
		}
		return differs(strings.Join(is, " "), strings.Join(args, " "))
	case "shutdown":
		return s.logind.announce(strings.Join(args, " "))
	case "expect-delayed":
		return s.logind.expectDelayed(strings.Join(args, " "))
	case "expect-reads":
		var most int
		if _, err := fmt.Sscan(args[1], &most); err != nil {
			return err
		}
		if n := s.Usage.Reads(args[0]); n > most {
			return fmt.Errorf("%d times", n)
		}
	default:
		return s.doDevices(verb, args)
	}
	return nil
}

// setRunFlags restarts the agent with flags of berth run.
func (s *story) setRunFlags(args []string) error {
	flags := config.NewRunFlags()
	for _, f := range flags.All() {
		i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, f.Name+"=") })
		if i < 0 {
			continue
		}
		if err := f.Set(strings.TrimPrefix(args[i], f.Name+"=")); err != nil {
			return err
		}
	}
	k, err := config.LoadRun(flags)
	if err != nil {
		return err
	}
	s.StopAgent()
	s.Run = k
	s.StartAgent()
	return nil
}
