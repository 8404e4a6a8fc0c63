package images_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint/checkpointtest"
)

// No image is pulled that nobody would know to be private; what was recorded stays, and so does the
// use of what was pulled.
func TestDiskThatTakesNoPullRecords(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			s.want("before", "pulled", s.run(private, v1.PullIfNotPresent, "good"))
			before := s.files()
			mend := fail(s.dir)
			s.want("another image", "ErrImagePull", s.run("registry.example/team/other:1", v1.PullIfNotPresent, "good"))
			if events := strings.Join(s.rec.take(), "\n"); !strings.Contains(events, "write "+s.dir) {
				t.Errorf("events that do not say which file:\n%s", events)
			}
			s.want("with the same credentials", "present", s.run(private, v1.PullIfNotPresent, "good"))
			s.want("without", "ErrImagePull", s.run(private, v1.PullIfNotPresent))
			if diff := cmp.Diff(before, s.files()); diff != "" {
				t.Errorf("records (-before +now):\n%s", diff)
			}
			mend()
			s.want("another image, then", "pulled", s.run("registry.example/team/other:1", v1.PullIfNotPresent, "good"))
		})
	})
}
