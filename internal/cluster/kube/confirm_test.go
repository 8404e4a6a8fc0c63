package kube_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
)

const (
	emptyList   = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}`
	emptyStream = `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}`
	otherPod    = `{"kind":"Pod","apiVersion":"v1","metadata":{"namespace":"default","name":"x","uid":"other","resourceVersion":"9"}}`
	otherList   = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[` + otherPod + `]}`
	otherStream = `{"type":"ADDED","object":` + otherPod + `}` + emptyStream
)

var wrongSets = map[string]wrongSet{
	"empty":   {emptyList, emptyStream},
	"strange": {otherList, otherStream},
}

// way is how a client gets the whole set.
type way struct {
	options []kubetest.Option
	verb    string
	body    func(wrongSet) string
}

type wrongSet struct{ list, stream string }

var ways = map[string]way{
	"watch-list":       {nil, "watch", func(s wrongSet) string { return s.stream }},
	"list, then watch": {[]kubetest.Option{kubetest.WithoutWatchList()}, "list", func(s wrongSet) string { return s.list }},
}

// once makes the server answer wrongly to the next request for the set, and rightly to those after
// it.
func (w way) once(s *kubetest.Server, wrong wrongSet) {
	s.Inject(kubetest.Fault{Verb: w.verb, Resource: "pods", Times: 1, Then: kubetest.Say(w.body(wrong))})
}

func TestWatchConfirmsAListThatLeavesNothing(t *testing.T) {
	for wrong, say := range wrongSets {
		for name, way := range ways {
			t.Run(wrong+", "+name, func(t *testing.T) {
				bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
					kubetest.Put(s, newPod("a", "here"))
					kubetest.Put(s, newPod("b", "here"))
					w := start[*v1.Pod](t, c, kube.OfNode("here"))
					changes := w.changes
					for range 3 {
						way.once(s, say)
						s.ExpireWatches()
						advance(time.Minute) // two waits between tries
						expectNames(t, w, "a", "b")
					}
					if w.changes < changes+3 {
						t.Errorf("%d changes, want one at least for each list that was right", w.changes-changes)
					}
					if n := s.Watchers("pods"); n != 1 {
						t.Errorf("%d watches are open, want one", n)
					}
					kubetest.Put(s, newPod("c", "here"))
					expectNames(t, w, "a", "b", "c")
				}, way.options...)
			})
		}
	}
}

// What is really gone is gone, at the price of one list more: of the newest, not of what the server
// has in memory.
func TestWatchBelievesWhatIsConfirmed(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
				kubetest.Put(s, newPod("a", "here"))
				kubetest.Put(s, newPod("b", "here"))
				w := start[*v1.Pod](t, c, kube.OfNode("here"))
				s.Stop()
				kubetest.Remove[*v1.Pod](s, "default", "a")
				kubetest.Remove[*v1.Pod](s, "default", "b")
				advance(time.Minute)
				s.ForgetRequests()
				s.Start()
				advance(20 * time.Second)
				expectNames(t, w)
				newest := 0
				for _, q := range s.Requests() {
					if q.Verb == "list" && q.Query.Get("resourceVersion") == "" {
						newest++
					}
				}
				if newest != 1 {
					t.Errorf("%d lists of the newest, want 1", newest)
				}
				if err := w.Err(); err != nil {
					t.Errorf("Err = %v", err)
				}
			}, way.options...)
		})
	}
}

// While the list cannot be confirmed, nothing changes, and no watch is left behind by the tries.
func TestWatchKeepsWhatIsNotConfirmed(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		kubetest.Put(s, newPod("a", "here"))
		w := start[*v1.Pod](t, c, kube.OfNode("here"))
		kubetest.Put(s, newPod("a", "elsewhere"))
		expectNames(t, w) // told by the watch: that needs no second word
		if n := s.Count("list", "pods"); n != 0 {
			t.Errorf("%d lists, want none", n)
		}
		kubetest.Put(s, newPod("a", "here"))
		expectNames(t, w, "a")
		s.Inject(kubetest.Fault{Verb: "list", Then: kubetest.Answer(http.StatusInternalServerError, metav1.StatusReasonInternalError, "no leader")})
		s.BreakWatches()
		kubetest.Remove[*v1.Pod](s, "default", "a")
		s.Compact()
		advance(5 * time.Minute)
		expectNames(t, w, "a")
		if w.Err() == nil {
			t.Error("Err = nil while the list is not confirmed")
		}
		if n := s.Watchers("pods"); n > 1 {
			t.Errorf("%d watches are open, want one at most", n)
		}
		s.Heal()
		advance(time.Minute)
		expectNames(t, w)
	})
}

func TestWatchConfirmsAFirstListWithoutWhatIsExpected(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		a := kubetest.Put(s, newPod("a", "here"))
		ways["watch-list"].once(s, wrongSets["empty"])
		changes := 0
		known := func() []types.UID { return []types.UID{a.UID, "gone"} }
		w := kube.NewWatchOf[*v1.Pod](c, kube.OfNode("here"), known, func() { changes++ })
		go func() { _ = w.Run(t.Context()) }()
		<-w.Synced()
		synctest.Wait()
		if pods, _ := w.List(); len(pods) != 1 || pods[0].Name != "a" || changes != 1 {
			t.Errorf("the first set is %v, after %d changes, want that of the server", pods, changes)
		}
	})
}
