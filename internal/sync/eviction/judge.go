package eviction

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/observe/stats"
)

// observed has the available amounts by signal, without unreadable signals.
type observed map[Signal]stats.Amount

type past struct {
	// Since is when each threshold that is met began to be met, by key.
	Since map[string]time.Time `json:"since"`
	// Due are thresholds for which an eviction was due: they stay met until their minimum reclaim
	// is also available.
	Due map[string]bool `json:"due"`
	// Seen is when each condition was last seen.
	Seen map[v1.NodeConditionType]time.Time `json:"seen"`
}

func newPast() past {
	return past{map[string]time.Time{}, map[string]bool{}, map[v1.NodeConditionType]time.Time{}}
}

type met struct {
	threshold Threshold
	amount    stats.Amount
	read      time.Time // of the amount
	since     time.Time
}

type verdict struct {
	met []met // in order of relief
	// due are those that must be relieved now.
	due        []met
	conditions map[v1.NodeConditionType]bool // of the node
	// next is when the verdict changes by time alone; zero: it does not.
	next time.Time
}

// judge compares available amounts with the thresholds. The state of a threshold whose signal is
// unreadable does not change. A condition begins as soon as a threshold is met, also a soft one,
// and lasts for the transition period after the last threshold was met.
func judge(before past, ts []Threshold, left observed, transition time.Duration, now time.Time) (past, verdict) {
	after := newPast()
	v := verdict{conditions: map[v1.NodeConditionType]bool{}}
	wake := func(at time.Time) {
		if v.next.IsZero() || at.Before(v.next) {
			v.next = at
		}
	}
	maps.Copy(after.Seen, before.Seen)
	for _, t := range ts {
		key := t.key()
		since, wasMet := before.Since[key]
		amount, ok := left[t.Signal]
		if !ok {
			if wasMet {
				after.Since[key] = since
			}
			if before.Due[key] {
				after.Due[key] = true
			}
			continue
		}
		least := t.Value.of(amount.Capacity)
		if before.Due[key] {
			least += t.MinReclaim.of(amount.Capacity)
		}
		if amount.Available >= least {
			continue
		}
		if !wasMet || since.After(now) {
			since = now
		}
		after.Since[key] = since
		after.Seen[t.Signal.condition()], v.conditions[t.Signal.condition()] = now, true
		m := met{t, amount, now, since}
		v.met = append(v.met, m)
		if due := since.Add(t.Grace); due.After(now) {
			wake(due)
			continue
		}
		after.Due[key] = true
		v.due = append(v.due, m)
	}
	for condition, seen := range after.Seen {
		if v.conditions[condition] { // of a threshold that is met
			continue
		}
		if seen.After(now) { // the clock was set back
			seen = now
			after.Seen[condition] = now
		}
		end := seen.Add(transition)
		if !now.Before(end) {
			delete(after.Seen, condition)
			continue
		}
		v.conditions[condition] = true
		wake(end)
	}
	return after, v
}

// isRelieved reports whether no threshold is met, with its minimum reclaim and whatever its grace
// period, so that no eviction is needed.
func isRelieved(ts []Threshold, left observed) bool {
	return !slices.ContainsFunc(ts, func(t Threshold) bool {
		amount, ok := left[t.Signal]
		return ok && amount.Available < t.Value.of(amount.Capacity)+t.MinReclaim.of(amount.Capacity)
	})
}
