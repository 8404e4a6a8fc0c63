package agent

import (
	"context"
	"log/slog"
	"time"

	"berth/internal/explain"
	"berth/internal/pod"
	"berth/internal/runtime/embedded"
	"berth/internal/runtime/images"
)

// progressTimeout bounds the query for the progress of downloads.
const progressTimeout = 2 * time.Second

// imagePulls lists the current pulls.
type imagePulls struct {
	puller *images.Puller
	pods   *pod.Manager
	// open opens the image store of the embedded runtime, which reports download progress; nil with
	// CRI, which does not.
	open func() (*embedded.Images, error)
	log  *slog.Logger
}

// list returns the current pulls, with progress for the embedded runtime. It queries the runtime on
// each call.
func (p imagePulls) list(ctx context.Context) []explain.Pull {
	under := p.puller.Pulls()
	if len(under) == 0 {
		return nil
	}
	shown := make([]explain.Pull, len(under))
	first := p.firstOf(under)
	for i, u := range under {
		shown[i] = explain.Pull{Image: u.Image, Pods: u.Pods, Ahead: u.Ahead, Place: u.Place, AtOnce: u.AtOnce}
		if u.Since.IsZero() {
			shown[i].Behind = first
		} else {
			shown[i].Since = &u.Since
		}
	}
	if p.open == nil {
		return shown
	}
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	if err := p.addProgress(ctx, under, shown); err != nil {
		p.log.Debug("the runtime does not tell how far its downloads are", "error", err)
	}
	return shown
}

// firstOf returns the pull that started first, nil if none has started.
func (p imagePulls) firstOf(under []images.Pull) *explain.PullAhead {
	var first *images.Pull
	for i := range under {
		if u := &under[i]; !u.Since.IsZero() && (first == nil || u.Since.Before(first.Since)) {
			first = u
		}
	}
	if first == nil {
		return nil
	}
	ahead := &explain.PullAhead{Image: first.Image, Since: first.Since}
	for _, uid := range first.Pods {
		if wanted, ok := p.pods.Get(uid); ok {
			ahead.Pods = append(ahead.Pods, wanted.Namespace+"/"+wanted.Name)
		}
	}
	return ahead
}

func (p imagePulls) addProgress(ctx context.Context, under []images.Pull, shown []explain.Pull) error {
	store, err := p.open()
	if err != nil {
		return err
	}
	defer store.Close()
	downloads, err := store.Downloads(ctx)
	if err != nil {
		return err
	}
	for i, u := range under {
		if u.Since.IsZero() {
			continue
		}
		d, known, err := downloads.Of(u.Name)
		if err != nil {
			return err
		}
		if known {
			shown[i].Done, shown[i].Total, shown[i].Rate, shown[i].Last = d.Done, d.Total, d.Rate, &d.Last
		}
	}
	addRests(shown)
	return nil
}

// addRests sets the remaining time of the pull that queued pulls wait for.
func addRests(pulls []explain.Pull) {
	for _, p := range pulls {
		if p.Behind == nil {
			continue
		}
		for _, first := range pulls {
			if first.Image == p.Behind.Image && first.Since != nil {
				p.Behind.Rest = first.Rest()
			}
		}
	}
}

func (a *Agent) imagePulls() imagePulls {
	p := imagePulls{puller: a.images.puller, pods: a.deps.stores.pods, log: a.deps.cfg.Log}
	if a.runtime.embedded != nil {
		p.open = func() (*embedded.Images, error) { return embedded.OpenImages(a.deps.cfg.RootDir, a.deps.cfg.RunDir) }
	}
	return p
}
