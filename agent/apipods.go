package agent

import (
	v1 "k8s.io/api/core/v1"

	"berth/internal/kube"
	"berth/internal/pod"
	"berth/internal/podconfig"
)

// watchPods opens the watch of this node's pods.
func (a *Agent) watchPods(changed func()) podconfig.PodWatch {
	w := kube.NewWatch[*v1.Pod](a.member.api.client, kube.OfNode(a.cfg.NodeName), changed)
	w.Expect(a.expectPods)
	return w
}

// expectPods returns the pods of which an earlier agent left a folder. The API server is to have them, but for static pods, which it knows under
// the UIDs of their mirrors.
func (a *Agent) expectPods() []pod.UID {
	uids, err := a.syncer.OnDisk()
	if err != nil {
		a.cfg.Log.Warn("folders of earlier pods not read: the first list of pods is believed", "error", err)
	}
	return uids
}
