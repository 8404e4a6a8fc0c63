package podconfig

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/pod"
)

// modelSources are the sources of the model, in the order in which PodConfig has them.
var modelSources = []pod.Source{pod.FileSource, pod.HTTPSource, pod.APISource}

// mergeModel is a PodConfig beside what it must tell: for each source the last full set, and what a
// loop that folds the operations has.
type mergeModel struct {
	t      *testing.T
	c      *PodConfig
	bytes  []byte // the choices of the sequence; 0 when they are used up
	last   map[pod.Source][]*v1.Pod
	handed map[pod.Source]bool // a complete set, since the last Take
	seen   map[pod.Source]bool // a complete set was taken
	loop   map[pod.Source]map[pod.UID]*v1.Pod
	since  map[pod.Source]map[pod.UID]string // config.seen
}

func newMergeModel(t *testing.T, choices []byte) *mergeModel {
	cfg := newConfig()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m := &mergeModel{
		t: t, c: c, bytes: choices,
		last: map[pod.Source][]*v1.Pod{}, handed: map[pod.Source]bool{}, seen: map[pod.Source]bool{},
		loop: map[pod.Source]map[pod.UID]*v1.Pod{}, since: map[pod.Source]map[pod.UID]string{},
	}
	for _, s := range modelSources {
		c.feeds = append(c.feeds, &feed{source: s})
		m.loop[s], m.since[s] = map[pod.UID]*v1.Pod{}, map[pod.UID]string{}
	}
	return m
}

// choose returns a number below n.
func (m *mergeModel) choose(n int) int {
	if len(m.bytes) == 0 {
		return 0
	}
	b := m.bytes[0]
	m.bytes = m.bytes[1:]
	return int(b) % n
}

// modelPod returns a pod that differs from others of its UID in one of the ways that matter, or in
// one that does not.
func (m *mergeModel) modelPod() *v1.Pod {
	n := m.choose(6)
	p := testPod(fmt.Sprint("u", n), fmt.Sprint("pod", n))
	change := m.choose(12)
	value := fmt.Sprint(m.choose(2))
	switch change {
	case 1:
		p.Labels = map[string]string{"l": value}
	case 2:
		p.Annotations["a"] = value
	case 3:
		p.Spec.Containers = []v1.Container{{Name: "c", Image: value}}
	case 4:
		p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: v1.PodConditionType(value)}}
	case 5:
		p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1_700_000_000, 0)}
	case 6:
		p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1_700_000_000, 0)}
		p.DeletionGracePeriodSeconds = ptr.To(int64(len(value)))
	case 7:
		p.Status.Phase = v1.PodPhase("Phase" + value)
	case 8:
		p.Generation = 3
		p.Spec.Hostname = "h" + value
	case 9:
		p.Name = "other" + value // an object of the same UID under another name: only manifests can do that
	case 10:
		p.Annotations[pod.ConfigSeenAnnotation] = "forged"
		p.Annotations[pod.ConfigMirrorAnnotation] = value
	case 11:
		p.ResourceVersion = value
		p.OwnerReferences = []metav1.OwnerReference{{Name: value}}
	}
	return p
}

// step does one thing that a source or the loop can do.
func (m *mergeModel) step() {
	if m.choose(3) == 0 {
		m.take()
		return
	}
	i := m.choose(len(modelSources))
	src := modelSources[i]
	var pods []*v1.Pod
	for range m.choose(5) {
		if old := m.last[src]; len(old) > 0 && m.choose(2) == 0 {
			pods = append(pods, old[m.choose(len(old))]) // the same object again, as caches give it
			continue
		}
		pods = append(pods, m.modelPod())
	}
	partial := !m.seen[src] && m.choose(4) == 1
	// The model's own rule for duplicates: the first one of a name or UID counts.
	var want []*v1.Pod
	for _, p := range pods {
		if !slices.ContainsFunc(want, func(q *v1.Pod) bool { return q.UID == p.UID || q.Name == p.Name && q.Namespace == p.Namespace }) {
			want = append(want, p)
		}
	}
	m.last[src] = want
	m.handed[src] = m.handed[src] || !partial
	if partial {
		m.handed[src] = false // the newest set is what counts
	}
	m.c.handOver(m.c.feeds[i], snapshot{pods: slices.Clone(pods), partial: partial})
}

