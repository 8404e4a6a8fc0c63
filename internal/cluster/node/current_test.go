package node

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Who has subscribed is told of the stand-in, and of each Node that the API server shows.
func TestSubscribeToCurrent(t *testing.T) {
	c := NewCurrent()
	changed, cancel := c.Subscribe()
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "1", ResourceVersion: "5"}}
	for what, tell := range map[string]func(){"a stand-in": func() { c.standIn(n) }, "the API server's": func() { c.Observe(n) }} {
		tell()
		if got := changed.Take(); !slices.Equal(got, []string{"n"}) {
			t.Errorf("%s: told of %q", what, got)
		}
	}
	cancel()
	c.Observe(n)
	if got := changed.Take(); len(got) > 0 {
		t.Errorf("after the end of the subscription: told of %q", got)
	}
}
