package objects

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
)

// A RuntimeClass is watched while a pod names it, and the pod that waits for one is told when it
// comes.
func TestRuntimeHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		o := start(t, s)
		p := podWith("waits", nil, nil)
		name := "strong"
		p.Spec.RuntimeClassName = &name
		if got := s.watched(); got != nil {
			t.Errorf("without a pod %v is watched", got)
		}
		o.Register(p)
		if got := s.watched(); !slices.Equal(got, []string{"/strong"}) {
			t.Errorf("watched: %v", got)
		}
		if _, err := o.RuntimeHandler(t.Context(), p); err == nil || err.Error() != `RuntimeClass "strong" not found` {
			t.Errorf("a missing class: %v", err)
		}
		s.setClass("strong", "kata")
		if got := told(o); !slices.Equal(got, []string{"waits"}) {
			t.Errorf("told %v, want the pod that waits", got)
		}
		if handler, err := o.RuntimeHandler(t.Context(), p); handler != "kata" || err != nil {
			t.Errorf("got %q, %v", handler, err)
		}
		o.Register(podWith("other", nil, nil))
		o.Unregister(p.UID)
		if got := s.watched(); got != nil {
			t.Errorf("when the pod is gone %v is watched", got)
		}
	})
}

// A running pod needs its class no more until its sandbox has to be made anew: nobody watches it
// all the time.
func TestRuntimeClassIsNotWatchedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		o := start(t, s)
		s.setClass("strong", "kata")
		p := podWith("runs", nil, nil)
		p.Spec = v1.PodSpec{RuntimeClassName: new(string)}
		*p.Spec.RuntimeClassName = "strong"
		o.Register(p)
		if _, err := o.RuntimeHandler(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if got := s.watched(); got != nil {
			t.Errorf("watched: %v", got)
		}
		if handler, err := o.RuntimeHandler(t.Context(), p); handler != "kata" || err != nil {
			t.Errorf("asked again: %q, %v", handler, err)
		}
	})
}
