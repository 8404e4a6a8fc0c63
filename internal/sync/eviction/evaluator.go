package eviction

import (
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
)

// evaluator compares the readings of a loop with its thresholds, and stores and publishes the
// result.
type evaluator struct {
	conditions []v1.NodeConditionType
	transition time.Duration
	pressures  *Pressures
	changed    func()
	file       *checkpoint.WarmFile[past]
	log        *slog.Logger

	mu         sync.Mutex
	thresholds []Threshold            // written by the loop, under mu
	past       past                   // guarded by mu
	last       map[Signal]Observation // guarded by mu; the last reading
}

// restore sets the state of an earlier agent, of both loops.
func (e *evaluator) restore(p past) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.past = p
}

func (e *evaluator) current() past {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.past.only(e.thresholds, e.conditions)
}

func (e *evaluator) setThresholds(ts []Threshold) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.thresholds = ts
}

func (e *evaluator) states() []State {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []State
	for _, t := range e.thresholds {
		out = append(out, State{Threshold: t, Left: e.last[t.Signal], Since: e.past.Since[t.key()]})
	}
	return out
}

func (e *evaluator) evaluate(left observed) verdict {
	now := time.Now()
	e.mu.Lock()
	for _, t := range e.thresholds {
		delete(e.last, t.Signal)
	}
	for s, r := range left {
		e.last[s] = Observation{r, now}
	}
	before := e.past.only(e.thresholds, e.conditions)
	after, v := judge(before, e.thresholds, left, e.transition, now)
	changed := !before.equal(after)
	e.past = after
	e.mu.Unlock()
	began, ended := e.pressures.set(e.conditions, v.conditions)
	for _, c := range began {
		e.log.Warn("the node runs short", "condition", c, "thresholds", describeMet(v.met))
	}
	for _, c := range ended {
		e.log.Info("the node has enough again", "condition", c)
	}
	if changed {
		e.file.Changed()
	}
	if len(began)+len(ended) > 0 {
		e.changed()
	}
	return v
}

// describeMet describes thresholds that are met, with the available amounts.
func describeMet(of []met) []string {
	var out []string
	for i := range of {
		out = append(out, fmt.Sprintf("%s, available: %s", of[i].threshold.String(), quantity(of[i].threshold.Signal.resource(), of[i].amount.Available)))
	}
	return out
}

// only returns the part of the state that belongs to the thresholds and conditions.
func (p past) only(ts []Threshold, conditions []v1.NodeConditionType) past {
	out := newPast()
	for _, t := range ts {
		if since, ok := p.Since[t.key()]; ok {
			out.Since[t.key()] = since
		}
		if p.Due[t.key()] {
			out.Due[t.key()] = true
		}
	}
	for _, c := range conditions {
		if seen, ok := p.Seen[c]; ok {
			out.Seen[c] = seen
		}
	}
	return out
}

// equal compares the states, ignoring when conditions were last seen.
func (p past) equal(o past) bool {
	sameTime := func(a, b time.Time) bool { return a.Equal(b) }
	anyTime := func(_, _ time.Time) bool { return true }
	return maps.EqualFunc(p.Since, o.Since, sameTime) && maps.Equal(p.Due, o.Due) && maps.EqualFunc(p.Seen, o.Seen, anyTime)
}
