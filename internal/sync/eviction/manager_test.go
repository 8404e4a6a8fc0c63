package eviction

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/pod"
)

// The kernel wakes: the order to end a pod follows with no clock in between.
func TestKernelWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, map[Signal]string{MemoryAvailable: "100Mi", AllocatableMemoryAvailable: "10%"}, withKernel)
		m.has[AllocatableMemoryAvailable] = 500 * mi
		m.slow["hog"] = time.Millisecond
		m.add("hog", MemoryAvailable, 100*mi)
		m.add("other", MemoryAvailable, 10*mi)
		m.run()
		m.want("0 armed at 828375040, 419430399") // 1000 - 110 - 100 MiB, and 500 - 100 MiB
		time.Sleep(5 * time.Second)
		m.change(func() { m.takes[MemoryAvailable]["hog"] = 891 * mi })
		m.kernel.wake <- struct{}{}
		time.Sleep(500 * time.Millisecond)
		m.want(
			"5 armed at 0, 419430399",
			"5 node: Warning EvictionThresholdMet Attempting to reclaim memory",
			"5 hog: Warning Evicted memory",
			"5 hog: evicted within 1 s: Failed Evicted TerminationByKubelet",
			"5 uid-hog: held",
			"5 hog: gone",
			"5 armed at 933232640, 419430399",
		)
		if got := m.manager.pressures.Conditions(); len(got) != 1 || got[0] != v1.NodeMemoryPressure {
			t.Errorf("conditions %v", got)
		}
		metricstest.Expect(t, m.metrics, map[string]float64{`kubelet_evictions{eviction_signal="memory.available"}`: 1, "kubelet_eviction_stats_age_seconds_count{eviction_signal=\"memory.available\"}": 1})
	})
}

// Where the kernel watches pods alone, what a daemon takes is seen in time all the same: it is read
// the more often the nearer the threshold is.
func TestMemoryOutsideOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, map[Signal]string{MemoryAvailable: "100Mi"}, withKernel)
		m.kernel.pods.Store(true)
		m.add("web", MemoryAvailable, 10*mi)
		m.run()
		_ = m.told()
		left := uint64(1000 * mi)
		for left > 100*mi { // 50 MiB/s
			time.Sleep(100 * time.Millisecond)
			left -= 5 * mi
			m.change(func() { m.has[MemoryAvailable] = left })
		}
		time.Sleep(600 * time.Millisecond) // the shortest pause, and then it is evicted at once
		if told := m.told(); !slices.ContainsFunc(told, func(line string) bool {
			return strings.HasSuffix(line, "web: evicted within 1 s: Failed Evicted TerminationByKubelet")
		}) {
			t.Errorf("after the threshold was crossed: %q, want the pod to be evicted", told)
		}
	})
}

// Where caches can be reclaimed, the kernel is to wake before the reclaim begins.
func TestKernelWakesBeforeCachesAreReclaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, map[Signal]string{MemoryAvailable: "1Gi"}, withKernel)
		m.has[MemoryAvailable], m.caches = 4096*mi, 3072*mi
		m.run()
		m.want("0 armed at 536870912, 9223372036854775807")
	})
}

// Without a limit of the pods there is nothing to wake for but the machine.
func TestKernelIsToldForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, map[Signal]string{MemoryAvailable: "1Gi"}, withKernel)
		m.manager.processes.kernel.Arm(math.MaxInt64, math.MaxInt64)
		_ = m.told()
		m.has[MemoryAvailable] = 2048 * mi
		m.run()
		m.want("0 armed at 1073741824, 9223372036854775807")
	})
}

