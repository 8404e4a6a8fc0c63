package kubetest

import (
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var claimContract = []clause{
	{"ClaimHasAStatusOfItsOwn", func(c *contract) {
		given := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: c.id, Namespace: namespace}}
		given.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}}
		if claim := create(c, given); len(claim.Status.ReservedFor) > 0 || claim.UID == "" {
			c.Errorf("claim = %+v, want a UID by the server, and no status", claim)
		}
		claim := mustPatch[*resourcev1.ResourceClaim](c, types.MergePatchType, c.id, "", `{"metadata":{"labels":{"a":"b"}},"status":{"allocation":{"devices":{}}}}`)
		if claim.Labels["a"] != "b" || claim.Status.Allocation != nil {
			c.Errorf("claim = %+v, want the label, and no status", claim)
		}
	}},
	{"SlicesAreDeletedBySelector", func(c *contract) {
		slice := func(name, node, driver string) {
			create(c, &resourcev1.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: c.id + name},
				Spec: resourcev1.ResourceSliceSpec{
					Driver: driver, NodeName: new(c.id + node),
					Pool:    resourcev1.ResourcePool{Name: c.id + name, Generation: 1, ResourceSliceCount: 1},
					Devices: []resourcev1.Device{{Name: "d"}},
				},
			})
		}
		left := func() (names string) {
			for _, name := range []string{"-one", "-two", "-three"} {
				if _, err := read[*resourcev1.ResourceSlice](c, c.id+name); err == nil {
					names += name
				}
			}
			return names
		}
		slice("-one", "-here", "one.example.com")
		slice("-two", "-here", "two.example.com")
		slice("-three", "-there", "one.example.com")
		for _, step := range []struct{ selector, left string }{
			{"spec.nodeName=" + c.id + "-nowhere", "-one-two-three"},
			{"spec.nodeName=" + c.id + "-here,spec.driver=one.example.com", "-two-three"},
			{"spec.nodeName=" + c.id + "-here,spec.driver!=two.example.com", "-two-three"},
			{"spec.nodeName=" + c.id + "-here", "-three"},
		} {
			err := c.request("DELETE", kindOf[*resourcev1.ResourceSlice]()).Param("fieldSelector", step.selector).Body(&metav1.DeleteOptions{}).Do(c.ctx()).Error()
			if err != nil {
				c.Fatalf("delete %s: %v", step.selector, err)
			}
			if got := left(); got != step.left {
				c.Errorf("after the deletion of %s there are %s, want %s", step.selector, got, step.left)
			}
		}
		err := c.request("DELETE", kindOf[*resourcev1.ResourceSlice]()).Param("fieldSelector", "spec.nothing=a").Do(c.ctx()).Error()
		c.expect(err, metav1.StatusReasonBadRequest, "delete by a field that cannot be selected by")
	}},
}
