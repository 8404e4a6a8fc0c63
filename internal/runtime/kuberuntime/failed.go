package kuberuntime

import (
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/runtime/cri"
)

// createBackOff is the shortest time between two tries to create a sandbox or container, or to
// resolve its image. The worker retries a failed pass no sooner.
const createBackOff = 10 * time.Second

// failedCreations delays such calls after a failure: an event that wakes the pod's worker does not
// cause a retry. A changed pod is retried at once. It is safe for concurrent use.
type failedCreations struct {
	mu   sync.Mutex
	pods map[pod.UID]map[string]failedCreation // guarded by mu; by container, "" is the sandbox
}

type failedCreation struct {
	failure creationFailure
	pod     *v1.Pod
}

// creationFailure takes the place of a retry in a pass.
type creationFailure struct {
	Until time.Time            // when the back-off expires
	Err   error                // of a sandbox
	Start lifecycle.StartError // of a container
}

func (c *creationFailure) String() string {
	return fmt.Sprintf("not before %s, as the last try has failed", c.Until.Format(time.TimeOnly))
}

// sandbox delays the next creation of the pod's sandbox after a failure.
func (f *failedCreations) sandbox(p *v1.Pod, failed error) {
	if isHeld(failed) {
		f.add(p, "", creationFailure{Err: failed})
	}
}

// container delays the next creation of a container after a failure.
func (f *failedCreations) container(p *v1.Pod, name string, failed error, e lifecycle.StartError) {
	if isHeld(failed) {
		f.add(p, name, creationFailure{Start: e})
	}
}

// isHeld reports whether the runtime rejected the call. A call that was not answered is retried
// when the runtime is available.
func isHeld(err error) bool {
	return !errors.Is(err, cri.ErrUnavailable) && !errors.Is(err, cri.ErrTimeout)
}

func (f *failedCreations) add(p *v1.Pod, name string, c creationFailure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pods == nil {
		f.pods = map[pod.UID]map[string]failedCreation{}
	}
	if f.pods[p.UID] == nil {
		f.pods[p.UID] = map[string]failedCreation{}
	}
	c.Until = time.Now().Add(createBackOff)
	f.pods[p.UID][name] = failedCreation{c, p}
}

// of returns the pod's failures with an active back-off, by container, "" for the sandbox.
func (f *failedCreations) of(p *v1.Pod, now time.Time) map[string]creationFailure {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out map[string]creationFailure
	for name, failed := range f.pods[p.UID] {
		if !now.Before(failed.failure.Until) || isChanged(failed.pod, p) {
			delete(f.pods[p.UID], name)
			continue
		}
		if out == nil {
			out = map[string]creationFailure{}
		}
		out[name] = failed.failure
	}
	return out
}

// isChanged reports whether the spec, labels or annotations of the pod differ.
func isChanged(old, now *v1.Pod) bool {
	return old != now && !(equality.Semantic.DeepEqual(old.Spec, now.Spec) && equality.Semantic.DeepEqual(old.Labels, now.Labels) &&
		equality.Semantic.DeepEqual(old.Annotations, now.Annotations))
}

func (f *failedCreations) forget(uid pod.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pods, uid)
}