// At rest it is read what is left less and less often, to a minute.
func TestHowOftenItIsRead(t *testing.T) {
	plenty := func(m *machine, _ *Config) {
		m.has = map[Signal]uint64{MemoryAvailable: 8 << 30, PIDAvailable: 32768, NodeFsAvailable: 100 << 30, NodeFsInodesFree: 6 << 20}
		m.total = maps.Clone(m.has)
	}
	both := func(m *machine, cfg *Config) { plenty(m, cfg); withKernel(m, cfg) }
	blind := func(m *machine, cfg *Config) { both(m, cfg); m.kernel.blind.Store(true) }
	cached := func(m *machine, cfg *Config) { both(m, cfg); m.caches = 4 << 30 }
	stalls := func(m *machine, cfg *Config) { cached(m, cfg); m.kernel.stalls.Store(true) }
	podsAlone := func(m *machine, cfg *Config) { both(m, cfg); m.kernel.pods.Store(true) }
	all := map[Signal]string{MemoryAvailable: "100Mi", PIDAvailable: "10%", NodeFsAvailable: "10%", NodeFsInodesFree: "5%"}
	memory := map[Signal]string{MemoryAvailable: "100Mi"}
	for _, tt := range []struct {
		name       string
		thresholds map[Signal]string
		change     func(m *machine, cfg *Config)
		use, disk  int
	}{
		{"memory alone", memory, plenty, 361, 0},
		{"memory alone, and a kernel that wakes", memory, both, 61, 0},
		{"memory alone, and a kernel that cannot see it", memory, blind, 361, 0},
		{"memory alone, and a kernel that wakes for pods", memory, podsAlone, 118, 0},
		{"memory alone, with caches, and a kernel that wakes", memory, cached, 361, 0},
		{"memory alone, with caches, and a kernel that reports stalls", memory, stalls, 118, 0},
		{"all", all, plenty, 363, 61},
		{"all, and a kernel that wakes", all, both, 363, 61},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(t, tt.thresholds, tt.change)
				m.add("web", MemoryAvailable, 100*mi)
				m.run()
				time.Sleep(time.Hour + time.Second)
				if use, disk := m.count("use"), m.count("/node"); use != tt.use || disk != tt.disk {
					t.Errorf("in an hour memory was read %d times, a disk %d times; want %d and %d", use, disk, tt.use, tt.disk)
				}
			})
		})
	}
}

// The next victim is chosen on figures that are read after the one before is gone.
func TestOneAfterAnother(t *testing.T) {
	short(t, map[Signal]string{MemoryAvailable: "100Mi"}, func(t *testing.T, m *machine) {
		m.slow["first"], m.leaves = 700*time.Millisecond, 1500*time.Millisecond
		m.add("first", MemoryAvailable, 500*mi)
		m.add("second", MemoryAvailable, 300*mi)
		m.add("third", MemoryAvailable, 150*mi)
		m.run()
		time.Sleep(4 * time.Second)
		m.want(
			"0 node: Warning EvictionThresholdMet Attempting to reclaim memory",
			"0 first: Warning Evicted memory",
			"0 first: evicted within 1 s: Failed Evicted TerminationByKubelet",
			"2 first: gone",
		)
		m.change(func() { m.has[MemoryAvailable], m.takes[MemoryAvailable]["third"] = 790*mi, 400*mi })
		time.Sleep(30 * time.Second)
		if told := m.told(); len(told) != 4 || !strings.HasSuffix(told[2], "third: evicted within 1 s: Failed Evicted TerminationByKubelet") {
			t.Errorf("then %q, want the pod that takes most by then", told)
		}
	})
}

