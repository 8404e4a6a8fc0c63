package node

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// needsWrite reports whether the statuses differ in more than heartbeat times.
func needsWrite(old, new *v1.NodeStatus) bool {
	return !equality.Semantic.DeepEqual(withoutHeartbeats(old), withoutHeartbeats(new))
}

func withoutHeartbeats(s *v1.NodeStatus) *v1.NodeStatus {
	out := *s
	out.Conditions = nil
	for _, c := range s.Conditions {
		c.LastHeartbeatTime = metav1.Time{}
		out.Conditions = append(out.Conditions, c)
	}
	return &out
}
