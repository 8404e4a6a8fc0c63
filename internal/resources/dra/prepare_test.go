package dra_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/cluster/kube/kubetest"
	"berth/internal/record/events/messagestest"
	"berth/internal/resources/dra/dratest"
)

func TestPodsClaims(t *testing.T) {
	inBubble(t, func(w *world) {
		one, two := w.driver("one.example.com"), w.driver("two.example.com")
		a := w.start(one, two)
		w.claim("a", []*driver{one, two}, "p")
		w.claim("b", []*driver{one}, "p")
		if err := dratest.SetDevices(one.Dir, "b", dratest.Device{Name: "x", Requests: []string{"r"}}, dratest.Device{Name: "y", Requests: []string{"s/sub"}, Share: "7"}); err != nil {
			w.Fatal(err)
		}
		p := newPod("p", "a", "b")
		w.prepare(a, p)
		w.want("calls of one", one.calls(), "[prepare a b]")
		w.want("calls of two", two.calls(), "[prepare a]")
		devices, err := a.CDIDevices(p, &p.Spec.Containers[0])
		w.want("devices", devices, "[one.example.com/device=a-device two.example.com/device=a-device one.example.com/device=b-x one.example.com/device=b-y]")
		w.want("error", err, nil)
		for request, want := range map[string]string{"r": "[one.example.com/device=b-x]", "s": "[one.example.com/device=b-y]", "other": "[]"} {
			devices, err := a.CDIDevices(p, &v1.Container{Name: "c", Resources: v1.ResourceRequirements{Claims: []v1.ResourceClaim{{Name: "my-b", Request: request}}}})
			w.want("devices of request "+request, devices, want)
			w.want("error", err, nil)
		}
		claims := a.Claims(p, &p.Spec.Containers[0])
		if len(claims) != 2 || claims[1].Name != "b" || claims[1].Namespace != "default" || *claims[1].Devices[1].ShareID != "7" || claims[1].Devices[0].ShareID != nil {
			w.Errorf("claims %+v", claims)
		}

		w.prepare(a, p) // its sandbox has to be made again
		w.want("calls of one", one.calls(), "[prepare a b]")
		w.unprepare(a, "p")
		w.unprepare(a, "p")
		w.want("calls of one", one.calls(), "[prepare a b unprepare a b]")
		w.want("calls of two", two.calls(), "[prepare a unprepare a]")
		_, err = a.CDIDevices(p, &p.Spec.Containers[0])
		w.fails(err, "container main: ResourceClaim a: not prepared for pod p (p)")
		for _, e := range w.Journal.Read("default", "p") {
			if e.Decision == "prepare claims" && e.Why == "a, b by one.example.com, two.example.com" {
				return
			}
		}
		w.Errorf("journal: %+v", w.Journal.Read("default", "p"))
	})
}

// A claim that pods share is prepared for the first and taken back after the last of them.
func TestSharedClaim(t *testing.T) {
	inBubble(t, func(w *world) {
		d := w.driver("one.example.com")
		a := w.start(d)
		w.claim("a", []*driver{d}, "p", "q")
		errs := make(chan error)
		for _, name := range []string{"p", "q"} {
			go func() { errs <- a.Prepare(w.Context(), newPod(name, "a")) }()
		}
		w.want("errors", []error{<-errs, <-errs}, "[<nil> <nil>]")
		w.want("calls", d.calls(), "[prepare a]")
		w.unprepare(a, "p")
		w.want("calls", d.calls(), "[prepare a]")
		q := newPod("q", "a")
		if devices, err := a.CDIDevices(q, &q.Spec.Containers[0]); err != nil || len(devices) != 1 {
			w.Errorf("devices %v, error %v", devices, err)
		}
		w.unprepare(a, "q")
		w.want("calls", d.calls(), "[prepare a unprepare a]")
	})
}

func TestPodMayNotUseClaim(t *testing.T) {
	template, claim := "template", "a"
	fromTemplate := newPod("p")
	fromTemplate.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "c", ResourceClaimTemplateName: &template}}
	made := fromTemplate.DeepCopy()
	made.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "c", ResourceClaimName: &claim}}
	for name, test := range map[string]struct {
		pod    *v1.Pod
		change func(w *world, c *resourcev1.ResourceClaim)
		want   string
	}{
		"missing": {newPod("p", "b"), nil, `get ResourceClaim default/b: resourceclaims.resource.k8s.io "b" not found`},
		"not reserved": {
			newPod("p", "a"), func(_ *world, c *resourcev1.ResourceClaim) { c.Status.ReservedFor = nil },
			"pod p (p) is not allowed to use ResourceClaim a (a)",
		},
		"not allocated": {
			newPod("p", "a"), func(_ *world, c *resourcev1.ResourceClaim) { c.Status.Allocation = nil },
			"ResourceClaim a: not allocated",
		},
		"no driver": {
			newPod("p", "a"), func(_ *world, c *resourcev1.ResourceClaim) {
				c.Status.Allocation.Devices.Results[0].Driver = "two.example.com"
			},
			"DRA driver two.example.com is not registered",
		},
		"not made": {fromTemplate, nil, `pod default/p: the ResourceClaim of spec.resourceClaims "c" has not been made yet from the template template`},
		"not own":  {made, nil, "ResourceClaim a: not made for pod default/p (p), which does not control it"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				d := w.driver("one.example.com")
				a := w.start(d)
				c := w.claim("a", []*driver{d}, "p")
				if test.change != nil {
					test.change(w, c)
					kubetest.Put(w.API, c)
				}
				w.fails(a.Prepare(w.Context(), test.pod), "prepare dynamic resources: "+test.want)
				w.want("calls", d.calls(), "[]")
				w.unprepare(a, "p")
				w.want("calls", d.calls(), "[]")
			})
		})
	}
}