// A pod that does not end in time is told, and counts. While it runs, no other one goes that uses
// less than it does; but not for ever, and who uses as much does go.
func TestVictimThatDoesNotEnd(t *testing.T) {
	short(t, map[Signal]string{PIDAvailable: "100"}, func(t *testing.T, m *machine) {
		m.hangs["deaf"] = true
		m.add("deaf", PIDAvailable, 950)
		small := m.add("small", PIDAvailable, 10)
		m.run()
		time.Sleep(9 * time.Second)
		m.want(
			"0 node: Warning EvictionThresholdMet Attempting to reclaim pids",
			"0 deaf: Warning Evicted pids",
			"0 deaf: evicted within 1 s: Failed Evicted TerminationByKubelet",
		)
		time.Sleep(10 * time.Second)
		m.want(
			"10 deaf: Warning ExceededGracePeriod",
			"13 node: Warning EvictionThresholdMet Attempting to reclaim pids",
		)
		if n := m.logged("which uses 950, is ending: it is waited for"); n != 1 {
			t.Errorf("it was logged %d times:\n%s", n, m.log.String())
		}
		m.change(func() { m.takes[PIDAvailable]["deaf"] = 500 })
		m.add("big", PIDAvailable, 500)
		time.Sleep(10 * time.Second)
		m.want(
			"23 node: Warning EvictionThresholdMet Attempting to reclaim pids",
			"23 big: Warning Evicted pids",
			"23 big: evicted within 1 s: Failed Evicted TerminationByKubelet",
			"23 big: gone",
		)
		m.change(func() { m.has[PIDAvailable] = 505 })
		time.Sleep(patience - 20*time.Second)
		for _, line := range m.told() {
			if !strings.HasSuffix(line, "Attempting to reclaim pids") {
				t.Errorf("while it still may end: %s", line)
			}
		}
		time.Sleep(30 * time.Second)
		if l, _ := m.states.Get(small.UID); !l.Evicted {
			t.Errorf("in the end: %q, want who is left to be evicted", m.told())
		}
		metricstest.Expect(t, m.metrics, map[string]float64{`kubelet_evictions{eviction_signal="pid.available"}`: 3})
	})
}

// Nobody else is evicted while the runtime does not answer: it could end none of them.
func TestRuntimeThatIsDown(t *testing.T) {
	short(t, map[Signal]string{MemoryAvailable: "100Mi"}, func(t *testing.T, m *machine) {
		m.hangs["first"] = true
		m.add("first", MemoryAvailable, 500*mi)
		m.add("second", MemoryAvailable, 450*mi)
		m.fails["places"] = errors.New("no answer")
		m.run()
		time.Sleep(12 * time.Second)
		m.want(
			"0 node: Warning EvictionThresholdMet Attempting to reclaim memory",
			"0 first: Warning Evicted memory",
			"0 first: evicted within 1 s: Failed Evicted TerminationByKubelet",
			"10 first: Warning ExceededGracePeriod",
		)
		time.Sleep(5 * time.Minute)
		for _, line := range m.told() {
			if !strings.HasSuffix(line, "Attempting to reclaim memory") {
				t.Errorf("while the runtime is down: %s", line)
			}
		}
		if n := m.logged("no answer"); n != 1 {
			t.Errorf("it was logged %d times", n)
		}
		m.change(func() { delete(m.fails, "places") })
		time.Sleep(11 * time.Second)
		if told := m.told(); len(told) != 4 {
			t.Errorf("when it is back: %q, want the next pod to be evicted", told)
		}
	})
}

// Who may not be evicted is told in the journal; the attempt is not repeated all the time, however
// often the kernel wakes.
func TestNobodyCanBeEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, map[Signal]string{MemoryAvailable: "100Mi"}, withKernel)
		m.add("critical", MemoryAvailable, 950*mi).Spec.Priority = ptr.To[int32](2_000_000_000)
		m.run()
		for range 50 {
			time.Sleep(500 * time.Millisecond)
			m.kernel.wake <- struct{}{}
		}
		synctest.Wait()
		if use, ranked := m.count("use"), m.count("pods"); use < 50 || ranked != 3 {
			t.Errorf("read %d times, ranked %d times in 25 s; want 3", use, ranked)
		}
		if n := m.logged("no pod is evicted"); n != 1 {
			t.Errorf("it was logged %d times", n)
		}
		entries := m.journal.Read("default", "critical")
		if len(entries) != 1 || entries[0].Decision != "leave the pod as it is: it is critical" || entries[0].Why != "memory.available<100Mi is met" {
			t.Errorf("journal %+v", entries)
		}
		m.told()
		m.add("small", MemoryAvailable, mi)
		time.Sleep(11 * time.Second)
		if told := m.told(); len(told) < 3 {
			t.Errorf("when there is another: %q", told)
		}
	})
}

