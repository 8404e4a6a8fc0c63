package admission

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/pod/allocation"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/journal"
)

// Config holds the dependencies of a Chain.
type Config struct {
	Handlers []Handler
	// Ready is closed when Observed is complete, that is when all running pods are known.
	Ready <-chan struct{}
	// Pods has the desired pods, and States their lifecycles.
	Pods   *pod.Manager
	States *pod.States
	// Observed has the observed states of pods.
	Observed Observations
	// Ended reports whether an earlier agent saw the pod terminate: it no longer needs resources.
	// It must not block.
	Ended func(uid pod.UID) bool
	// Reject records a rejection: status Failed and an event.
	Reject func(p *v1.Pod, r Rejection)

	// Node returns the newest Node, which is shared and immutable, and whether it is known.
	Node func() (*v1.Node, bool)
	// Refresh reads the Node from the API server, so that Node returns the current one. Static pods
	// never wait for it.
	Refresh func(ctx context.Context) error
	// Facts returns the current facts of the machine.
	Facts func() Facts
	// Allocations persists the resources of admitted pods.
	Allocations *allocation.Allocations
	// Assigner assigns exclusive resources.
	Assigner Assigner
	// Devices returns, for each extended resource, how many devices pods can use in total: the
	// healthy ones, and at least as many as are in use. For missing ones, the Node's counts apply.
	Devices func() map[v1.ResourceName]int64
	// Wake wakes the worker of a pod whose pending resize was reconsidered. It must not block.
	Wake func(uid pod.UID)
	// Preempt enables preemption of other pods for critical pods that lack resources.
	Preempt bool
	// Event records an event about a pod.
	Event func(p *v1.Pod, container, eventtype, reason, message string)
	// Metrics is the registry; nil: metrics are not registered.
	Metrics prometheus.Registerer
	Journal *journal.Journal
}

// Observations has the newest observed states of pods. No method blocks.
type Observations interface {
	// Newest returns the newest observed state of the pod, and false if the runtime does not have
	// it.
	Newest(uid pod.UID) (*pod.Status, bool)
	// Subscribe returns an inbox that receives every pod whose observed state changed.
	Subscribe() *pod.Inbox[pod.UID]
}

// Verdict is the result of an admission.
type Verdict struct {
	Admitted bool
	// Later is closed when the pod is to be admitted again, because resources are being freed; nil
	// if the verdict is final.
	Later <-chan struct{}
	// Victims are to be evicted now to free resources.
	Victims []Victim
}

// Victim is a pod to preempt. It has its own grace period to terminate.
type Victim struct {
	Pod *v1.Pod
	// Status is applied to the final status of the pod.
	Status func(*v1.PodStatus)
	// Done is to be closed when no container of the pod is running.
	Done chan<- struct{}
}

// Chain runs the handlers in order.
type Chain struct {
	cfg     Config
	metrics *metrics

	deciding sync.Mutex                 // serializes decisions: resources are granted once
	pending  map[pod.UID]*pendingResize // guarded by deciding; resizes that were not granted
	account  account                    // guarded by deciding

	mu      sync.Mutex
	victims []<-chan struct{} // guarded by mu; each is closed when a preempted pod has terminated
}

// New returns a chain.
func New(cfg Config) *Chain {
	c := &Chain{cfg: cfg, metrics: newMetrics(cfg.Metrics), pending: map[pod.UID]*pendingResize{}}
	c.account = newAccount(&c.cfg)
	return c
}

// Admit decides whether the pod may start. It records a rejection, and stores the requests of an
// admitted pod as its allocation. A pod that has terminated is admitted without resources, so that
// its worker cleans it up. Admit waits until all running pods are known, and a few seconds for a
// newer Node. It does not wait for capacity: the verdict is Later while a preemption is in
// progress, for this pod or another, so that no pod is rejected for capacity that is about to be
// free. Its error is that of ctx.
func (c *Chain) Admit(ctx context.Context, p *v1.Pod) (Verdict, error) {
	select {
	case <-c.cfg.Ready:
	case <-ctx.Done():
		return Verdict{}, ctx.Err()
	}
	if c.cfg.Ended(p.UID) {
		return Verdict{Admitted: true}, nil
	}
	if later := c.preemptionInProgress(); later != nil {
		return Verdict{Later: later}, nil
	}
	again := c.cfg.Allocations.WasAdmitted(p.UID)
	a, r := c.judge(p)
	if r != nil && r.stale && !pod.IsStatic(p) {
		if err := c.refresh(ctx); err != nil {
			if ctx.Err() != nil {
				return Verdict{}, ctx.Err()
			}
			c.note(p, "judge by the Node as it was last seen", r.Message, err)
		}
		a, r = c.judge(p)
	}
	if r != nil && len(r.shortages) > 0 && pod.IsCritical(p) && c.cfg.Preempt {
		victims, err := rankVictims(a.Pod, a.OtherPods(), r.shortages)
		if err == nil {
			for _, s := range r.shortages {
				c.metrics.preempted(s.resource)
			}
			return c.preempt(p, victims, r.shortages), nil
		}
		r = &Rejection{
			Reason:  "UnexpectedAdmissionError",
			Message: "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: " + err.Error(),
		}
	}
	switch {
	case r != nil:
	case again:
		c.assignAgain(a.Pod)
	default:
		r = c.assign(a.Pod)
	}
	if r != nil {
		c.cfg.Assigner.Release(p.UID)
		c.cfg.Allocations.Forget(p.UID)
		if r.Detail != "" {
			c.note(p, "refuse the pod", r.Detail, nil)
		}
		c.metrics.rejected(r.Reason)
		c.cfg.Reject(p, *r)
		return Verdict{}, nil
	}
	c.cfg.Allocations.Admit(p.UID)
	if fields := ineffective(p); a.Facts.Unlabelled && !again && len(fields) > 0 {
		c.cfg.Event(p, "", v1.EventTypeWarning, "IneffectiveField", strings.Join(fields, ", ")+
			": the runtime of berth labels no container: start berth with --selinux where the machine has SELinux, else remove it")
	}
	return Verdict{Admitted: true}, nil
}

