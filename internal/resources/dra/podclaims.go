package dra

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type podClaim struct {
	// Name is its name in the pod's spec; "" for the claim of extended resources.
	Name string
	// Claim is the name of the ResourceClaim.
	Claim string
	// Own: it was created for the pod from a template, so the pod must control it.
	Own bool
}

func extendedClaim(p *v1.Pod) string {
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		return s.ResourceClaimName
	}
	return ""
}

// podClaimsOf returns the claims of the pod; two of them may refer to the same object. A template
// for which no claim was needed is omitted.
func podClaimsOf(p *v1.Pod) ([]podClaim, error) {
	var out []podClaim
	for i := range p.Spec.ResourceClaims {
		w, needed, err := podClaimOf(p, &p.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if needed {
			out = append(out, w)
		}
	}
	if name := extendedClaim(p); name != "" {
		out = append(out, podClaim{Claim: name})
	}
	return out, nil
}

func podClaimOf(p *v1.Pod, c *v1.PodResourceClaim) (w podClaim, needed bool, err error) {
	switch {
	case c.ResourceClaimName != nil:
		return podClaim{Name: c.Name, Claim: *c.ResourceClaimName}, true, nil
	case c.ResourceClaimTemplateName == nil:
		return podClaim{}, false, fmt.Errorf("pod %s/%s: spec.resourceClaims %q names neither a ResourceClaim nor a ResourceClaimTemplate", p.Namespace, p.Name, c.Name)
	}
	for _, s := range p.Status.ResourceClaimStatuses {
		if s.Name != c.Name {
			continue
		}
		if s.ResourceClaimName == nil {
			return podClaim{}, false, nil
		}
		return podClaim{Name: c.Name, Claim: *s.ResourceClaimName, Own: true}, true, nil
	}
	return podClaim{}, false, fmt.Errorf("pod %s/%s: the ResourceClaim of spec.resourceClaims %q has not been made yet from the template %s", p.Namespace, p.Name, c.Name, *c.ResourceClaimTemplateName)
}

func checkClaim(p *v1.Pod, w podClaim, c *resourcev1.ResourceClaim) error {
	if w.Own && !metav1.IsControlledBy(c, p) {
		return fmt.Errorf("ResourceClaim %s: not made for pod %s/%s (%s), which does not control it", c.Name, p.Namespace, p.Name, p.UID)
	}
	isPod := func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == p.UID }
	if !slices.ContainsFunc(c.Status.ReservedFor, isPod) {
		return fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", p.Name, p.UID, c.Name, c.UID)
	}
	if c.Status.Allocation == nil {
		return fmt.Errorf("ResourceClaim %s: not allocated", c.Name)
	}
	return nil
}

// allocated is an allocated ResourceClaim, validated for a pod.
type allocated struct {
	key types.NamespacedName
	uid types.UID
	// drivers are the drivers of the allocated devices, sorted.
	drivers []string
	// allocation identifies this allocation of the claim.
	allocation string
}

func allocatedOf(c *resourcev1.ResourceClaim) allocated {
	a := allocated{key: types.NamespacedName{Namespace: c.Namespace, Name: c.Name}, uid: c.UID}
	drivers := map[string]bool{}
	for _, r := range c.Status.Allocation.Devices.Results {
		drivers[r.Driver] = true
	}
	a.drivers = slices.Sorted(maps.Keys(drivers))
	b, _ := json.Marshal(c.Status.Allocation.Devices.Results) // strings, numbers and times: cannot fail
	a.allocation = string(b)
	return a
}

type request struct {
	claim string // the name of the ResourceClaim
	// status is the name in the container status; "" for extended resources, which are not reported
	// there (KEP-4680).
	status string
	// name is the name of a request of the claim; "" means all.
	name string
}

func requestsOf(p *v1.Pod, c *v1.Container) ([]request, error) {
	all, err := podClaimsOf(p)
	if err != nil {
		return nil, err
	}
	claims := map[string]string{}
	for _, w := range all {
		if w.Name != "" {
			claims[w.Name] = w.Claim
		}
	}
	var out []request
	for _, r := range c.Resources.Claims {
		claim, needed := claims[r.Name]
		if !needed {
			continue // the template needed no claim; validation has rejected unknown names
		}
		status := "claim:" + r.Name
		if r.Request != "" {
			status += "/" + r.Request
		}
		out = append(out, request{claim, status, r.Request})
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil && s.ResourceClaimName != "" {
		for _, m := range s.RequestMappings {
			if m.ContainerName == c.Name {
				out = append(out, request{claim: s.ResourceClaimName, name: m.RequestName})
			}
		}
	}
	return out, nil
}

// gets reports whether the device satisfies the request. A device without request names satisfies
// all. For a subrequest, "main/sub", the request may name "main" (KEP-4816).
func (r request) gets(d Device) bool {
	if r.name == "" || len(d.Requests) == 0 {
		return true
	}
	return slices.ContainsFunc(d.Requests, func(name string) bool {
		main, _, _ := strings.Cut(name, "/")
		return name == r.name || main == r.name
	})
}
