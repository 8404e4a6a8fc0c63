package prober

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/pod"
)

// Probes go on while their verdicts cannot be written; the file has those of before until it can
// be.
func TestDiskThatTakesNoVerdicts(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		path := filepath.Join(t.TempDir(), "probes.json")
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, path)
			p, o := webPod(nil, probeOf("r", onFailures(1)), nil), runs("a")
			n.Sync(p, o)
			after(time.Minute)
			mend := fail(filepath.Dir(path))
			n.fails("r")
			after(time.Minute)
			if got := n.Verdicts("u").Readiness["a"]; got != pod.ProbeFailure || n.Health() == nil {
				t.Errorf("readiness: %v, health: %v", got, n.Health())
			}
			if got := fileOf(t, path)["u"]["a"].Readiness; got != savedVerdict(pod.ProbeSuccess) {
				t.Errorf("meanwhile the file has %v", got)
			}
			mend()
			after(11 * time.Second)
			if got := fileOf(t, path)["u"]["a"].Readiness; got != savedVerdict(pod.ProbeFailure) || n.Health() != nil {
				t.Errorf("then the file has %v, health %v", got, n.Health())
			}
			n.stop()
		})
	})
}
