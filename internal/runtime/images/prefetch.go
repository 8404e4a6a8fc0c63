package images

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

// prefetchValid is how long a prefetch replaces the pull that the policy Always requires at a
// container's start.
const prefetchValid = 60 * time.Second

// PrefetchContainer is a container that starts later.
type PrefetchContainer struct {
	Container *v1.Container
	// BehindInit: an init container that runs to completion precedes it, so its start time is
	// unknown.
	BehindInit bool
}

// Prefetch starts to prefetch the containers' images, and returns at once. It records no events;
// failures are only recorded in the journal, and retried and reported by Ensure. A prefetch is
// started once per container and image; Forget cancels it.
//
// Images with the pull policy Never are not prefetched, nor those with the policy Always behind an
// init container, which have to be pulled again at the start.
func (p *Puller) Prefetch(po *v1.Pod, containers []PrefetchContainer, sandbox *runtimeapi.PodSandboxConfig, handler string) {
	for _, a := range containers {
		r := request{pod: po, container: a.Container, sandbox: sandbox, began: time.Now(), silent: true}
		var err error
		if r.names, err = parseName(a.Container.Image); err != nil {
			continue // Ensure reports it
		}
		r.policy = effectivePolicy(a.Container.ImagePullPolicy, r.image)
		if r.policy == v1.PullNever || r.policy == v1.PullAlways && a.BehindInit {
			continue
		}
		r.spec = &runtimeapi.ImageSpec{Image: r.image, RuntimeHandler: handler}
		p.prefetches.begin(r, func(ctx context.Context) *prefetched { return p.prefetchImage(ctx, r) })
	}
}

// prefetchImage makes the image present if the pod may use it, and returns nil if it failed.
func (p *Puller) prefetchImage(ctx context.Context, r request) *prefetched {
	secrets := sync.OnceValue(func() []credential { return p.pullSecrets(ctx, r).lookup(locate(r.full)) })
	if r.policy != v1.PullAlways {
		img, err := p.runtime.ImageStatus(ctx, r.spec)
		if err != nil {
			return nil // Ensure retries and reports it
		}
		if img != nil && p.mayUse(ctx, r, img.Id, secrets) {
			return &prefetched{ref: img.Id}
		}
	}
	if held, _ := p.backOff.check(backOffKey{uid: r.pod.UID, image: r.image}, "", r.began); held != nil {
		return nil
	}
	fl, err := p.fetch(ctx, r, secrets)
	if err == nil {
		err = fl.err
	}
	if err != nil {
		if ctx.Err() == nil {
			e := p.entry(r, fmt.Sprintf("image %q is not there ahead of its container's turn; it is tried again then", r.container.Image))
			e.Error = journal.Error(err)
			p.journal.Record(e)
		}
		return nil
	}
	p.journal.Record(p.entry(r, fmt.Sprintf("pulled image %q ahead of its container's turn", r.container.Image)))
	return &prefetched{ref: fl.ref, size: fl.size, took: fl.took, at: time.Now()}
}

// fetch pulls the image with the credentials of the pod and then those of the node. The returned
// pull has completed, successfully or not.
func (p *Puller) fetch(ctx context.Context, r request, secrets func() []credential) (*pull, error) {
	credentials := append(slices.Clip(secrets()), p.nodeCredentials(ctx, r)...)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return p.pulls.pull(ctx, pullRequest{
		names: r.names, uid: r.pod.UID, spec: r.spec, sandbox: r.sandbox, credentials: credentials, ahead: r.silent,
	})
}

// Forget cancels the prefetches of a pod whose containers will not be started any more, and unpins
// its images. Idempotent.
func (p *Puller) Forget(uid pod.UID) { p.prefetches.forget(uid) }

// Pinned returns the runtime's references to images that containers will be started from:
// prefetched images, and those that Ensure returned recently. Image garbage collection retains
// them, although no container uses them.
func (p *Puller) Pinned() map[string]bool {
	refs := p.prefetches.refs()
	p.pins.addTo(refs)
	return refs
}

// Run waits until ctx is done, cancels all prefetches, and returns when they have terminated.
func (p *Puller) Run(ctx context.Context) error {
	<-ctx.Done()
	p.prefetches.stop()
	return ctx.Err()
}

// prefetches are the prefetched images of each pod until it is forgotten.
type prefetches struct {
	running sync.WaitGroup

	mu      sync.Mutex
	pods    map[pod.UID]map[prefetchKey]*prefetch // guarded by mu
	stopped bool                                  // guarded by mu; no prefetch is started any more
}

type prefetchKey struct{ container, image string }

// prefetch is the prefetch of one image for one container. Its fields are guarded by prefetches.mu.
type prefetch struct {
	cancel context.CancelFunc
	got    *prefetched // nil while in progress, and if it failed
	used   bool        // the container was started
}

// prefetched is an image that was made present before its container's start.
type prefetched struct {
	ref  string
	size uint64 // bytes; 0 if unknown
	took time.Duration
	at   time.Time // end of the pull; zero if the image was present before
}

func keyOf(r request) prefetchKey { return prefetchKey{container: r.container.Name, image: r.image} }

// begin runs fetch for the request, unless it was started before.
func (a *prefetches) begin(r request, fetch func(context.Context) *prefetched) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.pods[r.pod.UID]
	if a.stopped || of[keyOf(r)] != nil {
		return
	}
	if of == nil {
		of = map[prefetchKey]*prefetch{}
		a.pods[r.pod.UID] = of
	}
	// Not the context of a pass: passes complete while the init containers are running.
	ctx, cancel := context.WithCancel(context.Background())
	l := &prefetch{cancel: cancel}
	of[keyOf(r)] = l
	a.running.Go(func() {
		defer cancel()
		got := fetch(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		l.got = got
	})
}

// take returns the prefetched image if it may replace the pull at the container's start: only once,
// and only for prefetchValid.
func (a *prefetches) take(r request) *prefetched {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.pods[r.pod.UID][keyOf(r)]
	if l == nil || l.used {
		return nil
	}
	l.used = true
	if l.got == nil || r.began.Sub(l.got.at) > prefetchValid {
		return nil
	}
	return l.got
}

func (a *prefetches) forget(uid pod.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.pods[uid] {
		l.cancel()
	}
	delete(a.pods, uid)
}

func (a *prefetches) refs() map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	refs := map[string]bool{}
	for _, of := range a.pods {
		for _, l := range of {
			if l.got != nil {
				refs[l.got.ref] = true
			}
		}
	}
	return refs
}

func (a *prefetches) stop() {
	a.mu.Lock()
	a.stopped = true
	uids := slices.Collect(maps.Keys(a.pods))
	a.mu.Unlock()
	for _, uid := range uids {
		a.forget(uid)
	}
	a.running.Wait()
}