// take folds what the loop is given and compares it with the last full sets.
func (m *mergeModel) take() {
	m.t.Helper()
	heard := map[pod.Source]bool{}
	order := map[pod.Source]int{}
	ranks := []pod.PodOperation{pod.REMOVE, pod.ADD, pod.UPDATE, pod.DELETE, pod.RECONCILE}
	for _, u := range m.c.Take() {
		loop, since := m.loop[u.Source], m.since[u.Source]
		rank := slices.Index(ranks, u.Op)
		if rank < order[u.Source] {
			m.t.Fatalf("%s of %s comes after %s", u.Op, u.Source, ranks[order[u.Source]])
		}
		order[u.Source] = rank
		heard[u.Source] = true
		if len(u.Pods) == 0 && (u.Op != pod.ADD || m.seen[u.Source]) {
			m.t.Fatalf("%s of %s without pods", u.Op, u.Source)
		}
		for _, p := range u.Pods {
			before, known := loop[p.UID]
			switch u.Op {
			case pod.ADD:
				if known {
					m.t.Fatalf("%s: ADD of pod %s, which the loop has", u.Source, p.UID)
				}
				since[p.UID] = p.Annotations[pod.ConfigSeenAnnotation]
				if _, err := time.Parse(seenLayout, since[p.UID]); err != nil {
					m.t.Fatalf("config.seen: %v", err)
				}
				loop[p.UID] = p
				continue
			case pod.REMOVE:
				if !known {
					m.t.Fatalf("%s: REMOVE of pod %s, which the loop does not have", u.Source, p.UID)
				}
				delete(loop, p.UID)
				continue
			case pod.UPDATE, pod.DELETE:
				if (p.DeletionTimestamp != nil) != (u.Op == pod.DELETE) {
					m.t.Fatalf("%s: %s of pod %s with deletion time %v", u.Source, u.Op, p.UID, p.DeletionTimestamp)
				}
				if known && sameToUsers(before, p) {
					m.t.Fatalf("%s: %s of pod %s without a difference", u.Source, u.Op, p.UID)
				}
			case pod.RECONCILE:
				if known && (!sameToUsers(before, p) || cmp.Equal(before.Status, p.Status)) {
					m.t.Fatalf("%s: RECONCILE of pod %s: not the status alone differs", u.Source, p.UID)
				}
			}
			if !known {
				m.t.Fatalf("%s: %s of pod %s, which the loop does not have", u.Source, u.Op, p.UID)
			}
			loop[p.UID] = p
		}
	}
	for i, src := range modelSources {
		if m.handed[src] && !m.seen[src] {
			m.seen[src] = true
			if !heard[src] {
				m.t.Fatalf("%s: the first complete set gave no operation", src)
			}
		}
		m.handed[src] = false
		if m.c.feeds[i].delivered.seen != m.seen[src] {
			m.t.Fatalf("%s: seen %v, want %v", src, !m.seen[src], m.seen[src])
		}
		if len(m.loop[src]) != len(m.last[src]) {
			m.t.Fatalf("%s: the loop has %d pods, the last set %d", src, len(m.loop[src]), len(m.last[src]))
		}
		for _, want := range m.last[src] {
			got := m.loop[src][want.UID]
			switch {
			case got == nil:
				m.t.Fatalf("%s: the loop has no pod %s", src, want.UID)
			case !sameToUsers(got, want) || !cmp.Equal(got.Status, want.Status):
				m.t.Fatalf("%s: pod %s (-last set +loop):\n%s", src, want.UID, cmp.Diff(want, got))
			case pod.SourceOf(got) != src:
				m.t.Fatalf("pod %s has source %q, want %q", want.UID, pod.SourceOf(got), src)
			case got.Annotations[pod.ConfigSeenAnnotation] != m.since[src][want.UID]:
				m.t.Fatalf("pod %s: config.seen changed to %s", want.UID, got.Annotations[pod.ConfigSeenAnnotation])
			}
		}
	}
	if got := m.c.SeenAllSources(); got != (m.seen[pod.FileSource] && m.seen[pod.HTTPSource] && m.seen[pod.APISource]) {
		m.t.Fatalf("seen all sources: %v, by source %v", got, m.seen)
	}
	if again := m.c.Take(); again != nil {
		m.t.Fatalf("the same sets gave %s", ops(again))
	}
}

// sameToUsers is the model's own reading of which differences make an update.
func sameToUsers(a, b *v1.Pod) bool {
	shown := func(p *v1.Pod) string {
		notes := map[string]string{}
		for k, v := range p.Annotations {
			if k != "kubernetes.io/config.source" && k != "kubernetes.io/config.seen" && k != "kubernetes.io/config.mirror" {
				notes[k] = v
			}
		}
		text, err := json.Marshal([]any{p.Spec, p.Labels, notes, p.DeletionTimestamp, p.DeletionGracePeriodSeconds})
		if err != nil {
			panic(err)
		}
		return strings.ReplaceAll(string(text), "null", "{}") // no labels are empty labels
	}
	return shown(a) == shown(b)
}

// run does all the steps, and takes what is left.
func (m *mergeModel) run() {
	for len(m.bytes) > 0 {
		m.step()
	}
	m.take()
}

// FuzzMerge: whatever the sources hand over and whenever the loop takes it, the fold of the
// operations is the last full set per source.
func FuzzMerge(f *testing.F) {
	for seed := range uint64(20) {
		choices := make([]byte, 200)
		r := rand.NewChaCha8([32]byte{byte(seed)})
		r.Read(choices) // never an error
		f.Add(choices)
	}
	f.Fuzz(func(t *testing.T, choices []byte) { newMergeModel(t, choices).run() })
}

// TestMergeModel runs random sequences of full sets, the same ones each time.
func TestMergeModel(t *testing.T) {
	r := rand.NewChaCha8([32]byte{1})
	for range 400 {
		choices := make([]byte, 300)
		r.Read(choices) // never an error
		newMergeModel(t, choices).run()
	}
}
