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

// past is the state from earlier readings.
type past struct {
	// Since is when each threshold that is met began to be met, by key.
	Since map[string]time.Time `json:"since"`
	// Due are thresholds for which an eviction was due: they stay met until their minimum reclaim
	// is also available.
	Due map[string]bool `json:"due"`
	// Seen is when each condition was last seen.
	Seen map[v1.NodeConditionType]time.Time `json:"seen"`
}

func (p past) clone() past {
	return past{maps.Clone(p.Since), maps.Clone(p.Due), maps.Clone(p.Seen)}
}

// met is a threshold that is met.
type met struct {
	Threshold
	amount stats.Amount
	read   time.Time // of the amount
	since  time.Time
}

// verdict is the result of a reading.
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
	after := past{Since: map[string]time.Time{}, Due: map[string]bool{}, Seen: map[v1.NodeConditionType]time.Time{}}
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
		room, told := left[t.Signal]
		if !told {
			if wasMet {
				after.Since[key] = since
			}
			if before.Due[key] {
				after.Due[key] = true
			}
			continue
		}
		least := t.Value.of(room.Capacity)
		if before.Due[key] {
			least += t.MinReclaim.of(room.Capacity)
		}
		if room.Available >= least {
			continue
		}
		if !wasMet || since.After(now) {
			since = now
		}
		after.Since[key] = since
		after.Seen[t.Signal.condition()], v.conditions[t.Signal.condition()] = now, true
		m := met{t, room, now, since}
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
		room, told := left[t.Signal]
		return told && room.Available < t.Value.of(room.Capacity)+t.MinReclaim.of(room.Capacity)
	})
}
