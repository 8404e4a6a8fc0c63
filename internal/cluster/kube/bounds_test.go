package kube_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
)

const mebi = 1 << 20

// ahead is how much more than the bound a server may have got rid of: the piece under way.
const ahead = mebi

var letters = strings.Repeat("x", 64<<10)

// An answer without an end is refused when the bound is reached.
func TestCallsReadNoMoreThanOneObject(t *testing.T) {
	for call, do := range calls {
		t.Run(call, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
				var sent atomic.Int64
				s.Inject(kubetest.Fault{Then: kubetest.Pour(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"`, letters, &sent)})
				err := do(t, c)
				if err == nil || !strings.Contains(err.Error(), "an object or error has more than 16 MiB") {
					t.Errorf("error = %v, want one that names what is too large, and the bound", err)
				}
				if n := sent.Load(); n > 16*mebi+ahead {
					t.Errorf("%d bytes were read", n)
				}
			})
		})
	}
}

// Of an event or a list in JSON without an end, no more is read than is allowed, and the set stays.
func TestWatchReadsNoMoreThanIsAllowed(t *testing.T) {
	for name, test := range map[string]struct {
		options []kubetest.Option
		verb    string
		head    string
		most    int64
	}{
		"a list":   {[]kubetest.Option{kubetest.WithoutWatchList()}, "list", `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[{"kind":"`, 64 * mebi},
		"an event": {nil, "watch", `{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"`, 16 * mebi},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
				kubetest.Put(s, newPod("a", "here"))
				w := start[*v1.Pod](t, c, kube.OfNode("here"))
				expectNames(t, w, "a")
				var sent atomic.Int64
				s.Inject(kubetest.Fault{Verb: test.verb, Times: 1, Then: kubetest.Pour(test.head, letters, &sent)})
				s.ExpireWatches()
				kubetest.Put(s, newPod("b", "here"))
				advance(30 * time.Second)
				if n := sent.Load(); n > test.most+ahead || n < test.most-ahead {
					t.Errorf("%d bytes were read, want no more than %d", n, test.most)
				}
				expectNames(t, w, "a", "b")
			}, test.options...)
		})
	}
}

func bigMap(name string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"x": strings.Repeat(letters, 17)}}
}

// A set that is too large as a whole is refused, in a list and in the events that a watch begins
// with, with words that say so.
func TestWatchRefusesASetThatIsTooLarge(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
				for i := range 70 { // of more than 1 MiB each
					kubetest.Put(s, bigMap(fmt.Sprint(i)))
				}
				w := start[*v1.ConfigMap](t, c, kube.Selector{})
				if _, synced := w.List(); synced || w.Err() == nil || !strings.HasSuffix(w.Err().Error(), "the list of configmaps has more than 64 MiB") {
					t.Errorf("synced %v, Err = %v, want one that says what is too large, and the bound", synced, w.Err())
				}
				for i := range 20 {
					kubetest.Remove[*v1.ConfigMap](s, "default", fmt.Sprint(i))
				}
				advance(30 * time.Second)
				if maps, _ := w.List(); len(maps) != 50 {
					t.Errorf("%d config maps, want 50", len(maps))
				}
			}, way.options...)
		})
	}
}

// A list in pages is bounded as a whole: a server could go on for ever.
func TestWatchRefusesPagesWithoutEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		page := fmt.Sprintf(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9","continue":"more"},"items":[{"data":{"x":%q}}]}`, strings.Repeat(letters, 16*15))
		s.Inject(kubetest.Fault{Verb: "list", Then: kubetest.Say(page)})
		w := start[*v1.ConfigMap](t, c, kube.Selector{})
		if n := s.Count("list", "configmaps"); n != 5 {
			t.Errorf("%d pages of 15 MiB were asked for, want 5", n)
		}
		if w.Err() == nil || !strings.HasSuffix(w.Err().Error(), "the list of configmaps has more than 64 MiB") {
			t.Errorf("Err = %v, want one that says what is too large, and the bound", w.Err())
		}
	}, kubetest.WithoutWatchList())
}

// The bounds are those of one event, and of the set that a watch begins with, and not of all that
// it ever brings.
func TestWatchReadsEventsWithoutEnd(t *testing.T) {
	for name, test := range map[string]struct {
		options []kubetest.Option
		events  int
	}{
		"protobuf": {nil, 70},
		"JSON":     {[]kubetest.Option{kubetest.WithoutProtobuf()}, 20},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
				w := start[*v1.ConfigMap](t, c, kube.Named("default", "big"))
				for i := range test.events { // of more than 1 MiB each
					m := bigMap("big")
					m.Data["n"] = fmt.Sprint(i)
					kubetest.Put(s, m)
					expectNames(t, w, "big")
					if m, _ := w.Get("default", "big"); m.Data["n"] != fmt.Sprint(i) {
						t.Fatalf("version %s is shown, want %d", m.Data["n"], i)
					}
				}
				if n := s.Count("watch", "configmaps"); n != 1 {
					t.Errorf("%d watches, want one that goes on", n)
				}
			}, test.options...)
		})
	}
}

// unread is an answer that says how long it is, and whose body must not be touched.
type unread struct{ length int64 }

var errRead = errors.New("the body was read")

func (u unread) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r, ContentLength: u.length,
		Body: struct {
			io.Reader
			io.Closer
		}{failing{}, io.NopCloser(nil)},
	}, nil
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errRead }

func TestAnswersThatSayThatTheyAreTooLargeAreNotRead(t *testing.T) {
	c := open(t, kube.Config{REST: &rest.Config{Host: "http://unread", Transport: unread{16*mebi + 1}}})
	if _, err := c.GetPod(t.Context(), "default", "a"); err == nil || errors.Is(err, errRead) || !strings.Contains(err.Error(), "more than 16 MiB") {
		t.Errorf("error = %v, want one that says what the bound is", err)
	}
	c = open(t, kube.Config{REST: &rest.Config{Host: "http://unread", Transport: unread{16 * mebi}}})
	if _, err := c.GetPod(t.Context(), "default", "a"); !errors.Is(err, errRead) {
		t.Errorf("error = %v, want that an answer within the bound is read", err)
	}
}
