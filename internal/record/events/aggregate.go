package events

import (
	"hash/maphash"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/lru"
)

// The rules of event aggregation, as in every Kubernetes client: a repeated event increments its
// count; many similar ones become one; one object cannot flood the API server.
const (
	similarWindow  = 10 * time.Minute // similar events that are further apart are not combined
	maxSimilar     = 10               // distinct messages of one reason before they are combined
	spamBurst      = 25               // burst of events per object
	spamPeriod     = 5 * time.Minute  // refill period of one event per object
	rememberAtMost = 4096             // objects, and series of events
)

// combinedPrefix starts the message of an event that combines similar ones.
const combinedPrefix = "(combined from similar events): "

// occurrence is one event as it was recorded.
type occurrence struct {
	ref                        v1.ObjectReference
	annotations                map[string]string // of the event
	eventtype, reason, message string
	at                         time.Time
}

// objectKey identifies the object of an event, with the container.
type objectKey struct{ kind, namespace, name, uid, field string }

func objectOf(r *v1.ObjectReference) objectKey {
	return objectKey{r.Kind, r.Namespace, r.Name, string(r.UID), r.FieldPath}
}

// whole returns the object without the container.
func (k objectKey) whole() objectKey {
	k.field = ""
	return k
}

// seriesKey identifies the occurrences that are one event with a count.
type seriesKey struct {
	object                     objectKey
	eventtype, reason, message string // message is "" for an event that combines similar ones
}

// aggregator assigns occurrences to series. It is not safe for concurrent use.
type aggregator struct {
	groups *lru.Cache // seriesKey without message and container → *similar
	seed   maphash.Seed
}

// similar are the occurrences of one object, type and reason.
type similar struct {
	last     time.Time
	messages map[uint64]struct{} // hashes of the distinct ones
}

func newAggregator() aggregator {
	return aggregator{groups: lru.New(rememberAtMost), seed: maphash.MakeSeed()}
}

// seriesOf returns the series of the occurrence, and its message there.
func (a aggregator) seriesOf(o *occurrence) (seriesKey, string) {
	exact := seriesKey{object: objectOf(&o.ref), eventtype: o.eventtype, reason: o.reason, message: o.message}
	combined := seriesKey{object: exact.object.whole(), eventtype: o.eventtype, reason: o.reason}
	var group *similar
	if g, ok := a.groups.Get(combined); ok {
		group = g.(*similar)
	}
	if group == nil || o.at.Sub(group.last) > similarWindow {
		group = &similar{messages: map[uint64]struct{}{}}
		a.groups.Add(combined, group)
	}
	group.last = o.at
	hash := maphash.String(a.seed, o.message)
	if _, seen := group.messages[hash]; !seen && len(group.messages) >= maxSimilar {
		return combined, combinedPrefix + o.message
	}
	group.messages[hash] = struct{}{}
	return exact, o.message
}

// spamFilter is a token bucket for each object. It is not safe for concurrent use.
type spamFilter struct {
	buckets *lru.Cache // objectKey → *bucket
}

type bucket struct {
	left float64
	at   time.Time
}

func newSpamFilter() spamFilter { return spamFilter{buckets: lru.New(rememberAtMost)} }

// allow reports whether the object may have another event now.
func (f spamFilter) allow(k objectKey, now time.Time) bool {
	k = k.whole()
	var b *bucket
	if v, ok := f.buckets.Get(k); ok {
		b = v.(*bucket)
	} else {
		b = &bucket{left: spamBurst, at: now}
		f.buckets.Add(k, b)
	}
	b.left = min(spamBurst, b.left+max(0, now.Sub(b.at).Seconds())/spamPeriod.Seconds())
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
