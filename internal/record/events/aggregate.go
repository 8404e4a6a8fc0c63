package events

import (
	"hash/maphash"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/lru"
)

// The rules of events that repeat, as every Kubernetes client has them: the same event again raises
// its count; many similar ones become one; one object may not flood the API server.
const (
	similarWindow  = 10 * time.Minute // similar events that are further apart are not counted together
	similarMost    = 10               // so many messages of one reason are told apart
	spamBurst      = 25               // events of one object at once
	spamPeriod     = 5 * time.Minute  // in which it may have one more
	rememberAtMost = 4096             // objects, and series of events
)

// combinedPrefix begins the message of an event that stands for many similar ones.
const combinedPrefix = "(combined from similar events): "

// occurrence is one event as it was recorded.
type occurrence struct {
	ref                        v1.ObjectReference
	annotations                map[string]string // of the event
	eventtype, reason, message string
	at                         time.Time
}

// objectKey is whom an event is about, with the container.
type objectKey struct{ kind, namespace, name, uid, field string }

func objectOf(r *v1.ObjectReference) objectKey {
	return objectKey{r.Kind, r.Namespace, r.Name, string(r.UID), r.FieldPath}
}

// whole is the object without the container.
func (k objectKey) whole() objectKey {
	k.field = ""
	return k
}

// seriesKey is what makes two occurrences one event with a count.
type seriesKey struct {
	object                     objectKey
	eventtype, reason, message string // message is "" for an event that stands for many similar ones
}

// aggregator tells occurrences apart, or no longer. It is not safe for concurrent use.
type aggregator struct {
	groups *lru.Cache // seriesKey without message and container → *similar
	seed   maphash.Seed
}

// similar are the occurrences of one object, type and reason.
type similar struct {
	last     time.Time
	messages map[uint64]struct{} // hashes of those that are told apart
}

func newAggregator() aggregator {
	return aggregator{groups: lru.New(rememberAtMost), seed: maphash.MakeSeed()}
}

// seriesOf returns the series that the occurrence belongs to, and its message there.
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
	said := maphash.String(a.seed, o.message)
	if _, seen := group.messages[said]; !seen && len(group.messages) >= similarMost {
		return combined, combinedPrefix + o.message
	}
	group.messages[said] = struct{}{}
	return exact, o.message
}

// spamFilter is a bucket of tokens for each object. It is not safe for concurrent use.
type spamFilter struct {
	buckets *lru.Cache // objectKey → *bucket
}

type bucket struct {
	left float64
	at   time.Time
}

func newSpamFilter() spamFilter { return spamFilter{buckets: lru.New(rememberAtMost)} }

// allow reports whether the object may have one more event now.
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
