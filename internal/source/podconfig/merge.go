package podconfig

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/source/manifest"
)

// seenLayout is RFC 3339 with exactly nine fractional digits, the format of
// kubernetes.io/config.seen.
const seenLayout = "2006-01-02T15:04:05.000000000Z07:00"

// localAnnotations belong to the agent: a source neither sets nor changes them.
var localAnnotations = []string{pod.ConfigSourceAnnotation, pod.ConfigMirrorAnnotation, pod.ConfigSeenAnnotation}

// delivered is what the loop has received of one source.
type delivered struct {
	pods []deliveredPod
	seen bool // including a complete set
}

// deliveredPod is one pod that the loop has received.
type deliveredPod struct {
	*v1.Pod // the loop's version; shared with it, never changed
	// from is the source's pod that it was made of: the same pointer means that nothing has
	// changed.
	from *v1.Pod
}

// mergeSource computes the operations that lead from the delivered to the newest set, and the new
// delivered set. Pods are compared by UID. The first complete set always yields an operation: an
// ADD without pods if there is no other, which reports to the loop that the source has been read.
func mergeSource(src pod.Source, old delivered, newest snapshot, now time.Time) ([]pod.PodUpdate, delivered) {
	head, tail := commonEnds(old.pods, newest.pods, func(p deliveredPod, from *v1.Pod) bool {
		return p.from == from && !newest.wasGone(from.UID)
	})
	before, after := old.pods[head:len(old.pods)-tail], newest.pods[head:len(newest.pods)-tail]
	known := make(map[pod.UID]deliveredPod, len(before))
	for _, p := range before {
		known[p.UID] = p
	}
	next := delivered{pods: make([]deliveredPod, 0, len(newest.pods)), seen: old.seen || !newest.partial}
	next.pods = append(next.pods, old.pods[:head]...)
	var removes, adds, updates, deletes, reconciles []*v1.Pod
	for _, from := range after {
		cur, ok := known[from.UID]
		// A UID with another name, or one that was missing meanwhile, is another pod: the old one
		// is removed first.
		if ok = ok && pod.FullNameOf(cur.Pod) == pod.FullNameOf(from) && !newest.wasGone(from.UID); ok {
			delete(known, from.UID)
		}
		p := cur.Pod
		switch {
		case !ok:
			p = withAnnotations(from, map[string]string{
				pod.ConfigSourceAnnotation: string(src), pod.ConfigSeenAnnotation: now.Format(seenLayout),
			})
			adds = append(adds, p)
		case cur.from == from:
		case len(computeDifference(p, from)) > 0:
			p = mergePod(p, from)
			if p.DeletionTimestamp != nil {
				deletes = append(deletes, p)
			} else {
				updates = append(updates, p)
			}
		case !equality.Semantic.DeepEqual(p.Status, from.Status):
			merged := *p
			merged.Status = from.Status
			p = &merged
			reconciles = append(reconciles, p)
		}
		next.pods = append(next.pods, deliveredPod{Pod: p, from: from})
	}
	next.pods = append(next.pods, old.pods[len(old.pods)-tail:]...)
	for _, p := range before {
		if _, removed := known[p.UID]; removed {
			removes = append(removes, p.Pod)
		}
	}

	var out []pod.PodUpdate
	put := func(op pod.PodOperation, pods []*v1.Pod) {
		if len(pods) > 0 {
			out = append(out, pod.PodUpdate{Pods: pods, Op: op, Source: src})
		}
	}
	put(pod.REMOVE, removes)
	put(pod.ADD, adds)
	put(pod.UPDATE, updates)
	put(pod.DELETE, deletes)
	if next.seen && !old.seen && len(adds)+len(updates)+len(deletes) == 0 {
		out = append(out, pod.PodUpdate{Op: pod.ADD, Source: src})
	}
	put(pod.RECONCILE, reconciles)
	return out, next
}

// mergeGone returns the pods that were missing from a set since the loop last took one, when pods
// replace the newest set.
func mergeGone(newest snapshot, pods []*v1.Pod) map[pod.UID]struct{} {
	removed := maps.Clone(newest.removed)
	if removed == nil {
		removed = map[pod.UID]struct{}{}
	}
	head, tail := commonEnds(newest.pods, pods, func(a, b *v1.Pod) bool { return a == b })
	before, after := newest.pods[head:len(newest.pods)-tail], pods[head:len(pods)-tail]
	present := make(map[pod.UID]struct{}, len(after))
	for _, p := range after {
		present[p.UID] = struct{}{}
	}
	for _, p := range before {
		if _, ok := present[p.UID]; !ok {
			removed[p.UID] = struct{}{}
		}
	}
	return removed
}

