package kuberuntime

import (
	"cmp"
	"context"
	"slices"
	"time"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

// GarbageLimits limits how many terminated containers are retained for inspection. The newest
// terminated incarnation of each container is retained as long as its pod exists: it is the
// container's last state and holds its restart count.
type GarbageLimits struct {
	// MinAge is how long ago a container must have exited to be removed
	// (--minimum-container-ttl-duration).
	MinAge time.Duration
	// MaxPerContainer is the number of terminated incarnations retained per container
	// (--maximum-dead-containers-per-container); less than 1 means 1.
	MaxPerContainer int
	// MaxTotal is the number of terminated containers on the node above which the oldest are
	// removed (--maximum-dead-containers); less than 1 means no limit.
	MaxTotal int
}

// garbage is what can be removed of one pod.
type garbage struct {
	Containers []*pod.ContainerStatus
	Sandboxes  []pod.SandboxID
	// Next is when a container that is too young becomes garbage; zero if there is none.
	Next time.Time
}

// computeGarbage selects of one pod the terminated incarnations above the limit, superseded
// containers that were never started, and dead sandboxes other than the newest that have no
// container.
func computeGarbage(s *pod.Status, l GarbageLimits, now time.Time) garbage {
	var g garbage
	newest, ended := map[string]bool{}, map[string]int{}
	used := map[pod.SandboxID]bool{}
	for i := range s.Containers {
		cs := &s.Containers[i]
		superseded := newest[cs.Name]
		newest[cs.Name] = true
		drop := false
		switch cs.State {
		case pod.StateExited:
			ended[cs.Name]++
			drop = ended[cs.Name] > max(l.MaxPerContainer, 1)
		case pod.StateCreated, pod.StateUnknown:
			drop = superseded
		}
		if drop && isYoung(cs, l.MinAge, now) {
			drop = false
			if due := endOf(cs).Add(l.MinAge); g.Next.IsZero() || due.Before(g.Next) {
				g.Next = due
			}
		}
		if drop {
			g.Containers = append(g.Containers, cs)
			continue
		}
		used[cs.SandboxID] = true
	}
	for i := range s.Sandboxes {
		if sb := &s.Sandboxes[i]; i > 0 && !sb.Ready && !used[sb.ID] {
			g.Sandboxes = append(g.Sandboxes, sb.ID)
		}
	}
	return g
}

type deadContainer struct {
	pod       *pod.Status
	container *pod.ContainerStatus
}

// computeNodeGarbage selects the oldest terminated containers of all pods above the node's limit,
// except last states.
func computeNodeGarbage(pods []*pod.Status, l GarbageLimits, now time.Time) []deadContainer {
	if l.MaxTotal < 1 {
		return nil
	}
	total := 0
	var spare []deadContainer
	for _, s := range pods {
		last := map[string]bool{}
		for i := range s.Containers {
			cs := &s.Containers[i]
			if cs.State != pod.StateExited {
				continue
			}
			total++
			if last[cs.Name] && !isYoung(cs, l.MinAge, now) {
				spare = append(spare, deadContainer{s, cs})
			}
			last[cs.Name] = true
		}
	}
	slices.SortFunc(spare, func(a, b deadContainer) int {
		return cmp.Or(endOf(a.container).Compare(endOf(b.container)), cmp.Compare(a.container.ID, b.container.ID))
	})
	return spare[:min(len(spare), max(total-l.MaxTotal, 0))]
}

// isYoung reports whether the container exited less than minAge ago. An exit time in the future
// precedes a backward change of the host's clock: it yields no age and delays nothing.
func isYoung(cs *pod.ContainerStatus, minAge time.Duration, now time.Time) bool {
	age := now.Sub(endOf(cs))
	return age >= 0 && age < minAge
}

// endOf returns when a container exited, or its creation time if it never ran.
func endOf(cs *pod.ContainerStatus) time.Time {
	if cs.FinishedAt.IsZero() {
		return cs.CreatedAt
	}
	return cs.FinishedAt
}

// garbageRetry is the delay before a failed removal is retried.
const garbageRetry = time.Minute

// collector removes unused containers and sandboxes.
type collector struct {
	limits   GarbageLimits
	pods     func() []*pod.Status
	hasEnded func(uid pod.UID) bool
	remover  *remover
	events   Recorder
	journal  *journal.Journal
	failed   bool // the last removeDead failed; used by its caller only
}

// collect removes what the pod, and by the node's limit other pods, do not need.
func (c *collector) collect(ctx context.Context, observed *pod.Status, res *Result) error {
	now := time.Now()
	g := computeGarbage(observed, c.limits, now)
	removed := map[pod.ContainerID]bool{}
	for _, cs := range g.Containers {
		if err := c.remover.removeContainer(ctx, observed, cs, WithLogs); err != nil {
			return err
		}
		res.Touched, removed[cs.ID] = true, true
	}
	for _, id := range g.Sandboxes {
		if err := c.remover.removeSandbox(ctx, id); err != nil {
			return err
		}
		res.Touched = true
	}
	res.retry(g.Next)
	if c.limits.MaxTotal < 1 {
		return nil
	}
	// Other pods' containers as last observed: removing one that does not exist is a no-op.
	for _, d := range computeNodeGarbage(c.nodeWith(observed, removed), c.limits, now) {
		if err := c.remover.removeContainer(ctx, d.pod, d.container, WithLogs); err != nil {
			return err
		}
	}
	return nil
}

// nodeWith returns all pods as last observed, this one as observed and without the removed
// containers.
func (c *collector) nodeWith(observed *pod.Status, removed map[pod.ContainerID]bool) []*pod.Status {
	mine := *observed
	mine.Containers = slices.DeleteFunc(slices.Clone(observed.Containers), func(cs pod.ContainerStatus) bool { return removed[cs.ID] })
	out := slices.DeleteFunc(slices.Clone(c.pods()), func(s *pod.Status) bool { return s.UID == observed.UID })
	return append(out, &mine)
}
