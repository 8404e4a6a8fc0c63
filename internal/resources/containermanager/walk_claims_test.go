package containermanager_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/cluster/kube/kubetest"
	"berth/internal/pod"
	"berth/internal/resources/dra/dratest"
)

// mine is what each pod calls its claim, and pool whose devices claims are given.
const mine, pool = "mine", "here"

// sharedClaims are claims that several pods have, by their devices.
var sharedClaims = map[string]string{"shared0": "s0", "shared1": "s1"}

// cards is the driver of a walk's claims, and the scheduler that gives claims its devices.
type cards struct {
	*dratest.Driver
	stop    func()            // nil: the driver is away
	devices map[string]string // by claim
}

// claimOf is the claim of the pod, "" if it has none.
func claimOf(p *v1.Pod) string {
	if len(p.Spec.ResourceClaims) == 0 {
		return ""
	}
	return *p.Spec.ResourceClaims[0].ResourceClaimName
}

// toggleDriver ends the driver, or starts it.
func (k *walk) toggleDriver() {
	if k.cards.stop != nil {
		k.cards.stop()
		k.cards.stop = nil
		k.Claims.DeregisterPlugin(k.cards.Name, k.cards.Socket())
		k.did("the driver ends")
		return
	}
	server := grpc.NewServer()
	k.cards.Register(server)
	listener := k.open(k.cards.Socket())
	go func() { _ = server.Serve(listener) }()
	k.cards.stop = func() {
		k.mu.Lock()
		delete(k.sockets, k.cards.Socket())
		k.mu.Unlock()
		server.Stop()
	}
	k.did("the driver starts")
	k.registerDriver()
}

func (k *walk) registerDriver() {
	name, socket, services := k.cards.Name, k.cards.Socket(), k.cards.Services()
	k.must(k.Claims.ValidatePlugin(name, socket, services))
	k.must(k.Claims.RegisterPlugin(k.t.Context(), name, socket, services))
	synctest.Wait()
}

// mendDriver has the driver be there, without a fault.
func (k *walk) mendDriver() {
	k.must(os.RemoveAll(filepath.Join(k.cards.Dir, "faults")))
	if k.cards.stop == nil {
		k.toggleDriver()
	}
}

// breakDriver gives the driver's next call a fault.
func (k *walk) breakDriver() {
	fault := oneOf(k.r, []string{dratest.Fail, dratest.FailAfter, dratest.Refuse, dratest.Skip, dratest.Stray, dratest.Hang, dratest.HangAfter})
	method := oneOf(k.r, []string{dratest.Prepare, dratest.Unprepare})
	k.must(dratest.Break(k.cards.Dir, method, fault, codes.Internal))
	k.did("the driver is to %s in %s", fault, method)
}

// claim draws a claim for a new pod, as the scheduler does: a device that no other claim has, or a
// claim that others share.
func (k *walk) claim(p *v1.Pod) {
	if k.r.IntN(2) > 0 {
		return
	}
	name := string(p.UID)
	if k.r.IntN(3) == 0 {
		name = oneOf(k.r, slices.Sorted(maps.Keys(sharedClaims)))
		k.cards.devices[name] = sharedClaims[name]
	} else if device := k.freeCard(); device != "" {
		k.cards.devices[name] = device
	} else {
		return
	}
	k.must(dratest.SetDevices(k.cards.Dir, name, dratest.Device{Name: k.cards.devices[name]}))
	p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: mine, ResourceClaimName: &name}}
	for i := range p.Spec.Containers {
		if i == 0 || k.r.IntN(2) == 0 {
			p.Spec.Containers[i].Resources.Claims = []v1.ResourceClaim{{Name: mine}}
		}
	}
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name, UID: pod.UID(name)}}
	c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
		Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: k.cards.Name, Pool: pool, Device: k.cards.devices[name]}},
	}}
	for _, user := range append(k.users(name), p) {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: user.Name, UID: user.UID})
	}
	kubetest.Put(k.api, c)
}

