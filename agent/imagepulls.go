package agent

import (
	"context"
	"time"

	"berth/internal/embedded"
	"berth/internal/images"
	"berth/internal/server"
)

// progressTimeout bounds the question to the runtime how far its downloads are.
const progressTimeout = 2 * time.Second

// pulls returns the pulls under way, and of the runtime inside how far they are. It is asked only when somebody looks.
func (a *Agent) pulls(ctx context.Context) []server.Pull {
	under := a.puller.Pulls()
	if len(under) == 0 {
		return nil
	}
	shown := make([]server.Pull, len(under))
	first := a.firstOf(under)
	for i, p := range under {
		shown[i] = server.Pull{Image: p.Image, Pods: p.Pods, Ahead: p.Ahead}
		if p.Since.IsZero() {
			shown[i].Behind = first
		} else {
			shown[i].Since = &p.Since
		}
	}
	if a.embedded == nil {
		return shown // CRI does not tell
	}
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	if err := a.addProgress(ctx, under, shown); err != nil {
		a.cfg.Log.Debug("the runtime does not tell how far its downloads are", "error", err)
	}
	return shown
}

// firstOf returns the pull that began first, nil if none has begun.
func (a *Agent) firstOf(under []images.Pull) *server.PullAhead {
	var first *images.Pull
	for i := range under {
		if p := &under[i]; !p.Since.IsZero() && (first == nil || p.Since.Before(first.Since)) {
			first = p
		}
	}
	if first == nil {
		return nil
	}
	ahead := &server.PullAhead{Image: first.Image, Since: first.Since}
	for _, uid := range first.Pods {
		if p, ok := a.pods.Get(uid); ok {
			ahead.Pods = append(ahead.Pods, p.Namespace+"/"+p.Name)
		}
	}
	return ahead
}

func (a *Agent) addProgress(ctx context.Context, under []images.Pull, shown []server.Pull) error {
	store, err := embedded.OpenImages(a.cfg.RootDir, a.cfg.RunDir)
	if err != nil {
		return err
	}
	defer store.Close()
	downloads, err := store.Downloads(ctx)
	if err != nil {
		return err
	}
	for i, p := range under {
		if p.Since.IsZero() {
			continue
		}
		d, known, err := downloads.Of(p.Name)
		if err != nil {
			return err
		}
		if known {
			shown[i].Done, shown[i].Total = d.Done, d.Total
		}
	}
	return nil
}
