package kube_test

import (
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
)

func TestResourceCalls(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		if _, err := (kube.PodObjects{Client: c}).GetResourceClaim(t.Context(), "default", "gpu"); !apierrors.IsNotFound(err) {
			t.Errorf("get of a claim that is not there: %v, want NotFound", err)
		}
		kubetest.Put(s, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpu", UID: "u"}})
		claim, err := (kube.PodObjects{Client: c}).GetResourceClaim(t.Context(), "default", "gpu")
		if err != nil || claim.UID != "u" {
			t.Errorf("claim %v, error %v", claim, err)
		}
		for name, node := range map[string]string{"a": "here", "b": "there"} {
			kubetest.Put(s, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{Driver: "d", NodeName: &node}})
		}
		here := kube.Selector{Fields: fields.OneTermEqualSelector("spec.nodeName", "here")}
		for range 2 {
			if err := (kube.PodObjects{Client: c}).DeleteResourceSlices(t.Context(), here); err != nil {
				t.Fatal(err)
			}
		}
		if left := kubetest.List[*resourcev1.ResourceSlice](s); len(left) != 1 || left[0].Name != "b" {
			t.Errorf("slices left: %v, want b", left)
		}
		unknown := kube.Selector{Fields: fields.OneTermEqualSelector("spec.color", "red")}
		const want = "delete resourceslices (spec.color=red): field label not supported: spec.color"
		if err := (kube.PodObjects{Client: c}).DeleteResourceSlices(t.Context(), unknown); err == nil || err.Error() != want {
			t.Errorf("error = %v, want %s", err, want)
		}
	})
}
