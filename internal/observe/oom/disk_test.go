package oom

import (
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/pod"
)

// A kill is reported although it cannot be noted down, and only once if that is possible later.
func TestDiskThatTakesNoKills(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			x := &world{kernel: newFakeKernel(), dir: dir}
			x.show(map[string]pod.ContainerState{id1: pod.StateRunning})
			x.start(t)
			x.want(t)
			mend := fail(dir)
			x.kernel.kill(path1, 1)
			x.want(t, of1(Kill{Count: 1, Used: 5 << 20, Limit: 6 << 20}))
			if x.kills.Health() == nil {
				t.Error("healthy")
			}
			mend()
			time.Sleep(11 * time.Second)
			if err := x.kills.Health(); err != nil {
				t.Error(err)
			}
			x.stop()
			x.start(t)
			x.want(t)
			x.stop()
		})
	})
}
