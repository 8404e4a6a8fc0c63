package node

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Describe returns the Node of a machine that no API server knows: as it would be registered at
// this moment. When its conditions last changed is not known; since stands for its creation.
func Describe(s *Settings, f *Facts, since time.Time) *v1.Node {
	n := generateNode(s, f, time.Now())
	n.CreationTimestamp = metav1.NewTime(since.Truncate(time.Second))
	for i := range n.Status.Conditions {
		n.Status.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	return n
}
