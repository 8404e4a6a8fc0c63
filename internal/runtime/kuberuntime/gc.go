package kuberuntime

import (
	"cmp"
	"context"
	"slices"
	"time"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

// GarbageLimits say how many containers that have ended stay for inspection. The newest ended
// incarnation of each container is always there as long as its pod is there: it is the container's
// last state, and holds its restart count.
type GarbageLimits struct {
	// MinAge is how long ago a container must have ended to be removed
	// (--minimum-container-ttl-duration).
	MinAge time.Duration
	// MaxPerContainer is the number of ended incarnations that stay of one container
	// (--maximum-dead-containers-per-container); less than 1 means 1.
	MaxPerContainer int
	// MaxTotal is the number of ended containers on the node above which the oldest go
	// (--maximum-dead-containers); less than 1 means no limit.
	MaxTotal int
}

// garbage is what nothing needs any more of one pod.
type garbage struct {
	Containers []*pod.ContainerStatus
	Sandboxes  []pod.SandboxID
	// Next is when a container that is too young will be garbage; zero when there is none.
	Next time.Time
}

// computeGarbage picks of one pod the ended incarnations beyond those that stay, containers that
// were created and never started, of which there is a newer one, and dead sandboxes other than the
// newest that have no container.
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

// deadContainer is an ended container of some pod.
type deadContainer struct {
	pod       *pod.Status
	container *pod.ContainerStatus
}

// computeNodeGarbage picks the oldest ended containers of all pods above the node's limit, as far
// as they are no last states.
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

// isYoung reports whether the container ended less than minAge ago. An end in the future was
// written before the host's clock was set back: it says no age, and nothing waits until it is as
// late again.
func isYoung(cs *pod.ContainerStatus, minAge time.Duration, now time.Time) bool {
	age := now.Sub(endOf(cs))
	return age >= 0 && age < minAge
}

// endOf returns when a container ended; of one that never ran, when it was created.
func endOf(cs *pod.ContainerStatus) time.Time {
	if cs.FinishedAt.IsZero() {
		return cs.CreatedAt
	}
	return cs.FinishedAt
}

// garbageRetry spaces the tries to remove what could not be removed.
const garbageRetry = time.Minute

// collector removes containers and sandboxes that nothing needs any more.
type collector struct {
	limits   GarbageLimits
	pods     func() []*pod.Status // nil: nothing is known of other pods
	hasEnded func(uid pod.UID) bool
	remover  *remover
	event    func(eventtype, reason, message string)
	journal  *journal.Journal
	failed   bool // the last removeDead left something; its caller's
}

func newCollector(cfg Config, r *Runtime) *collector {
	c := &collector{
		limits: cfg.Garbage, pods: cfg.Pods, hasEnded: cfg.HasEnded, remover: r.remover, event: cfg.Sandboxes.NodeEvent, journal: cfg.Journal,
	}
	if c.hasEnded == nil {
		c.hasEnded = func(pod.UID) bool { return false }
	}
	if c.event == nil {
		c.event = func(string, string, string) {}
	}
	return c
}

// collect removes what the pod, and by the node's limit other pods, do not need any more.
func (c *collector) collect(ctx context.Context, observed *pod.Status, res *Result) error {
	now := time.Now()
	g := computeGarbage(observed, c.limits, now)
	gone := map[pod.ContainerID]bool{}
	for _, cs := range g.Containers {
		if err := c.remover.removeContainer(ctx, observed, cs, WithLogs); err != nil {
			return err
		}
		res.Touched, gone[cs.ID] = true, true
	}
	for _, id := range g.Sandboxes {
		if err := c.remover.removeSandbox(ctx, id); err != nil {
			return err
		}
		res.Touched = true
	}
	res.retry(g.Next)
	if c.pods == nil || c.limits.MaxTotal < 1 {
		return nil
	}
	// Others' containers as they were last seen: one that is gone by now is removed once more,
	// which does nothing.
	for _, d := range computeNodeGarbage(c.nodeWith(observed, gone), c.limits, now) {
		if err := c.remover.removeContainer(ctx, d.pod, d.container, WithLogs); err != nil {
			return err
		}
	}
	return nil
}

// nodeWith returns all pods as last seen, this one as observed and without the containers that are
// gone.
func (c *collector) nodeWith(observed *pod.Status, gone map[pod.ContainerID]bool) []*pod.Status {
	mine := *observed
	mine.Containers = slices.DeleteFunc(slices.Clone(observed.Containers), func(cs pod.ContainerStatus) bool { return gone[cs.ID] })
	out := slices.DeleteFunc(slices.Clone(c.pods()), func(s *pod.Status) bool { return s.UID == observed.UID })
	return append(out, &mine)
}
