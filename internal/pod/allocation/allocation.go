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

// record is what one pod was given. It is replaced, never changed.
type record struct {
	resources
	// Actuated is what the containers have, and Cgroup what the pod's cgroup was made for, while a
	// resize is under way; nil otherwise: then it is what the pod was given.
	Actuated *resources `json:"actuated,omitempty"`
	Cgroup   *resources `json:"cgroup,omitempty"`
	// Superseded: the resize under way took the place of another that was not complete, so that
	// some values may be what that one wanted.
	Superseded bool `json:"superseded,omitempty"`
	// Generation is that of the spec whose resources these are; 0 is that of a pod that was never
	// resized.
	Generation int64 `json:"generation,omitempty"`

	// Admitted: the pod was given all that it needs besides, so that it is not refused any more.
	Admitted bool `json:"admitted,omitempty"`

	// current: this agent admitted the pod, or found it running.
	current bool
	// same is the pod that was last found to have these resources in its spec. It is asked of every
	// pod of the node whenever one is admitted.
	same *v1.Pod
}

// resources are those of one pod.
type resources struct {
	// Containers are the resources of init and regular containers by name.
	Containers map[string]v1.ResourceRequirements `json:"containers,omitempty"`
	// Pod are the resources at pod level, if the pod has any.
	Pod *v1.ResourceRequirements `json:"pod,omitempty"`
}

// Config is what Allocations need.
type Config struct {
	// File keeps the records; "" keeps them in memory alone.
	File string
	// Kubelet is the folder of the files in which a kubelet keeps the same; "": none did or will.
	Kubelet string
	Log     *slog.Logger
	// SetAside is told that a file that could not be read was moved out of the way, in words for an
	// event about the node. It may be nil.
	SetAside func(message string)
}

// Allocations are the records of all admitted pods. They are safe for concurrent use.
type Allocations struct {
	cfg  Config
	file *checkpoint.WarmTable[pod.UID, record]
	// unsaved names the pods whose record may be another than in the file, changed those of which
	// IsCurrent and Apply may say something else. Both get them with mu held.
	unsaved *pod.Inbox[pod.UID]
	changed pod.Publisher[pod.UID]

	mu      sync.Mutex
	pods    map[pod.UID]record // guarded by mu
	resizes map[pod.UID]Resize // guarded by mu; those that wait, or that failed last
}

// New returns Allocations without records. Load reads those of an earlier run.
func New(cfg Config) *Allocations {
	a := &Allocations{cfg: cfg, unsaved: pod.NewInbox[pod.UID](), pods: map[pod.UID]record{}, resizes: map[pod.UID]Resize{}}
	a.file = a.newFile()
	return a
}

// Subscribe returns an inbox that gets every pod of which IsCurrent and Apply may say something
// else. It is called before any is recorded.
func (a *Allocations) Subscribe() *pod.Inbox[pod.UID] {
	in, _ := a.changed.Subscribe()
	return in
}

// Allocate records the pod's resources, unless there is a record of it: what a pod was once given
// it keeps.
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

// Admit records that the pod, which has a record, was admitted: it was given all that it needs.
func (a *Allocations) Admit(uid pod.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r, known := a.pods[uid]; known && !r.Admitted {
		r.Admitted = true
		a.pods[uid] = r
		a.unsaved.Put(uid)
	}
}

// WasAdmitted reports whether this agent admitted the pod, or an earlier one.
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

// Apply returns the pod with the resources that it was given: p itself if they are those of its
// spec, or if it has no record.
func (a *Allocations) Apply(p *v1.Pod) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, known := a.pods[p.UID]
	if !known || r.same == p {
		return p
	}
	out := r.apply(p)
	if out == p {
		r.same = p
		a.pods[p.UID] = r
	}
	return out
}

// Forget drops the record of a pod that is gone.
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

// Retain drops the records of all pods but those to keep.
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

// apply never changes p, which is shared.
func (r *resources) apply(p *v1.Pod) *v1.Pod {
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

// same compares amounts, however they are written. It is asked of every pod of the node whenever a
// pod is admitted, so it does not reflect.
func same(a, b *v1.ResourceRequirements) bool {
	equal := func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 }
	return maps.EqualFunc(a.Requests, b.Requests, equal) && maps.EqualFunc(a.Limits, b.Limits, equal) && slices.Equal(a.Claims, b.Claims)
}
