package agent

import (
	"context"
	"log/slog"
	"time"

	"berth/internal/api/server"
	"berth/internal/pod"
	"berth/internal/runtime/embedded"
	"berth/internal/runtime/images"
)

// progressTimeout bounds the question to the runtime how far its downloads are.
const progressTimeout = 2 * time.Second

// imagePulls answers which pulls are under way.
type imagePulls struct {
	puller *images.Puller
	pods   *pod.Manager
	// open returns the images of the embedded runtime, which says how far its downloads are; nil:
	// CRI does not say.
	open func() (*embedded.Images, error)
	log  *slog.Logger
}

// list returns the pulls under way, and of the embedded runtime how far they are. It asks the
// runtime each time.
func (p imagePulls) list(ctx context.Context) []server.Pull {
	under := p.puller.Pulls()
	if len(under) == 0 {
		return nil
	}
	shown := make([]server.Pull, len(under))
	first := p.firstOf(under)
	for i, u := range under {
		shown[i] = server.Pull{Image: u.Image, Pods: u.Pods, Ahead: u.Ahead, Place: u.Place, AtOnce: u.AtOnce}
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

// firstOf returns the pull that began first, nil if none has begun.
func (p imagePulls) firstOf(under []images.Pull) *server.PullAhead {
	var first *images.Pull
	for i := range under {
		if u := &under[i]; !u.Since.IsZero() && (first == nil || u.Since.Before(first.Since)) {
			first = u
		}
	}
	if first == nil {
		return nil
	}
	ahead := &server.PullAhead{Image: first.Image, Since: first.Since}
	for _, uid := range first.Pods {
		if wanted, ok := p.pods.Get(uid); ok {
			ahead.Pods = append(ahead.Pods, wanted.Namespace+"/"+wanted.Name)
		}
	}
	return ahead
}

func (p imagePulls) addProgress(ctx context.Context, under []images.Pull, shown []server.Pull) error {
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

// addRests says of pulls that wait for another one how long that one still takes.
func addRests(pulls []server.Pull) {
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

// imagePulls returns what knows of pulls.
func (a *Agent) imagePulls() imagePulls {
	p := imagePulls{puller: a.puller, pods: a.pods, log: a.cfg.Log}
	if a.embedded != nil {
		p.open = func() (*embedded.Images, error) { return embedded.OpenImages(a.cfg.RootDir, a.cfg.RunDir) }
	}
	return p
}
