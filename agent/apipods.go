package agent

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

// followPods is the API source of PodConfig.
func (a *memberAPI) followPods(ctx context.Context, handOver func([]*v1.Pod)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.podsWake:
			if pods, synced := a.pods.List(); synced {
				handOver(pods)
			}
		}
	}
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
