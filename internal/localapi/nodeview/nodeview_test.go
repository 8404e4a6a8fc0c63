package nodeview_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/localapi/kinds"
	"berth/internal/localapi/nodeview"
	"berth/internal/localapi/store"
	"berth/internal/pod"
	"berth/internal/record/events"
)

// agent is what a test says that an agent knows.
type agent struct {
	*testing.T
	events  *events.Store
	changed pod.Publisher[pod.UID]
	node    pod.Publisher[string]
	store   *store.Store

	mu      sync.Mutex
	pods    map[pod.UID]*v1.Pod // guarded by mu
	refused []*v1.Pod           // guarded by mu
	nodeNow *v1.Node            // guarded by mu; nil is not known
}

// newAgent returns an agent without pods, and the store of its replica.
func newAgent(t *testing.T) *agent {
	t.Helper()
	s, err := store.Open(store.Config{Path: filepath.Join(t.TempDir(), "objects.db"), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &agent{T: t, store: s, events: events.NewStore("kubelet", "n"), pods: map[pod.UID]*v1.Pod{}, nodeNow: node("a")}
}

func node(version string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"version": version}}}
}

func (a *agent) source() nodeview.Source {
	return nodeview.Source{
		Pods: func() (all []*v1.Pod) {
			a.mu.Lock()
			defer a.mu.Unlock()
			for _, p := range a.pods {
				all = append(all, p)
			}
			return all
		},
		Pod: func(uid pod.UID) (*v1.Pod, bool) {
			a.mu.Lock()
			defer a.mu.Unlock()
			p, ok := a.pods[uid]
			return p, ok
		},
		Subscribe: a.changed.Subscribe,
		Refused: func() []*v1.Pod {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.refused
		},
		Node: func(context.Context) (*v1.Node, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.nodeNow == nil {
				return nil, errors.New("not known yet")
			}
			return a.nodeNow, nil
		},
		NodeChanged: a.node.Subscribe, Events: a.events,
	}
}

// start fills the store and follows the changes, until the test ends.
func (a *agent) start() {
	a.Helper()
	r := nodeview.New(a.source(), a.store, slog.New(slog.DiscardHandler))
	if err := r.Fill(); err != nil {
		a.Fatal(err)
	}
	ctx, stop := context.WithCancel(a.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	a.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			a.Errorf("it ended with %v", err)
		}
		r.Close()
	})
}

// set has the agent have a pod.
func (a *agent) set(p *v1.Pod) {
	a.mu.Lock()
	a.pods[p.UID] = p
	a.mu.Unlock()
	a.changed.Publish(p.UID)
}

func (a *agent) remove(uid pod.UID) {
	a.mu.Lock()
	delete(a.pods, uid)
	a.mu.Unlock()
	a.changed.Publish(uid)
}

func web(uid string, phase v1.PodPhase) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: pod.UID(uid)}, Status: v1.PodStatus{Phase: phase}}
}

func ending(p *v1.Pod) *v1.Pod {
	p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	return p
}

// has returns the objects of a resource as the store has them, each by look.
func (a *agent) has(resource string, look func(kinds.Object) string) []string {
	a.Helper()
	all := []string{}
	_, err := a.store.List(store.Range{Resource: resource}, func(i store.Item) bool {
		o, err := kinds.Decode(i.Value, i.Revision)
		if err != nil {
			a.Error(err)
			return false
		}
		all = append(all, look(o))
		return true
	})
	if err != nil {
		a.Error(err)
	}
	return all
}

// await waits until the store has these objects of a resource.
func (a *agent) await(resource string, look func(kinds.Object) string, want ...string) {
	a.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		got := a.has(resource, look)
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(end) {
			a.Fatalf("%s: %q, want %q", resource, got, want)
		}
		ctx, cancel := context.WithTimeout(a.Context(), time.Second)
		_, _ = a.store.Since(ctx, a.store.Revision()) // or the time is over
		cancel()
	}
}

func podText(o kinds.Object) string {
	p := o.(*v1.Pod)
	text := fmt.Sprintf("%s %s %s", p.Name, p.UID, p.Status.Phase)
	if p.DeletionTimestamp != nil {
		text += " ends"
	}
	return text
}

func name(o kinds.Object) string { return o.GetName() }