// A soft threshold grants a pod the shorter one of its own grace and the longest that is allowed.
func TestGraceOfSoftThresholds(t *testing.T) {
	for _, tt := range []struct {
		name string
		most int64
		own  *int64
		want string
	}{
		{"none is allowed", 0, ptr.To[int64](30), "0"},
		{"its own", 60, ptr.To[int64](30), "30"},
		{"the longest", 20, ptr.To[int64](30), "20"},
		{"it has none", 20, nil, "20"},
		{"there is no longest", -1, ptr.To[int64](45), "45"},
		{"there is no longest, and it has none", -1, nil, "30"},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t, nil, nil)
			soft := thresholdsOf(t, map[Signal]string{MemoryAvailable: "10%"})
			soft[0].Grace = 90 * time.Second
			m.start(soft, func(_ *machine, cfg *Config) { cfg.MaxGrace = tt.most })
			m.slow["hog"] = 12 * time.Second // less than one and a half of a grace of 10
			m.add("hog", MemoryAvailable, 950*mi).Spec.TerminationGracePeriodSeconds = tt.own
			m.run()
			time.Sleep(89 * time.Second)
			if told := m.told(); told != nil || !m.manager.pressures.Has(v1.NodeMemoryPressure) {
				t.Errorf("%s: within the grace %q", tt.name, told)
			}
			time.Sleep(30 * time.Second)
			told := m.told()
			if len(told) < 4 || told[2] != "90 hog: evicted within "+tt.want+" s: Failed Evicted TerminationByKubelet" {
				t.Errorf("%s: %q", tt.name, told)
			}
			if exceeded := tt.want == "0"; exceeded != (told[3] == "100 hog: Warning ExceededGracePeriod") {
				t.Errorf("%s: %q", tt.name, told)
			}
		})
	}
}

// A reading that fails is told once, and tried again in 10 s.
func TestReadingsThatFail(t *testing.T) {
	short(t, map[Signal]string{MemoryAvailable: "100Mi", NodeFsAvailable: "10%"}, func(t *testing.T, m *machine) {
		m.fails["use"], m.fails["places"] = errors.New("no cgroups"), errors.New("no runtime")
		m.run()
		time.Sleep(45 * time.Second)
		if m.count("use") != 5 || m.count("places") != 5 || m.count("/node") != 0 {
			t.Errorf("tried %v times", m.reads)
		}
		if m.logged("no cgroups") != 1 || m.logged("no runtime") != 1 {
			t.Errorf("logged:\n%s", m.log.String())
		}
		m.change(func() { m.fails["use"] = errors.New("other") })
		time.Sleep(10 * time.Second)
		m.change(func() { clear(m.fails); m.has[MemoryAvailable] = 0 })
		m.add("hog", MemoryAvailable, mi)
		time.Sleep(10 * time.Second)
		if told := m.told(); len(told) < 3 || m.logged("other") != 1 {
			t.Errorf("when they can be read: %q", told)
		}
		// Pods that cannot be ranked are all left as they are.
		m.change(func() { m.fails["pods"] = errors.New("no pods") })
		m.add("other", MemoryAvailable, mi)
		m.told()
		time.Sleep(time.Minute)
		for _, line := range m.told() {
			if !strings.HasSuffix(line, "Attempting to reclaim memory") {
				t.Errorf("without a ranking: %s", line)
			}
		}
		if m.logged("no pods") != 1 {
			t.Errorf("logged %d times", m.logged("no pods"))
		}
	})
}

// What becomes of a pod while others are measured counts.
func TestVictimThatLeavesMeanwhile(t *testing.T) {
	short(t, map[Signal]string{NodeFsAvailable: "10%"}, func(t *testing.T, m *machine) {
		m.slow["walk"] = 2 * time.Second
		gone := m.add("gone", NodeFsAvailable, 800*mi)
		m.add("next", NodeFsAvailable, 150*mi)
		m.run()
		time.Sleep(time.Second)
		m.states.Set(gone.UID, pod.Lifecycle{State: pod.Finished})
		m.change(func() { delete(m.takes[NodeFsAvailable], "gone") })
		time.Sleep(30 * time.Second)
		m.want(
			"0 node: Warning EvictionThresholdMet Attempting to reclaim ephemeral-storage",
			"0 remove containers",
			"0 remove images",
		)
	})
}