// computeDifference names the parts in which the pods differ semantically; only these cause an
// update.
func computeDifference(cur, p *v1.Pod) []string {
	var out []string
	differs := func(part string, a, b any) {
		if !equality.Semantic.DeepEqual(a, b) {
			out = append(out, part)
		}
	}
	differs("spec", cur.Spec, p.Spec)
	differs("labels", cur.Labels, p.Labels)
	differs("deletionTimestamp", cur.DeletionTimestamp, p.DeletionTimestamp)
	differs("deletionGracePeriodSeconds", cur.DeletionGracePeriodSeconds, p.DeletionGracePeriodSeconds)
	differs("annotations", foreignAnnotations(cur), foreignAnnotations(p))
	return out
}

// foreignAnnotations returns the annotations that the source owns.
func foreignAnnotations(p *v1.Pod) map[string]string {
	out := make(map[string]string, len(p.Annotations))
	for k, v := range p.Annotations {
		if !slices.Contains(localAnnotations, k) {
			out[k] = v
		}
	}
	return out
}

// mergePod returns a copy of cur with the changes of p. Local annotations keep their values.
func mergePod(cur, p *v1.Pod) *v1.Pod {
	out := *cur
	out.Spec = p.Spec
	out.Labels = p.Labels
	out.DeletionTimestamp = p.DeletionTimestamp
	out.DeletionGracePeriodSeconds = p.DeletionGracePeriodSeconds
	out.Generation = p.Generation
	out.Status = p.Status
	out.Annotations = foreignAnnotations(p)
	for _, k := range localAnnotations {
		if v, ok := cur.Annotations[k]; ok {
			out.Annotations[k] = v
		}
	}
	return &out
}

// withAnnotations returns a copy of the pod with the annotations set; it shares everything else
// with p.
func withAnnotations(p *v1.Pod, set map[string]string) *v1.Pod {
	out := *p
	out.Annotations = make(map[string]string, len(p.Annotations)+len(set))
	maps.Copy(out.Annotations, p.Annotations)
	maps.Copy(out.Annotations, set)
	return &out
}

// commonEnds returns how many leading and trailing elements of both lists are the same: few of a
// source's thousands of pods change at a time, and only those between need to be compared. No
// element is counted twice.
func commonEnds[A, B any](a []A, b []B, same func(A, B) bool) (head, tail int) {
	most := min(len(a), len(b))
	for head < most && same(a[head], b[head]) {
		head++
	}
	for tail < most-head && same(a[len(a)-1-tail], b[len(b)-1-tail]) {
		tail++
	}
	return head, tail
}

// duplicates counts the pods of a set by full name and by UID. It is updated with each version of
// the set.
type duplicates struct {
	pods  []*v1.Pod
	names map[pod.FullName]int
	uids  map[pod.UID]int
	// doubles is the number of names and UIDs of more than one pod.
	doubles int
}

// follow updates the counts to the newest pods, which must no longer change.
func (c *duplicates) follow(newest []*v1.Pod) {
	if c.names == nil {
		c.names, c.uids = map[pod.FullName]int{}, map[pod.UID]int{}
	}
	head, tail := commonEnds(c.pods, newest, func(a, b *v1.Pod) bool { return a == b })
	for _, p := range c.pods[head : len(c.pods)-tail] {
		c.doubles += count(c.names, pod.FullNameOf(p), -1) + count(c.uids, p.UID, -1)
	}
	for _, p := range newest[head : len(newest)-tail] {
		c.doubles += count(c.names, pod.FullNameOf(p), 1) + count(c.uids, p.UID, 1)
	}
	c.pods = newest
}

// count adds by, which is 1 or -1, to the key's count, and returns the change of the number of keys
// with a count above one.
func count[K comparable](counts map[K]int, key K, by int) int {
	before := counts[key]
	now := before + by
	if now == 0 {
		delete(counts, key)
	} else {
		counts[key] = now
	}
	return min(max(now, 1), 2) - min(max(before, 1), 2)
}

type duplicate struct {
	pod     *v1.Pod
	problem manifest.Problem
	event   string // text of the event
}

// mergeDuplicates drops pods whose full name or UID an earlier pod of the set has.
func mergeDuplicates(src pod.Source, pods []*v1.Pod) (unique []*v1.Pod, dropped []duplicate) {
	names := make(map[pod.FullName]*v1.Pod, len(pods))
	uids := make(map[pod.UID]*v1.Pod, len(pods))
	unique = make([]*v1.Pod, 0, len(pods))
	for _, p := range pods {
		sameName, sameUID := names[pod.FullNameOf(p)], uids[p.UID]
		if sameName == nil && sameUID == nil {
			names[pod.FullNameOf(p)] = p
			uids[p.UID] = p
			unique = append(unique, p)
			continue
		}
		first := sameName
		subject := fmt.Sprintf("pod %s/%s", p.Namespace, p.Name)
		field := fmt.Sprintf("pod name %q", p.Name)
		if first == nil {
			first = sameUID
			subject = fmt.Sprintf("metadata.uid %s of pod %s/%s", p.UID, p.Namespace, p.Name)
			field = fmt.Sprintf("metadata.uid %q", p.UID)
		}
		where := subject + " stands in it twice"
		if pathOf(src, first) != pathOf(src, p) {
			where = fmt.Sprintf("%s stands in %s already", subject, pathOf(src, first))
		}
		// The event has the kubelet's text, with the location.
		dropped = append(dropped, duplicate{p, manifest.Problem{
			Source: src, Path: pathOf(src, p), Namespace: p.Namespace, Name: p.Name,
			Severity: manifest.SeverityError, Message: where + "; the first one counts: change or remove the other one",
		}, fmt.Sprintf("Error validating pod %s from %s due to duplicate %s, ignoring: %s", pod.Describe(p), src, field, where)})
	}
	return unique, dropped
}