// users are the pods that have the claim, or may be admitted with it.
func (k *walk) users(claim string) (out []*v1.Pod) {
	for _, l := range k.pods {
		if claimOf(l.Pod) == claim {
			out = append(out, l.Pod)
		}
	}
	for _, p := range k.lost {
		if claimOf(p) == claim {
			out = append(out, p)
		}
	}
	return out
}

// freeCard is a device that no claim has, "" if there is none.
func (k *walk) freeCard() string {
	taken := map[string]bool{}
	for claim, device := range k.cards.devices {
		taken[device] = taken[device] || len(k.users(claim)) > 0 || slices.Contains(k.preparedClaims(), claim)
	}
	for i := range 4 {
		if device := fmt.Sprintf("card%d", i); !taken[device] {
			return device
		}
	}
	return ""
}

func (k *walk) preparedClaims() []string {
	prepared, err := dratest.Prepared(k.cards.Dir)
	k.must(err)
	return prepared
}

// prepareClaims has the driver make the pod's claim ready, and reports whether it is. A pod that
// was made ready is again for each sandbox of it.
func (k *walk) prepareClaims(ctx context.Context, l *life) bool {
	if l.claimed && k.r.IntN(4) > 0 {
		return true
	}
	if err := k.PrepareClaims(ctx, l.Pod); err != nil {
		k.seen["claim waits"]++
		k.did("the claim of %s waits: %v", l.UID, err)
		return false
	}
	if claimOf(l.Pod) != "" {
		k.seen["claimed"]++
	}
	l.claimed = true
	return true
}

// cdiNames are those of what the container gets of its claim.
func (k *walk) cdiNames(p *v1.Pod, c *v1.Container) (out []string) {
	for range c.Resources.Claims {
		claim := claimOf(p)
		out = append(out, k.cards.Name+"/device="+claim+"-"+k.cards.devices[claim])
	}
	return out
}

// checkClaims makes sure that pods have what the driver has made ready for them.
func (k *walk) checkClaims() {
	prepared := k.preparedClaims()
	for uid, l := range k.pods {
		if !l.claimed || l.ending {
			continue
		}
		if claim := claimOf(l.Pod); claim != "" && !slices.Contains(prepared, claim) {
			k.t.Errorf("pod %s uses claim %s, of which the driver knows nothing: %v", uid, claim, prepared)
		}
		for c := range pod.Containers(&l.Spec) {
			got, err := k.Claims.CDIDevices(l.Pod, c)
			if want := k.cdiNames(l.Pod, c); err != nil || !slices.Equal(got, want) {
				k.t.Errorf("%s/%s has of its claim %v, error %v; want %v", uid, c.Name, got, err, want)
			}
		}
	}
}

// vanish has a pod be gone, with its containers, while no agent runs.
func (k *walk) vanish() {
	l := k.any()
	if l == nil || k.r.IntN(3) > 0 {
		return
	}
	k.mu.Lock()
	maps.DeleteFunc(k.runs, func(_ pod.ContainerID, c running) bool { return c.uid == l.UID })
	k.mu.Unlock()
	delete(k.pods, l.UID)
	k.did("%s is gone when the next agent starts", l.UID)
}

// finishClaims makes sure that nothing is left with the driver, nor in the file, when no pod is.
func (k *walk) finishClaims() {
	time.Sleep(5 * time.Minute) // until it is tried again
	synctest.Wait()
	if prepared := k.preparedClaims(); len(prepared) > 0 {
		k.t.Errorf("no pod is left, and the driver has the claims %v", prepared)
	}
	content, err := os.ReadFile(filepath.Join(k.dir, "dra_manager_state"))
	if err != nil && !os.IsNotExist(err) || strings.Contains(string(content), "ClaimUID") {
		k.t.Errorf("no pod is left, and the file says %s, error %v", content, err)
	}
}
