package server

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

func newListed(uid, message string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-" + uid, Namespace: "default", UID: pod.UID(uid), Labels: map[string]string{"app": "web"}},
		Status:     v1.PodStatus{Phase: v1.PodRunning, Message: message},
	}
}

// What a list shows is what the pods are now, and what was encoded serves again only for a pod that
// is the same.
func TestPodEncoder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e podEncoder
		kept := func() map[pod.UID]encodedPod {
			e.mu.Lock()
			defer e.mu.Unlock()
			return maps.Clone(e.encoded)
		}
		list := func(pods ...*v1.Pod) map[pod.UID]encodedPod {
			t.Helper()
			var out strings.Builder
			if err := e.write(&out, pods); err != nil {
				t.Fatal(err)
			}
			want := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []v1.Pod{}}
			for _, p := range pods {
				want.Items = append(want.Items, *p)
			}
			var got v1.PodList
			if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
				t.Fatalf("%v in %q", err, out.String())
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("listed (-want +got):\n%s", d)
			}
			return kept()
		}
		list()
		a, b := newListed("a", ""), newListed("b", "")
		first := &list(a, b)["a"].json[0]
		again := *a // as the agent makes the list anew for each question
		if second := list(&again, newListed("b", "it has changed")); &second["a"].json[0] != first {
			t.Error("a pod that did not change was encoded again")
		}
		moved := *a
		moved.Labels = map[string]string{"app": "shop"}
		list(&moved, b)
		if got := list(b); len(got) != 1 {
			t.Errorf("%d pods are kept of a list of one", len(got))
		}
		time.Sleep(encodedFor - time.Second)
		list(b)
		time.Sleep(encodedFor - time.Second)
		if synctest.Wait(); len(kept()) != 1 {
			t.Error("what was encoded is gone although clients ask")
		}
		time.Sleep(2 * time.Second)
		if synctest.Wait(); kept() != nil {
			t.Error("what was encoded is kept although nobody asks")
		}
		list(b)
	})
}

type brokenWriter struct{}

var errBroken = errors.New("the client is gone")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestPodEncoderSaysThatItCouldNotWrite(t *testing.T) {
	var e podEncoder
	defer func() { e.forget.Stop() }()
	if err := e.write(brokenWriter{}, []*v1.Pod{newListed("a", "")}); !errors.Is(err, errBroken) {
		t.Errorf("got %v", err)
	}
}

func BenchmarkPodList(b *testing.B) {
	pods := make([]*v1.Pod, 100)
	for i := range pods {
		p := newListed(strings.Repeat("x", i), "")
		p.Spec.Containers = []v1.Container{{Name: "main", Image: "berth.local/hello:1"}}
		pods[i] = p
	}
	var e podEncoder
	defer func() { e.forget.Stop() }()
	b.ReportAllocs()
	for b.Loop() {
		for i, p := range pods {
			again := *p
			pods[i] = &again
		}
		if err := e.write(io.Discard, pods); err != nil {
			b.Fatal(err)
		}
	}
}
