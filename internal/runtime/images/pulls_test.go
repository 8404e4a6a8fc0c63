package images_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/internal/pod"
	"berth/internal/runtime/images"
)

func TestPulls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{takes: 10 * time.Second}
		p, _, _ := newPuller(s, 1)
		began := time.Now()
		done := make(chan error)
		for _, uid := range []string{"2", "1"} {
			go func() {
				_, err := ensure(t.Context(), p, pod.UID(uid), container("c", "one:1", ""))
				done <- err
			}()
		}
		synctest.Wait()
		lookAhead(p, "3", container("c", "two:1", ""))
		time.Sleep(time.Second)
		synctest.Wait()
		want := []images.Pull{
			{Image: "one:1", Pods: []pod.UID{"1", "2"}, Since: began, AtOnce: 1},
			{Image: "two:1", Pods: []pod.UID{"3"}, Ahead: true, Place: 1, AtOnce: 1},
		}
		got := p.Pulls()
		if d := cmp.Diff(want, got, cmpopts.IgnoreFields(images.Pull{}, "Name")); d != "" {
			t.Error(d)
		}
		if name := got[0].Name.Name(); name != "docker.io/library/one" {
			t.Errorf("full name %q", name)
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		p.Forget("3")
		synctest.Wait()
		if got := p.Pulls(); got != nil {
			t.Errorf("pulls under way at the end: %+v", got)
		}
	})
}
