package allocation_test

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/pod/allocation"
)

// A pod is admitted although its record cannot be written; the records that are there stay.
func TestDiskThatTakesNoRecords(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		file := filepath.Join(t.TempDir(), "allocations.json")
		next := func() *allocation.Allocations {
			a, _, _ := newAllocations(file)
			a.Load()
			return a
		}
		synctest.Test(t, func(t *testing.T) {
			a, log, _ := newAllocations(file)
			stop := run(t, a)
			a.Allocate(newPod("before", "1", "2"))
			time.Sleep(time.Minute)
			mend := fail(filepath.Dir(file))
			a.Allocate(newPod("meanwhile", "1", "2"))
			time.Sleep(time.Minute)
			if diff := cmp.Diff(newPod("meanwhile", "1", "2"), a.Apply(newPod("meanwhile", "3", "3"))); diff != "" {
				t.Errorf("the pod (-want +got):\n%s", diff)
			}
			if a.Health() == nil || strings.Count(log.String(), "not saved") != 1 {
				t.Errorf("health %v, log %s", a.Health(), log)
			}
			if p := newPod("before", "3", "3"); next().Apply(p) == p {
				t.Error("the record of before is lost")
			}
			mend()
			time.Sleep(11 * time.Second)
			if p := newPod("meanwhile", "3", "3"); next().Apply(p) == p || a.Health() != nil {
				t.Errorf("the record is not written when it can be, health %v", a.Health())
			}
			stop()
		})
	})
}
