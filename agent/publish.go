package agent

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"berth/internal/pod"
)

// publisher notifies the embedding program of pod statuses, each state once.
type publisher struct {
	view                podView
	onStatus, onRemoved func(*v1.Pod)
	told                map[pod.UID]*v1.Pod // as last published
}

func newPublisher(cfg *Config, v podView) *publisher {
	return &publisher{view: v, onStatus: cfg.OnStatus, onRemoved: cfg.OnRemoved, told: map[pod.UID]*v1.Pod{}}
}

func (p *publisher) run(ctx context.Context) error {
	changed, cancel := p.view.status.Subscribe()
	defer cancel()
	for _, known := range p.view.listPods() {
		p.look(known.UID)
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-changed.Wake():
		}
		for _, uid := range changed.Take() { // including the last ones when the agent stops
			p.look(uid)
		}
	}
	return ctx.Err()
}

// look publishes the pod if it has changed.
func (p *publisher) look(uid pod.UID) {
	now, there := p.view.getPod(uid)
	before := p.told[uid]
	switch {
	case there && !equality.Semantic.DeepEqual(before, now):
		p.told[uid] = now
		if p.onStatus != nil {
			p.onStatus(now)
		}
	case !there && before != nil:
		delete(p.told, uid)
		if p.onRemoved != nil {
			p.onRemoved(before)
		}
	}
}