func TestOwnAndUnneededClaims(t *testing.T) {
	inBubble(t, func(w *world) {
		d := w.driver("one.example.com")
		a := w.start(d)
		template, name := "template", "a"
		p := newPod("p")
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "needed", ResourceClaimTemplateName: &template}, {Name: "unneeded", ResourceClaimTemplateName: &template}}
		p.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "needed"}, {Name: "unneeded"}}
		p.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "needed", ResourceClaimName: &name}, {Name: "unneeded"}}
		c := w.claim("a", []*driver{d}, "p")
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p", Controller: new(true)}}
		kubetest.Put(w.API, c)
		w.prepare(a, p)
		devices, err := a.CDIDevices(p, &p.Spec.Containers[0])
		w.want("devices", devices, "[one.example.com/device=a-device]")
		w.want("error", err, nil)
	})
}

// Devices for extended resources come by a claim that stands in the status of the pod alone.
func TestExtendedResources(t *testing.T) {
	inBubble(t, func(w *world) {
		d := w.driver("one.example.com")
		a := w.start(d)
		w.claim("x", []*driver{d}, "p")
		if err := dratest.SetDevices(d.Dir, "x", dratest.Device{Name: "d0", Requests: []string{"container-0-request-0"}}, dratest.Device{Name: "d1", Requests: []string{"container-1-request-0"}}); err != nil {
			w.Fatal(err)
		}
		p := newPod("p")
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "side"})
		p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "x", RequestMappings: []v1.ContainerExtendedResourceRequest{
			{ContainerName: "main", ResourceName: "example.com/gpu", RequestName: "container-0-request-0"},
			{ContainerName: "side", ResourceName: "example.com/gpu", RequestName: "container-1-request-0"},
		}}
		w.prepare(a, p)
		for i, want := range []string{"[one.example.com/device=x-d0]", "[one.example.com/device=x-d1]"} {
			devices, err := a.CDIDevices(p, &p.Spec.Containers[i])
			w.want("devices", devices, want)
			w.want("error", err, nil)
		}
		w.want("status", a.AllocatedResourcesStatus(p, "main"), "[]")
	})
}

// What is wrong with one driver fails the pods that use it, and nothing else; once it is well, the
// pods come through.
func TestBadDriver(t *testing.T) {
	for fault, want := range map[string]string{
		dratest.Fail:    "DRA driver bad.example.com: NodePrepareResources: rpc error: code = Internal desc = as the test wants it",
		dratest.Refuse:  "DRA driver bad.example.com: NodePrepareResources failed for ResourceClaim a: as the test wants it",
		dratest.Skip:    "DRA driver bad.example.com: NodePrepareResources skipped 1 ResourceClaims",
		dratest.Stray:   `DRA driver bad.example.com: NodePrepareResources answered for the unknown claim UID "stray"`,
		dratest.Huge:    "DRA driver bad.example.com: NodePrepareResources: rpc error: code = ResourceExhausted desc = grpc: received message larger than max",
		dratest.Hang:    "DRA driver bad.example.com: NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded",
		"closes":        "DRA driver bad.example.com: NodePrepareResources: rpc error: code = Unavailable desc = ",
		"does not live": "DRA driver bad.example.com: NodePrepareResources: rpc error: code = Unavailable desc = ",
	} {
		t.Run(fault, func(t *testing.T) {
			inBubble(t, func(w *world) {
				good, bad := w.driver("good.example.com"), w.driver("bad.example.com")
				a := w.start(good, bad)
				w.claim("a", []*driver{bad}, "p")
				w.claim("b", []*driver{good}, "q")
				switch fault {
				case "closes":
					bad.intercept = func(ctx context.Context, _ string, _ func() error) error {
						bad.intercept = nil
						go bad.server.Stop()
						<-ctx.Done()
						return ctx.Err()
					}
				case "does not live":
					bad.down()
				default:
					if err := dratest.Break(bad.Dir, dratest.Prepare, fault, codes.Internal); err != nil {
						w.Fatal(err)
					}
				}
				failed := make(chan error)
				go func() { failed <- a.Prepare(w.Context(), newPod("p", "a")) }()
				w.prepare(a, newPod("q", "b"))
				err := <-failed
				messagestest.SawError(err)
				if err == nil || !strings.HasPrefix(err.Error(), "prepare dynamic resources: "+want) {
					w.Fatalf("error %v, want %s", err, want)
				}
				p := newPod("p", "a")
				if fault == "does not live" || fault == "closes" {
					bad.up()
					pass(time.Minute)
				}
				pass(time.Second)
				w.want("woken", a.woken(), "[p]")
				w.prepare(a, p)
				devices, err := a.CDIDevices(p, &p.Spec.Containers[0])
				w.want("devices", devices, "[bad.example.com/device=a-device]")
				w.want("error", err, nil)
				w.unprepare(a, "p")
				w.want("prepared", bad.prepared(), "[]")
			})
		})
	}
}