// judge runs the handlers, and stores the allocation of a pod that they admit.
func (c *Chain) judge(p *v1.Pod) (Attributes, *Rejection) {
	c.deciding.Lock()
	defer c.deciding.Unlock()
	a := c.attributesLocked(c.cfg.Allocations.Apply(p))
	r := judge(c.cfg.Handlers, a)
	if r == nil {
		c.cfg.Allocations.Allocate(p)
	}
	return a, r
}

// refreshLimit limits how long a pod, and the pods behind it, wait for a newer Node.
const refreshLimit = 10 * time.Second

func (c *Chain) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, refreshLimit)
	defer cancel()
	return c.cfg.Refresh(ctx)
}

// Adopt stores the allocation of a running pod that an earlier run of the agent admitted.
func (c *Chain) Adopt(p *v1.Pod) {
	c.cfg.Allocations.Allocate(p)
	c.cfg.Allocations.Admit(p.UID)
}

// Forget drops all state of a removed pod.
func (c *Chain) Forget(uid pod.UID) {
	c.deciding.Lock()
	delete(c.pending, uid)
	c.cfg.Allocations.Forget(uid)
	c.deciding.Unlock()
	c.cfg.Assigner.Release(uid)
}

// Retain drops the state of all pods that are not in keep.
func (c *Chain) Retain(keep map[pod.UID]bool) {
	c.deciding.Lock()
	c.cfg.Allocations.Retain(keep)
	c.deciding.Unlock()
	c.cfg.Assigner.Retain(keep)
}

// attributesLocked returns the handlers' input for the pod. c.deciding is held, also while the
// handlers run.
func (c *Chain) attributesLocked(p *v1.Pod) Attributes {
	a := Attributes{
		Pod: p, Facts: c.cfg.Facts(), used: c.account.others(p.UID),
		OtherPods: func() []*v1.Pod { return c.otherPods(p.UID) },
	}
	if n, known := c.cfg.Node(); known {
		a.Node = withDevices(n, c.cfg.Devices())
	}
	return a
}

func (c *Chain) otherPods(uid pod.UID) []*v1.Pod {
	var out []*v1.Pod
	for _, o := range c.cfg.Pods.List() {
		if o.UID != uid && c.cfg.isActive(o.UID) {
			out = append(out, c.cfg.Allocations.Apply(o))
		}
	}
	return out
}

// preemptionInProgress returns a channel that is closed when the next preempted pod has terminated,
// nil if there is none.
func (c *Chain) preemptionInProgress() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.victims) > 0 {
		select {
		case <-c.victims[0]:
			c.victims = c.victims[1:]
		default:
			return c.victims[0]
		}
	}
	return nil
}

// preempt preempts the victims and returns the verdict that the pod waits for them.
func (c *Chain) preempt(p *v1.Pod, victims []*v1.Pod, shortages []shortage) Verdict {
	var names, lacks []string
	for _, v := range victims {
		grace := time.Duration(ptr.Deref(v.Spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)) * time.Second
		names = append(names, fmt.Sprintf("%s/%s (%s, priority %d), which has %d s to end, until %s",
			v.Namespace, v.Name, cgroups.QOSClass(v), priorityOf(v), grace/time.Second, time.Now().Add(grace).UTC().Format(time.RFC3339)))
	}
	for _, s := range shortages {
		lacks = append(lacks, s.rejection().Message)
	}
	c.note(p, "end other pods to make room", fmt.Sprintf("%s; its own priority is %d, and %s", strings.Join(names, "; "), priorityOf(p), strings.Join(lacks, "; ")), nil)
	var verdict Verdict
	for _, v := range victims {
		done := make(chan struct{})
		c.mu.Lock()
		c.victims = append(c.victims, done)
		c.mu.Unlock()
		c.cfg.Event(v, "", v1.EventTypeWarning, lifecycle.Preempting, preemptingMessage)
		c.note(v, "end the pod to make room", fmt.Sprintf("critical pod %s/%s, whose priority is %d, that of this %s pod %d: %s",
			p.Namespace, p.Name, priorityOf(p), cgroups.QOSClass(v), priorityOf(v), strings.Join(lacks, "; ")), nil)
		verdict.Victims = append(verdict.Victims, Victim{Pod: v, Status: preemptedStatus(v), Done: done})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	verdict.Later = c.victims[0]
	return verdict
}

func (c *Chain) note(p *v1.Pod, decision, why string, err error) {
	c.cfg.Journal.Record(journal.Entry{
		Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
		Component: "admission", Decision: decision, Why: why, Error: journal.Error(err),
	})
}
