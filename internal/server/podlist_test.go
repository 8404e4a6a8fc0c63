package server

import (
	"encoding/json"
	"errors"
	"io"
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

// What a list shows is what the pods are now, and what was encoded serves again only for a pod that is the same.
func TestPodEncoder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e podEncoder
		list := func(pods ...*v1.Pod) map[pod.UID]string {
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
			at := map[pod.UID]string{}
			for uid, p := range e.encoded {
				at[uid] = string(p.json)
			}
			return at
		}
		list()
		a, b := newListed("a", ""), newListed("b", "")
		list(a, b)
		kept := &e.encoded["a"].json[0]
		again := *a // as the agent makes the list anew for each question
		list(&again, newListed("b", "it has changed"))
		if &e.encoded["a"].json[0] != kept {
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
		if synctest.Wait(); len(e.encoded) != 1 {
			t.Error("what was encoded is gone although clients ask")
		}
		time.Sleep(2 * time.Second)
		if synctest.Wait(); e.encoded != nil {
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