func TestPodsComeChangeAndGo(t *testing.T) {
	a := newAgent(t)
	a.set(web("1", ""))
	a.start()
	a.await("pods", podText, "web 1 Pending")
	a.await("namespaces", name, "default")
	running := web("1", v1.PodRunning)
	running.Annotations = map[string]string{pod.ConfigSourceAnnotation: string(pod.APISource), pod.ConfigSeenAnnotation: "now", "own": "1"}
	a.set(running)
	a.await("pods", podText, "web 1 Running")
	if got := a.has("pods", func(o kinds.Object) string { return fmt.Sprint(o.GetAnnotations()) }); got[0] != "map[own:1]" || len(running.Annotations) != 3 {
		t.Errorf("the pod of the API has the annotations %s", got)
	}
	db := web("2", v1.PodRunning)
	db.Namespace, db.Name = "data", "db"
	db.Status.StartTime = &metav1.Time{Time: time.Unix(7, 0)}
	a.set(db)
	a.await("pods", podText, "db 2 Running", "web 1 Running")
	a.await("namespaces", name, "data", "default")
	if got := a.has("pods", func(o kinds.Object) string { return o.GetCreationTimestamp().UTC().Format(time.TimeOnly) }); got[0] != "00:00:07" {
		t.Errorf("a static pod was created at %v", got)
	}
	a.remove("1")
	a.await("pods", podText, "db 2 Running")
	a.remove("never there")
	a.remove("2")
	a.await("pods", podText)
}

// Of two pods of a name, the one that ends is shown, as with an API server the other comes later;
// and that it is another one, watchers are told.
func TestPodInThePlaceOfAnother(t *testing.T) {
	a := newAgent(t)
	a.start()
	a.set(web("9", v1.PodRunning))
	a.await("pods", podText, "web 9 Running")
	a.set(web("1", v1.PodPending))
	a.set(ending(web("9", v1.PodRunning)))
	a.await("pods", podText, "web 9 Running ends")
	seen, err := a.store.List(store.Range{Resource: "pods"}, func(store.Item) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	a.remove("9")
	a.await("pods", podText, "web 1 Pending")
	// What a list shows may come into the history a little later; and the Node changes, too.
	var changes []store.Change
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for len(changes) < 2 {
		all, err := a.store.Since(ctx, seen)
		if err != nil {
			t.Fatalf("%d changes of pods, %v; want two", len(changes), err)
		}
		for _, c := range all {
			seen = c.Now.Revision
			if c.Now.Key.Resource == "pods" {
				changes = append(changes, c)
			}
		}
	}
	if changes[0].Now.Value != nil || changes[1].Before.Value != nil {
		t.Error("the changes are not one that removes and one that creates")
	}
}

func TestRefusedManifests(t *testing.T) {
	a := newAgent(t)
	refuse := func(pods ...*v1.Pod) {
		a.mu.Lock()
		a.refused = pods
		a.mu.Unlock()
		a.changed.Publish("")
	}
	refuse(web("", v1.PodPending))
	a.start()
	a.await("pods", podText, "web  Pending")
	a.set(web("1", v1.PodRunning)) // which was there before its manifest was broken
	a.await("pods", podText, "web 1 Running")
	a.remove("1")
	a.await("pods", podText, "web  Pending")
	refuse()
	a.await("pods", podText)
}

func TestNode(t *testing.T) {
	a := newAgent(t)
	a.nodeNow = nil
	a.start()
	text := func(o kinds.Object) string {
		if o.GetUID() == "" {
			return "no UID"
		}
		return o.GetLabels()["version"]
	}
	if got := a.has("nodes", text); len(got) > 0 {
		t.Errorf("a Node that nobody knows: %q", got)
	}
	for _, version := range []string{"b", "c"} {
		a.mu.Lock()
		a.nodeNow = node(version)
		a.mu.Unlock()
		a.node.Publish("n")
		a.await("nodes", text, version)
	}
	uids := a.has("nodes", func(o kinds.Object) string { return string(o.GetUID()) })
	registered := node("c")
	registered.UID = "real"
	a.mu.Lock()
	a.nodeNow = registered
	a.mu.Unlock()
	a.node.Publish("n")
	a.await("nodes", func(o kinds.Object) string { return string(o.GetUID()) }, "real")
	if uids[0] == "real" {
		t.Error("there was that UID before")
	}
}

// Events are those that the agent keeps, with their counts.
func TestEvents(t *testing.T) {
	a := newAgent(t)
	record := func(reason string) {
		a.events.Add(v1.ObjectReference{Kind: "Pod", Namespace: "x", Name: "web", UID: "1"}, v1.EventTypeNormal, reason, "said "+reason)
	}
	text := func(o kinds.Object) string {
		e := o.(*v1.Event)
		return fmt.Sprintf("%s %d", e.Reason, e.Count)
	}
	record("First")
	a.start()
	a.await("events", text, "First 1")
	a.await("namespaces", name, "default", "x")
	record("First")
	a.await("events", text, "First 2")
	const kept = 1000 // by events.Store
	for i := range kept {
		record(fmt.Sprintf("Later%d", i))
	}
	for end := time.Now().Add(time.Minute); ; {
		got := a.has("events", text)
		if len(got) == kept && !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "First") }) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d events, the first of them %s", len(got), got[0])
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, _ = a.store.Since(ctx, a.store.Revision())
		cancel()
	}
}
