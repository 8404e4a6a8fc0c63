package podview

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"berth/internal/pod"
)

// Publisher notifies the embedding program of pod statuses, each state once.
type Publisher struct {
	view                View
	onStatus, onRemoved func(*v1.Pod)
	published           map[pod.UID]*v1.Pod // as last published
}

// NewPublisher returns a Publisher, which calls onStatus with each changed pod and onRemoved with
// the last version of a removed one; nil: no calls.
func NewPublisher(v View, onStatus, onRemoved func(*v1.Pod)) *Publisher {
	return &Publisher{view: v, onStatus: onStatus, onRemoved: onRemoved, published: map[pod.UID]*v1.Pod{}}
}

// Run publishes until ctx is done, and then the last changes.
func (p *Publisher) Run(ctx context.Context) error {
	changed, cancel := p.view.Status.Subscribe()
	defer cancel()
	for _, known := range p.view.List() {
		p.publish(known.UID)
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-changed.Wake():
		}
		for _, uid := range changed.Take() { // including the last ones when the agent stops
			p.publish(uid)
		}
	}
	return ctx.Err()
}

// publish calls back for the pod if it has changed.
func (p *Publisher) publish(uid pod.UID) {
	now, exists := p.view.Get(uid)
	before := p.published[uid]
	switch {
	case exists && !equality.Semantic.DeepEqual(before, now):
		p.published[uid] = now
		if p.onStatus != nil {
			p.onStatus(now)
		}
	case !exists && before != nil:
		delete(p.published, uid)
		if p.onRemoved != nil {
			p.onRemoved(before)
		}
	}
}
