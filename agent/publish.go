package agent

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"berth/internal/pod"
)

// publish tells the program that the agent is part of how its pods are.
func (a *Agent) publish(ctx context.Context) error {
	changed, cancel := a.status.Subscribe()
	defer cancel()
	p := publisher{get: a.view.getPod, onStatus: a.cfg.OnStatus, onRemoved: a.cfg.OnRemoved, told: map[pod.UID]*v1.Pod{}}
	for _, known := range a.view.listPods() {
		p.look(known.UID)
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-changed.Wake():
		}
		for _, uid := range changed.Take() { // the last ones too, when the agent ends
			p.look(uid)
		}
	}
	return ctx.Err()
}

// publisher tells of each state of a pod once.
type publisher struct {
	get                 func(pod.UID) (*v1.Pod, bool)
	onStatus, onRemoved func(*v1.Pod)
	told                map[pod.UID]*v1.Pod // as the program was told last
}

// look tells how the pod is, if it is not as before.
func (p *publisher) look(uid pod.UID) {
	now, there := p.get(uid)
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
