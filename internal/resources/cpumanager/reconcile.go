package cpumanager

import (
	"context"
	"fmt"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/health"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

// Runtime updates running containers; *cri.Client implements it.
type Runtime interface {
	// UpdateContainerResources changes the limits of a container; zero fields do not change.
	UpdateContainerResources(ctx context.Context, id pod.ContainerID, r *runtimeapi.LinuxContainerResources) error
}

const (
	// maxUpdates limits concurrent updates, so that a hung one does not delay the others, and a
	// hundred updates do not start a hundred processes.
	maxUpdates = 8
	// reportAfter is the number of consecutive failures after which an error is reported: the first
	// update may fail because the container has just exited.
	reportAfter  = 2
	firstBackOff = time.Second
	maxBackOff   = time.Minute
)

type container struct {
	id       pod.ContainerID
	name     string
	subject  journal.Subject
	has      string // the cpuset that the runtime last applied; "": unknown
	updating bool
	// failures counts consecutive failed updates to failedTo.
	failures int
	failedTo string
	retryAt  time.Time
}

// reconciler updates running containers to match the pools. Only run uses the fields below
// containers.
type reconciler struct {
	policy  *policy
	store   *store
	runtime Runtime
	changed *pod.Inbox[pod.UID]
	newest  func(uid pod.UID) (*pod.Status, bool)
	journal *journal.Journal
	wakeUp  chan struct{}  // capacity 1
	stuck   health.Latches // containers that the runtime failed to update

	containers map[pod.ContainerID]*container
	updating   int
	results    chan result
	workers    sync.WaitGroup

	fileFailures int
	fileRetryAt  time.Time
}

type result struct {
	container *container
	to        string
	err       error
}

// Run updates running containers to match the pools until ctx is done: when the pools change, and
// when a container has started.
//
// Differs from the kubelet: it compares all containers every cpuManagerReconcilePeriod, and lets
// them run on other containers' CPUs until then.
func (m *CPUManager) Run(ctx context.Context) error {
	if !m.policy.static {
		<-ctx.Done()
		return ctx.Err()
	}
	return m.reconciler.run(ctx)
}

func (r *reconciler) wake() {
	select {
	case r.wakeUp <- struct{}{}:
	default:
	}
}

func (r *reconciler) run(ctx context.Context) error {
	defer r.finish()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if next := r.reconcile(ctx); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-r.wakeUp:
		case <-r.changed.Wake():
			for _, uid := range r.changed.Take() {
				r.follow(uid)
			}
		case res := <-r.results:
			r.updated(res)
		}
	}
}

func (r *reconciler) finish() {
	go func() {
		r.workers.Wait()
		close(r.results)
	}()
	for range r.results {
	}
	for _, c := range r.containers {
		r.stuck.Set(c.title(), nil)
	}
}

// title names the container in health messages.
func (c *container) title() string {
	return fmt.Sprintf("CPUs of container %s of pod %s (%s)", c.name, c.subject, c.id)
}

// follow updates the set of running containers of a pod.
func (r *reconciler) follow(uid pod.UID) {
	s, ok := r.newest(uid)
	if !ok {
		s = &pod.Status{}
	}
	runs := map[pod.ContainerID]bool{}
	for i := range s.Containers {
		c := &s.Containers[i]
		if c.State != pod.StateRunning {
			continue
		}
		runs[c.ID] = true
		if r.containers[c.ID] == nil {
			r.containers[c.ID] = &container{
				id: c.ID, name: c.Name, subject: journal.Subject{UID: uid, Namespace: s.Namespace, Name: s.Name},
				has: r.store.createdWith(uid, c),
			}
		}
	}
	for id, c := range r.containers {
		if c.subject.UID == uid && !runs[id] {
			delete(r.containers, id)
			r.stuck.Set(c.title(), nil)
		}
	}
}

// reconcile updates containers with wrong CPUs, and retries a failed write of the file. It returns
// when it must be called next; zero: never.
func (r *reconciler) reconcile(ctx context.Context) (next time.Time) {
	now := time.Now()
	if r.store.writing.Err() != nil {
		next = r.retryFile(now)
	} else {
		r.fileFailures = 0
	}
	pools := r.store.current()
	for _, c := range r.containers {
		to := r.policy.cpusOf(pools, c.subject.UID, c.name)
		switch {
		case c.updating:
		case c.has == to:
			r.settled(c)
		case c.failures > 0 && c.failedTo == to && now.Before(c.retryAt):
			if next.IsZero() || c.retryAt.Before(next) {
				next = c.retryAt
			}
		case r.updating < slots(c): // otherwise retried when an update finishes
			r.update(ctx, c, to)
		}
	}
	return next
}

// slots returns the number of concurrent updates below which an update of the container may start.
// Failed containers leave half of maxUpdates to the others.
func slots(c *container) int {
	if c.failures > 0 {
		return maxUpdates / 2
	}
	return maxUpdates
}

// retryFile retries the write of the file when it is due, and returns when it must be called next.
func (r *reconciler) retryFile(now time.Time) time.Time {
	if r.fileFailures == 0 {
		r.fileFailures, r.fileRetryAt = 1, now.Add(firstBackOff)
	}
	if now.Before(r.fileRetryAt) {
		return r.fileRetryAt
	}
	if r.store.rewrite() == nil {
		r.fileFailures = 0
		return time.Time{}
	}
	r.fileFailures++
	r.fileRetryAt = now.Add(backOff(r.fileFailures))
	return r.fileRetryAt
}

// backOff returns the delay after n consecutive failures.
func backOff(failures int) time.Duration {
	return min(maxBackOff, firstBackOff<<min(failures-1, 10))
}

func (r *reconciler) update(ctx context.Context, c *container, to string) {
	r.updating++
	c.updating = true
	r.workers.Go(func() {
		err := r.runtime.UpdateContainerResources(ctx, c.id, &runtimeapi.LinuxContainerResources{CpusetCpus: to})
		r.results <- result{c, to, err}
	})
}

func (r *reconciler) updated(res result) {
	c := res.container
	r.updating--
	c.updating = false
	if res.err == nil {
		c.has = res.to
		r.settled(c)
		return
	}
	c.has = "" // the runtime may have applied it
	c.failures++
	c.failedTo, c.retryAt = res.to, time.Now().Add(backOff(c.failures))
	if r.containers[c.id] != c || c.failures < reportAfter {
		return // it has exited, or may have
	}
	r.stuck.Set(c.title(), fmt.Errorf("container %s of pod %s is not moved to the CPUs %s: %w", c.name, c.subject, res.to, res.err))
	if c.failures == reportAfter {
		r.journal.Record(journal.Entry{
			Subject: c.subject, Component: component, Container: c.name,
			Decision: fmt.Sprintf("the container is not moved to the CPUs %s, and tried again", res.to), Error: res.err.Error(),
		})
	}
}

// settled resets the failures of a container with the right CPUs.
func (r *reconciler) settled(c *container) {
	if c.failures == 0 {
		return
	}
	if c.failures >= reportAfter {
		r.stuck.Set(c.title(), nil)
		r.journal.Record(journal.Entry{
			Subject: c.subject, Component: component, Container: c.name,
			Decision: fmt.Sprintf("the container is moved to the CPUs %s", c.has), Why: fmt.Sprintf("after %d failures", c.failures),
		})
	}
	c.failures = 0
}
