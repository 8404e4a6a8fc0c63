package allocation

import (
	"log/slog"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/checkpoint"
	"berth/internal/pod"
)

// record is immutable.
type record struct {
	resources
	// While a resize is in progress, Actuated has the resources of the containers, and Cgroup those
	// of the pod's cgroup. Otherwise both are nil: they equal the allocation.
	Actuated *resources `json:"actuated,omitempty"`
	Cgroup   *resources `json:"cgroup,omitempty"`
	// Superseded: the resize in progress replaced an incomplete one, so some actuated values may be
	// that one's.
	Superseded bool `json:"superseded,omitempty"`
	// Generation is that of the spec with these resources; 0 for a pod that was never resized.
	Generation int64 `json:"generation,omitempty"`

	// Admitted: the pod also got all its other resources, so it is no longer rejected.
	Admitted bool `json:"admitted,omitempty"`

	// current: this agent admitted the pod, or found it running.
	current bool
	// same is the pod whose spec was last found to equal these resources. It is a cache: each
	// admission compares every pod of the node.
	same *v1.Pod
}

type resources struct {
	// Containers are the resources of init and regular containers by name.
	Containers map[string]v1.ResourceRequirements `json:"containers,omitempty"`
	// Pod are the pod-level resources, if the pod has any.
	Pod *v1.ResourceRequirements `json:"pod,omitempty"`
}

// Config configures Allocations.
type Config struct {
	// File stores the records; "" keeps them in memory only.
	File string
	// Kubelet is the directory of the kubelet's state files, for a migration from or to a kubelet;
	// "": none.
	Kubelet string
	Log     *slog.Logger
	// SetAside is called when an unreadable file was moved aside, with the message of an event
	// about the node. It may be nil.
	SetAside func(message string)
}

// Allocations are the records of all admitted pods. They are safe for concurrent use.
type Allocations struct {
	cfg  Config
	file *checkpoint.WarmTable[pod.UID, record]
	// unsaved names the pods whose record may differ from the file, changed those whose results of
	// IsCurrent and Apply may differ. Both are published with mu held.
	unsaved *pod.Inbox[pod.UID]
	changed pod.Publisher[pod.UID]

	mu      sync.Mutex
	pods    map[pod.UID]record // guarded by mu
	resizes map[pod.UID]Resize // guarded by mu; pending resizes, and those that failed last
}

// New returns Allocations without records. Load reads those of an earlier run.
func New(cfg Config) *Allocations {
	a := &Allocations{cfg: cfg, unsaved: pod.NewInbox[pod.UID](), pods: map[pod.UID]record{}, resizes: map[pod.UID]Resize{}}
	a.file = a.newFile()
	return a
}

// Subscribe returns an inbox that receives every pod whose results of IsCurrent and Apply may
// change. Call it before any record is written.
func (a *Allocations) Subscribe() *pod.Inbox[pod.UID] {
	in, _ := a.changed.Subscribe()
	return in
}

// Allocate records the pod's resources, unless it has a record: only Grant changes an allocation.
func (a *Allocations) Allocate(p *v1.Pod) {
	a.mu.Lock()
	r, known := a.pods[p.UID]
	if !known {
		r = record{resources: resourcesOf(p)}
	}
	r.current = true
	a.pods[p.UID] = r
	a.changed.Publish(p.UID)
	if !known {
		a.unsaved.Put(p.UID)
	}
	a.mu.Unlock()
}

// Admit marks the pod, which has a record, as admitted: it has got all its resources.
func (a *Allocations) Admit(uid pod.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r, known := a.pods[uid]; known && !r.Admitted {
		r.Admitted = true
		a.pods[uid] = r
		a.unsaved.Put(uid)
	}
}

// WasAdmitted reports whether this agent or an earlier one admitted the pod.
func (a *Allocations) WasAdmitted(uid pod.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pods[uid].Admitted
}

// IsCurrent reports whether Allocate was called for the pod since this agent started.
func (a *Allocations) IsCurrent(uid pod.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pods[uid].current
}

// Apply returns the pod with its allocation: p itself if the allocation equals its spec, or if it
// has no record.
func (a *Allocations) Apply(p *v1.Pod) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, known := a.pods[p.UID]
	if !known || r.same == p {
		return p
	}
	out := apply(&r.resources, p)
	if out == p {
		r.same = p
		a.pods[p.UID] = r
	}
	return out
}

// Forget removes the record of a pod.
func (a *Allocations) Forget(uid pod.UID) {
	a.mu.Lock()
	_, known := a.pods[uid]
	delete(a.pods, uid)
	delete(a.resizes, uid)
	if known {
		a.unsaved.Put(uid)
		a.changed.Publish(uid)
	}
	a.mu.Unlock()
}

// Retain removes the records of all pods that are not in keep.
func (a *Allocations) Retain(keep map[pod.UID]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid := range a.pods {
		if !keep[uid] {
			delete(a.pods, uid)
			delete(a.resizes, uid)
			a.unsaved.Put(uid)
			a.changed.Publish(uid)
		}
	}
}

func resourcesOf(p *v1.Pod) resources {
	r := resources{Containers: map[string]v1.ResourceRequirements{}}
	for c := range pod.Containers(&p.Spec) {
		r.Containers[c.Name] = *c.Resources.DeepCopy()
	}
	if p.Spec.Resources != nil {
		r.Pod = p.Spec.Resources.DeepCopy()
	}
	return r
}

// apply returns p with the resources, or p itself if it has them. It does not change p, which is
// shared.
func apply(r *resources, p *v1.Pod) *v1.Pod {
	differs := r.Pod != nil && (p.Spec.Resources == nil || !same(r.Pod, p.Spec.Resources))
	for c := range pod.Containers(&p.Spec) {
		was, known := r.Containers[c.Name]
		differs = differs || known && !same(&was, &c.Resources)
	}
	if !differs {
		return p
	}
	out := p.DeepCopy()
	if r.Pod != nil {
		out.Spec.Resources = r.Pod.DeepCopy()
	}
	for c := range pod.Containers(&out.Spec) {
		if was, known := r.Containers[c.Name]; known {
			c.Resources = *was.DeepCopy()
		}
	}
	return out
}

// same compares amounts by value. It does not use reflection: each admission compares every pod of
// the node.
func same(a, b *v1.ResourceRequirements) bool {
	equal := func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 }
	return maps.EqualFunc(a.Requests, b.Requests, equal) && maps.EqualFunc(a.Limits, b.Limits, equal) && slices.Equal(a.Claims, b.Claims)
}
