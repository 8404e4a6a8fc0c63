package eviction

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/pod"
)

// What the runtime removes behind whoever asked for it is waited for, as long as more becomes free.
func TestWhatIsFreedLate(t *testing.T) {
	short(t, map[Signal]string{NodeFsAvailable: "100Mi"}, func(t *testing.T, m *machine) {
		m.has[NodeFsAvailable] = 40 * mi
		m.add("calm", NodeFsAvailable, mi)
		m.run()
		for range 5 { // 20 Mi each 1.5 s
			time.Sleep(1500 * time.Millisecond)
			m.change(func() { m.has[NodeFsAvailable] += 20 * mi })
		}
		time.Sleep(time.Minute)
		m.want("0 node: Warning EvictionThresholdMet Attempting to reclaim ephemeral-storage", "0 remove containers", "0 remove images")
	})
}

// A pod that is leaving when the agent starts is waited for, and nobody else goes for it; but not
// for ever.
func TestPodsThatLeave(t *testing.T) {
	for _, tc := range []struct {
		name string
		gone time.Duration
		most int // evictions
	}{{"it goes", 10 * time.Second, 0}, {"it never goes", time.Hour, 1}} {
		t.Run(tc.name, func(t *testing.T) {
			short(t, map[Signal]string{NodeFsAvailable: "100Mi"}, func(t *testing.T, m *machine) {
				m.has[NodeFsAvailable] = 50 * mi
				leaving := m.add("leaving", NodeFsAvailable, mi)
				m.add("calm", NodeFsAvailable, mi)
				m.states.Set(leaving.UID, pod.Lifecycle{State: pod.Terminating, Evicted: true})
				m.run()
				go func() {
					time.Sleep(tc.gone)
					m.change(func() { m.has[NodeFsAvailable] = 800 * mi })
					m.states.Set(leaving.UID, pod.Lifecycle{State: pod.Finished, Evicted: true})
				}()
				count := func() (evictions int) {
					synctest.Wait()
					for _, line := range m.told() {
						if strings.Contains(line, "calm: evicted within") {
							evictions++
						}
					}
					return evictions
				}
				time.Sleep(settleDisks)
				if n := count(); n != 0 {
					t.Errorf("%d evictions while the pod leaves", n)
				}
				time.Sleep(2 * time.Minute)
				if n := count(); n != tc.most {
					t.Errorf("%d evictions then, want %d", n, tc.most)
				}
				time.Sleep(time.Hour)
			})
		})
	}
}
