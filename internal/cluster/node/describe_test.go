package node

import (
	"errors"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestDescribe(t *testing.T) {
	since := time.Unix(1700000000, 5e8)
	n := Describe(&Settings{Name: "box", MaxPods: 7}, &Facts{
		Machine: Machine{CPUs: 2, Memory: 1 << 30}, Runtime: RuntimeState{Version: "containerd://v2"}, Problems: []error{errors.New("it hangs")},
	}, since)
	if n.Kind != "Node" || n.Name != "box" || n.CreationTimestamp.Unix() != since.Unix() || n.Status.Capacity.Pods().Value() != 7 ||
		n.Status.NodeInfo.ContainerRuntimeVersion != "containerd://v2" {
		t.Errorf("%+v", n)
	}
	for _, c := range n.Status.Conditions {
		if !c.LastTransitionTime.IsZero() || c.LastHeartbeatTime.IsZero() {
			t.Errorf("%s was seen at %v and changed at %v", c.Type, c.LastHeartbeatTime, c.LastTransitionTime)
		}
		if c.Type == v1.NodeReady && (c.Status != v1.ConditionFalse || c.Message != "it hangs") {
			t.Errorf("Ready is %s: %s", c.Status, c.Message)
		}
	}
}
