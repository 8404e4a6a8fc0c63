package agent

import (
	"context"

	"berth/internal/localapi/manifests"
	"berth/internal/source/podconfig"
)

// showRefused updates the pods of rejected manifests in the API on each change.
func showRefused(source *podconfig.PodConfig, api *localAPI) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			changed := source.ProblemsChanged() // before reading, so that later changes are seen
			api.refuse(manifests.RejectedPods(source.Problems()))
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-changed:
			}
		}
	}
}
