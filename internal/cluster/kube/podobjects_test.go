package kube_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/cluster/kube"
	"berth/internal/cluster/kube/kubetest"
)

// Who follows one object is handed nil as long as there is none, and never another of its kind.
func TestFollowOneObject(t *testing.T) {
	bubble(t, func(t *testing.T, s *kubetest.Server, c *kube.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var seen []string
		go kube.FollowOne(ctx, c, "a", "wanted", func(m *v1.ConfigMap) {
			if m == nil {
				seen = append(seen, "none")
				return
			}
			seen = append(seen, m.Name+" "+m.Data["k"])
		})
		synctest.Wait()
		for _, change := range []struct{ name, value string }{{"other", "x"}, {"wanted", "1"}, {"wanted", "2"}} {
			kubetest.Put(s, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: change.name}, Data: map[string]string{"k": change.value}})
			synctest.Wait()
		}
		if want := []string{"none", "wanted 1", "wanted 2"}; !slices.Equal(seen, want) {
			t.Errorf("got %q, want %q", seen, want)
		}
	})
}