// computeClashes reports pods of manifests whose full name an earlier source also has. Both stay
// desired, as in the kubelet: the pod workers run one of them at a time.
func computeClashes(feeds []*feed) []manifest.Problem {
	first := map[pod.FullName]*v1.Pod{}
	var problems []manifest.Problem
	manifests := slices.DeleteFunc(slices.Clone(feeds), func(f *feed) bool {
		return f.source == pod.APISource // its mirror pods have the names of static pods
	})
	if len(manifests) < 2 {
		return nil
	}
	for _, f := range manifests {
		for _, p := range f.newest.pods {
			other := first[pod.FullNameOf(p)]
			if other == nil {
				first[pod.FullNameOf(p)] = p
				continue
			}
			if pod.SourceOf(other) == f.source {
				continue
			}
			problems = append(problems, manifest.Problem{
				Source: f.source, Path: p.Annotations[pod.ManifestAnnotation], Namespace: p.Namespace, Name: p.Name,
				Severity: manifest.SeverityWarning,
				Message: fmt.Sprintf("pod %s/%s is wanted by %s too: only one of them runs, and the other one waits until that is gone; rename one of them",
					p.Namespace, p.Name, describeOrigin(other)),
			})
		}
	}
	return problems
}

// explainUpdates returns the journal entries of the operations; before is what the loop had. A
// mirror pod has none: its static pod has them.
func explainUpdates(before []deliveredPod, updates []pod.PodUpdate) []journal.Entry {
	added := map[pod.FullName]*v1.Pod{}
	removed := map[pod.FullName]*v1.Pod{}
	known := map[pod.UID]*v1.Pod{} // the updated ones
	for _, u := range updates {
		for _, p := range u.Pods {
			switch u.Op {
			case pod.ADD:
				added[pod.FullNameOf(p)] = p
			case pod.REMOVE:
				removed[pod.FullNameOf(p)] = p
			case pod.UPDATE:
				known[p.UID] = nil
			}
		}
	}
	for i := 0; len(known) > 0 && i < len(before); i++ {
		if _, updated := known[before[i].UID]; updated {
			known[before[i].UID] = before[i].Pod
		}
	}
	var out []journal.Entry
	for _, u := range updates {
		for _, p := range u.Pods {
			if pod.IsMirror(p) {
				continue
			}
			var decision, why string
			switch u.Op {
			case pod.ADD:
				decision, why = "accepted", "new in "+describeOrigin(p)
				if old := removed[pod.FullNameOf(p)]; old != nil {
					why = whyReplaced(old, p, "replaces pod "+string(old.UID))
				}
			case pod.UPDATE:
				decision = "changed"
				why = fmt.Sprintf("%s: %s", describeOrigin(p), describeChanges(known[p.UID], p))
			case pod.DELETE:
				decision, why = "deletion asked for", describeOrigin(p)+": deletionTimestamp is set"
				if p.DeletionGracePeriodSeconds != nil {
					why += fmt.Sprintf(", grace period %d s", *p.DeletionGracePeriodSeconds)
				}
			case pod.REMOVE:
				decision, why = "removed", "no longer in "+describeOrigin(p)
				if next := added[pod.FullNameOf(p)]; next != nil {
					why = whyReplaced(p, next, "replaced by pod "+string(next.UID))
				}
			default:
				continue
			}
			out = append(out, journal.Entry{
				Subject:   journal.Subject{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
				Component: component, Decision: decision, Why: why,
			})
		}
	}
	return out
}

// whyReplaced returns why the next pod replaces the old one of the same name.
func whyReplaced(old, next *v1.Pod, effect string) string {
	if old.UID == next.UID {
		return describeOrigin(next) + " was deleted and written again"
	}
	return fmt.Sprintf("%s changed (%s): %s", describeOrigin(next), describeChanges(old, next), effect)
}

// describeOrigin names the pod's manifest or source.
func describeOrigin(p *v1.Pod) string {
	if path, ok := p.Annotations[pod.ManifestAnnotation]; ok {
		return "manifest " + path
	}
	return "source " + string(pod.SourceOf(p))
}
