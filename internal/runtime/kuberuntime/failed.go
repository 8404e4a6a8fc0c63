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

// createBackOff is the shortest time between two tries of a call that is to make a sandbox or a
// container, or to find its image. The worker tries a pass that failed no sooner.
const createBackOff = 10 * time.Second

// failedCreations hold such calls back after one has failed: an event that wakes the pod's worker
// meanwhile is no reason for another try. A pod that has changed is tried at once. It is safe for
// concurrent use.
type failedCreations struct {
	mu   sync.Mutex
	pods map[pod.UID]map[string]failedCreation // guarded by mu; by container, "" is the sandbox
}

// failedCreation is the last failure of a pod's sandbox or container.
type failedCreation struct {
	creationFailure
	pod *v1.Pod
}

// creationFailure is what a pass has instead of another try.
type creationFailure struct {
	Until time.Time            // when the back-off ends
	Err   error                // of a sandbox
	Start lifecycle.StartError // of a container
}

func (c *creationFailure) String() string {
	return fmt.Sprintf("not before %s, as the last try has failed", c.Until.Format(time.TimeOnly))
}

// sandbox holds back the pod's sandbox, which could not be made.
func (f *failedCreations) sandbox(p *v1.Pod, failed error) {
	if isHeld(failed) {
		f.add(p, "", creationFailure{Err: failed})
	}
}

// container holds back a container that could not be created.
func (f *failedCreations) container(p *v1.Pod, name string, failed error, e lifecycle.StartError) {
	if isHeld(failed) {
		f.add(p, name, creationFailure{Start: e})
	}
}

// isHeld reports whether the runtime has refused a call. One that it did not answer is made again
// when the runtime does.
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

// of returns the failures of the pod whose back-off lasts, by container, "" for the sandbox.
func (f *failedCreations) of(p *v1.Pod, now time.Time) map[string]creationFailure {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out map[string]creationFailure
	for name, failed := range f.pods[p.UID] {
		if !now.Before(failed.Until) || isChanged(failed.pod, p) {
			delete(f.pods[p.UID], name)
			continue
		}
		if out == nil {
			out = map[string]creationFailure{}
		}
		out[name] = failed.creationFailure
	}
	return out
}

// isChanged reports whether the pod differs in what its sandbox and containers are made from.
func isChanged(old, now *v1.Pod) bool {
	return old != now && !(equality.Semantic.DeepEqual(old.Spec, now.Spec) && equality.Semantic.DeepEqual(old.Labels, now.Labels) &&
		equality.Semantic.DeepEqual(old.Annotations, now.Annotations))
}

func (f *failedCreations) forget(uid pod.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pods, uid)
}
