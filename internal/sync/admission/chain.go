package admission

import (
	"context"
	"fmt"
	"log/slog"
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

// Config is what a Chain needs.
type Config struct {
	Handlers []Handler
	// Ready is closed when Observed is complete: when it is known what already runs.
	Ready <-chan struct{}
	// Pods are the desired pods and States their lives.
	Pods   *pod.Manager
	States *pod.States
	// Observed shows what runs.
	Observed Observations
	// Ended reports whether the pod has ended already, as an earlier agent saw: it asks for nothing
	// any more. Nil: none has. It must not block.
	Ended func(uid pod.UID) bool
	// Reject records a refusal: status Failed and an event.
	Reject func(p *v1.Pod, r Rejection)

	// Node returns the newest Node, which is shared and is not changed, and whether it is known. If
	// the func is nil, nothing that depends on the Node is judged.
	Node func() (*v1.Node, bool)
	// Refresh reads the Node from the API server, so that Node returns what it is now; nil where
	// there is none. Static pods never wait for it.
	Refresh func(ctx context.Context) error
	// Facts returns what is true of the machine now; nil is the zero Facts.
	Facts func() Facts
	// Allocations keep what pods were admitted with; nil keeps it in memory.
	Allocations *allocation.Allocations
	// Assigner gives admitted pods what is theirs alone; nil: nothing is.
	Assigner Assigner
	// Devices returns how many devices of each extended resource pods can have in all: those that
	// are healthy, and at least as many as pods have. Nil: only the Node says it.
	Devices func() map[v1.ResourceName]int64
	// Wake lets the worker of a pod look at it again, because a resize of it that waited was
	// decided anew; nil: nobody cares. It must not block.
	Wake func(uid pod.UID)
	// Preempt has other pods end for critical ones that lack resources.
	Preempt bool
	// Event records an event about a pod; nil if nobody reads them.
	Event func(p *v1.Pod, container, eventtype, reason, message string)
	// Metrics is where metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
	// Journal may be nil.
	Journal *journal.Journal
}

// Observations are what the runtime showed last of pods. No method blocks.
type Observations interface {
	// Newest returns the newest observation of the pod, and false when the runtime has nothing of
	// it.
	Newest(uid pod.UID) (*pod.Status, bool)
	// Subscribe returns an inbox that gets every pod whose observation changed.
	Subscribe() *pod.Inbox[pod.UID]
}

// Verdict is what becomes of a pod that asks to start.
type Verdict struct {
	Admitted bool
	// Later is closed when the pod is to ask again, because room is being made; nil if the verdict
	// is final.
	Later <-chan struct{}
	// Victims are to be evicted now, so that there is room later.
	Victims []Victim
}

// Victim is a pod that has to go: its containers end within its own grace period.
type Victim struct {
	Pod *v1.Pod
	// Status is applied to the final status of the pod.
	Status func(*v1.PodStatus)
	// Done is to be closed when no container of the pod runs any more.
	Done chan<- struct{}
}

// Chain asks the handlers in turn.
type Chain struct {
	cfg     Config
	metrics *metrics

	deciding sync.Mutex              // one decision at a time: what a pod is given another cannot get
	wishes   map[pod.UID]*resizeWish // guarded by deciding; resizes that were not granted
	account  account                 // guarded by deciding

	mu      sync.Mutex
	victims []<-chan struct{} // guarded by mu; each is closed when a pod has ended that was killed to make room
}

// New returns a chain.
func New(cfg Config) *Chain {
	if cfg.Node == nil {
		cfg.Node = func() (*v1.Node, bool) { return &v1.Node{}, true }
	}
	if cfg.Pods == nil {
		cfg.Pods = pod.NewManager()
	}
	if cfg.States == nil {
		cfg.States = pod.NewStates()
	}
	if cfg.Facts == nil {
		cfg.Facts = func() Facts { return Facts{} }
	}
	if cfg.Allocations == nil {
		cfg.Allocations = allocation.New(allocation.Config{})
	}
	if cfg.Assigner == nil {
		cfg.Assigner = nobody{}
	}
	if cfg.Devices == nil {
		cfg.Devices = func() map[v1.ResourceName]int64 { return nil }
	}
	if cfg.Event == nil {
		cfg.Event = func(*v1.Pod, string, string, string, string) {}
	}
	if cfg.Journal == nil {
		cfg.Journal = journal.New(slog.New(slog.DiscardHandler))
	}
	if cfg.Wake == nil {
		cfg.Wake = func(pod.UID) {}
	}
	c := &Chain{cfg: cfg, metrics: newMetrics(cfg.Metrics), wishes: map[pod.UID]*resizeWish{}}
	c.account = newAccount(&c.cfg)
	return c
}

// Admit decides whether the pod may start. A refusal is recorded; what an admitted pod asks for is
// kept as its allocation. A pod that has ended is admitted and given nothing: only its end is
// looked at. Admit waits until it is known what already runs, and a few seconds for a newer Node.
// It does not wait for room: the verdict is Later as long as some is being made, for this pod or
// another, since nobody is to be refused for want of what is about to be free. Its error is that of
// ctx.
func (c *Chain) Admit(ctx context.Context, p *v1.Pod) (Verdict, error) {
	select {
	case <-c.cfg.Ready:
	case <-ctx.Done():
		return Verdict{}, ctx.Err()
	}
	if c.cfg.Ended != nil && c.cfg.Ended(p.UID) {
		return Verdict{Admitted: true}, nil
	}
	if later := c.preemptionUnderWay(); later != nil {
		return Verdict{Later: later}, nil
	}
	again := c.cfg.Allocations.WasAdmitted(p.UID)
	a, r := c.judge(p)
	if r != nil && r.stale && c.cfg.Refresh != nil && !pod.IsStatic(p) {
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

// judge asks the handlers, and keeps the allocation of a pod that they admit.
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

// refreshLimit bounds how long a pod, and those behind it, wait for a newer Node.
const refreshLimit = 10 * time.Second

func (c *Chain) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, refreshLimit)
	defer cancel()
	return c.cfg.Refresh(ctx)
}

// Adopt keeps the allocation of a pod that runs already: an earlier run of the agent admitted it.
func (c *Chain) Adopt(p *v1.Pod) {
	c.cfg.Allocations.Allocate(p)
	c.cfg.Allocations.Admit(p.UID)
}

// Forget drops what is kept of a pod that is gone.
func (c *Chain) Forget(uid pod.UID) {
	c.deciding.Lock()
	delete(c.wishes, uid)
	c.cfg.Allocations.Forget(uid)
	c.deciding.Unlock()
	c.cfg.Assigner.Release(uid)
}

// Retain drops what is kept of all pods but these.
func (c *Chain) Retain(keep map[pod.UID]bool) {
	c.deciding.Lock()
	c.cfg.Allocations.Retain(keep)
	c.deciding.Unlock()
	c.cfg.Assigner.Retain(keep)
}

// attributesLocked gathers what is to be judged of the pod with these resources. c.deciding is
// held, also while it is judged.
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

// otherPods returns the active pods but this one, with the resources that they were admitted with.
func (c *Chain) otherPods(uid pod.UID) []*v1.Pod {
	var out []*v1.Pod
	for _, o := range c.cfg.Pods.List() {
		if o.UID != uid && c.cfg.isActive(o.UID) {
			out = append(out, c.cfg.Allocations.Apply(o))
		}
	}
	return out
}

// preemptionUnderWay returns what is closed when the next pod has ended that was killed to make
// room, nil if there is none to wait for.
func (c *Chain) preemptionUnderWay() <-chan struct{} {
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

// preempt returns the verdict that the pod waits for the end of the victims.
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
