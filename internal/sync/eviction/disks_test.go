package eviction

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/observe/metrics/metricstest"
)

// What nobody needs goes first, and no pod when that was enough.
func TestGarbageIsEnough(t *testing.T) {
	short(t, map[Signal]string{NodeFsAvailable: "100Mi"}, func(t *testing.T, m *machine) {
		m.garbage["containers"], m.garbage["images"] = 600*mi, 290*mi
		m.add("writer", NodeFsAvailable, 50*mi)
		m.run()
		time.Sleep(4 * time.Minute)
		m.want("0 node: Warning EvictionThresholdMet Attempting to reclaim ephemeral-storage", "0 remove containers", "0 remove images")
		if n := m.logged("removed unused images"); n != 1 || m.count("walk") != 0 {
			t.Errorf("%d lines of images in the log, %d walks", n, m.count("walk"))
		}
		if got := m.manager.pressures.Conditions(); len(got) != 1 || got[0] != v1.NodeDiskPressure {
			t.Errorf("within the transition period %v", got)
		}
		time.Sleep(90 * time.Second)
		if m.manager.pressures.Has(v1.NodeDiskPressure) {
			t.Error("the condition outlasts the transition period")
		}
	})
}

// When it was not, or when it cannot be removed, pods go: the one with most files there first.
func TestGarbageIsNotEnough(t *testing.T) {
	short(t, map[Signal]string{NodeFsAvailable: "100Mi"}, func(t *testing.T, m *machine) {
		m.fails["containers"], m.fails["images"] = errors.New("the runtime is busy"), errors.New("the runtime is busy")
		m.slow["walk"] = time.Second
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"} {
			m.add(name, NodeFsAvailable, mi)
		}
		m.add("big", NodeFsAvailable, 900*mi)
		m.run()
		time.Sleep(6 * time.Second)
		m.want(
			"0 node: Warning EvictionThresholdMet Attempting to reclaim ephemeral-storage", "0 remove containers", "0 remove images",
			"5 big: Warning Evicted ephemeral-storage", // two seconds in which nothing becomes free; four are measured at a time
			"5 big: evicted within 1 s: Failed Evicted TerminationByKubelet",
			"5 big: gone",
		)
		if m.logged("dead containers are not all removed") != 1 || m.logged("unused images are not all removed") != 1 {
			t.Errorf("logged:\n%s", m.log.String())
		}
		metricstest.Expect(t, m.metrics, map[string]float64{`kubelet_evictions{eviction_signal="nodefs.available"}`: 1})
	})
}

// What takes too long to measure counts with what was seen of it until then, and a disk that is
// short does not wait for all of thousands of pods.
func TestLongWalks(t *testing.T) {
	short(t, map[Signal]string{NodeFsInodesFree: "2%"}, func(t *testing.T, m *machine) {
		m.slow["walk"] = time.Hour
		m.add("many", NodeFsInodesFree, 900)
		for i := range 100 {
			m.add("pod-"+strings.Repeat("x", i), NodeFsInodesFree, 1)
		}
		m.run()
		time.Sleep(90 * time.Second)
		m.want(
			"0 node: Warning EvictionThresholdMet Attempting to reclaim inodes", "0 remove containers", "0 remove images",
			"62 many: Warning Evicted inodes",
			"62 many: evicted within 1 s: Failed Evicted TerminationByKubelet",
			"62 many: gone",
		)
		if n := m.logged("level=WARN msg=\"files of pods"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}

// Images that are on a disk of their own: pods are ranked by what they have there.
func TestDisksOfTheirOwn(t *testing.T) {
	short(t, map[Signal]string{NodeFsAvailable: "100Mi", ImageFsAvailable: "10%"}, func(t *testing.T, m *machine) {
		m.devices["/images"], m.devices["/layers"] = 2, 2
		m.has[ImageFsAvailable] = 50 * mi
		m.add("writer", NodeFsAvailable, 50*mi)
		m.run()
		time.Sleep(3 * time.Second)
		var got []string
		for _, s := range m.manager.States() {
			got = append(got, s.Threshold.String())
		}
		if diff := cmp.Diff([]string{"nodefs.available<100Mi", "imagefs.available<10%", "containerfs.available<10%"}, got); diff != "" {
			t.Errorf("thresholds (-want +got):\n%s", diff)
		}
		told := m.told()
		if len(told) < 5 || told[3] != "2 writer: Warning Evicted ephemeral-storage" {
			t.Errorf("got %q", told)
		}
	})
}

// A threshold of containerfs that the configuration has is ignored, and that is said.
func TestThresholdThatIsIgnored(t *testing.T) {
	short(t, map[Signal]string{NodeFsAvailable: "100Mi", ContainerFsAvailable: "95%"}, func(t *testing.T, m *machine) {
		m.add("writer", NodeFsAvailable, 800*mi)
		m.run()
		time.Sleep(3 * time.Second)
		m.want()
		var got []string
		for _, s := range m.manager.States() {
			got = append(got, fmt.Sprintf("%s %v %v", s.Threshold.String(), s.Ignored, s.Left.Capacity > 0))
		}
		if diff := cmp.Diff([]string{"nodefs.available<100Mi false true", "containerfs.available<100Mi false true", "containerfs.available<95% true false"}, got); diff != "" {
			t.Errorf("thresholds (-want +got):\n%s", diff)
		}
		if m.logged("level=ERROR msg=\"a threshold is ignored") != 1 || m.logged("threshold=containerfs.available<95%") != 1 {
			t.Errorf("logged:\n%s", m.log.String())
		}
	})
}

// Walks over files keep nobody waiting who is short of memory, and the other way round.
func TestLoopsDoNotWaitForEachOther(t *testing.T) {
	short(t, map[Signal]string{NodeFsAvailable: "100Mi", MemoryAvailable: "100Mi"}, func(t *testing.T, m *machine) {
		m.slow["walk"], m.hangs["deaf"] = 5*time.Minute, true
		m.add("files", NodeFsAvailable, 950*mi)
		m.run()
		time.Sleep(8 * time.Second)
		m.want("0 node: Warning EvictionThresholdMet Attempting to reclaim ephemeral-storage", "0 remove containers", "0 remove images")
		m.add("deaf", MemoryAvailable, 950*mi)
		time.Sleep(15 * time.Second)
		if told := m.told(); len(told) < 3 || !strings.HasSuffix(told[2], "deaf: evicted within 1 s: Failed Evicted TerminationByKubelet") {
			t.Errorf("while files are walked %q", told)
		}
	})
}

// Where a file system is gone, the runtime is asked anew where its files are.
func TestFileSystemThatIsGone(t *testing.T) {
	short(t, map[Signal]string{NodeFsAvailable: "100Mi"}, func(t *testing.T, m *machine) {
		m.run()
		time.Sleep(5 * time.Minute)
		if n := m.count("places"); n != 1 {
			t.Errorf("asked %d times", n)
		}
		m.change(func() { m.fails["/images"] = errors.New("gone") })
		time.Sleep(61 * time.Second)
		m.change(func() { delete(m.fails, "/images") })
		asked := m.count("places")
		time.Sleep(61 * time.Second)
		if n := m.count("places"); asked < 2 || n > asked+1 || m.logged("gone") != 1 {
			t.Errorf("asked %d times, then %d", asked, n)
		}
	})
}

// While a pod is measured another one may end it.
func TestVictimOfBoth(t *testing.T) {
	short(t, map[Signal]string{NodeFsAvailable: "100Mi", MemoryAvailable: "100Mi"}, func(t *testing.T, m *machine) {
		m.slow["walk"], m.slow["both"] = time.Second, 3*time.Second
		m.add("both", NodeFsAvailable, 950*mi)
		m.takes[MemoryAvailable] = map[string]uint64{"both": 950 * mi}
		m.run()
		time.Sleep(time.Minute)
		var orders int
		for _, line := range m.told() {
			if strings.Contains(line, "evicted within") {
				orders++
			}
		}
		if orders != 1 {
			t.Errorf("ordered to end %d times, want once", orders)
		}
		metricstest.Expect(t, m.metrics, map[string]float64{`kubelet_evictions{eviction_signal="memory.available"}`: 1})
	})
}

// What was known survives the agent: what is met, since when, and the condition until a reading
// says something else.
func TestStateSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, nil, nil)
		soft := thresholdsOf(t, map[Signal]string{MemoryAvailable: "100Mi", NodeFsAvailable: "10%"})
		for i := range soft {
			soft[i].Grace = time.Hour
		}
		restart := func(thresholds []Threshold) (stop func()) {
			m.start(thresholds, nil)
			return m.run()
		}
		stop := restart(soft)
		m.add("hog", MemoryAvailable, 950*mi)
		m.add("writer", NodeFsAvailable, 950*mi)
		time.Sleep(30 * time.Minute)
		since := map[Signal]time.Time{}
		for _, s := range m.manager.States() {
			since[s.Threshold.Signal] = s.Since
		}
		stop()
		m.change(func() { m.fails["use"], m.fails["places"] = errors.New("not yet"), errors.New("not yet") })
		stop = restart(soft)
		time.Sleep(20 * time.Minute)
		if got := m.manager.pressures.Conditions(); len(got) != 2 {
			t.Errorf("before a reading the conditions are %v, want both", got)
		}
		if len(since) != 3 || since[MemoryAvailable].IsZero() || since[NodeFsAvailable].IsZero() || since[ContainerFsAvailable].IsZero() {
			t.Errorf("met since %v", since)
		}
		for _, s := range m.manager.States() {
			if !s.Since.Equal(since[s.Threshold.Signal]) {
				t.Errorf("%s is met since %s, before since %s", s.Threshold.Signal, s.Since, since[s.Threshold.Signal])
			}
		}
		m.change(func() { clear(m.fails) })
		m.told()
		time.Sleep(9 * time.Minute)
		m.want()
		time.Sleep(time.Minute + 3*time.Second)
		if told := m.told(); len(told) == 0 {
			t.Error("an hour in all, and no pod is evicted")
		}
		stop()

		// Nobody looks for memory any more.
		stop = restart(soft[1:])
		time.Sleep(time.Hour)
		if m.manager.pressures.Has(v1.NodeMemoryPressure) {
			t.Error("a condition for which there is no threshold any more lasts for ever")
		}
		stop()
	})
}

// A file that cannot be read is set aside, and one that cannot be written is a matter of health.
func TestFileOfThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, content := range []string{"", "{", "null", `{"version":1,"content":{"since":{"x":5}}}`, `{"version":2}`, `[]`} {
			m := newMachine(t, map[Signal]string{MemoryAvailable: "100Mi"}, nil)
			path := filepath.Join(m.dir, "thresholds.json")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := m.manager.Load(); err == nil || !strings.HasSuffix(err.Error(), "the file is kept as "+path+".corrupt") {
				t.Errorf("%q: %v, want it to be set aside", content, err)
			}
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Errorf("%q: it is still there: %v", content, err)
			}
		}
		m := newMachine(t, map[Signal]string{MemoryAvailable: "100Mi"}, nil)
		content := `{"version":1,"content":{"since":{"memory.available<100Mi/0s":"2000-01-01T00:00:00Z","other<1/0s":null},"due":null,"seen":null}}`
		if err := os.WriteFile(filepath.Join(m.dir, "thresholds.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		mend := checkpointtest.ReadOnly(t, m.dir)
		m.add("hog", MemoryAvailable, 950*mi)
		stop := m.run()
		time.Sleep(5 * time.Second)
		if told := m.told(); len(told) != 4 || m.manager.Health() == nil {
			t.Errorf("on a disk that takes nothing: %q, health %v", told, m.manager.Health())
		}
		mend()
		time.Sleep(time.Minute)
		if err := m.manager.Health(); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// States can be read while disks are found out and everything changes; what cannot be told any more
// is not left as it was.
func TestStates(t *testing.T) {
	short(t, map[Signal]string{MemoryAvailable: "100Mi", AllocatableMemoryAvailable: "100Mi", NodeFsAvailable: "10%"}, func(t *testing.T, m *machine) {
		if n := len(m.manager.States()); n != 4 {
			t.Errorf("%d thresholds before the first reading, want those of containerfs, too", n)
		}
		stop := m.run()
		for i := range 100 {
			m.change(func() { m.devices["/layers"] = uint64(i % 2) })
			time.Sleep(time.Minute)
			m.manager.States()
		}
		left := func() map[Signal]uint64 {
			out := map[Signal]uint64{}
			for _, s := range m.manager.States() {
				out[s.Threshold.Signal] = s.Left.Capacity
			}
			return out
		}
		if got := left(); got[AllocatableMemoryAvailable] != 1000*mi || got[NodeFsAvailable] != 1000*mi {
			t.Errorf("capacities %v", got)
		}
		m.change(func() { m.total[AllocatableMemoryAvailable] = 0 })
		time.Sleep(2 * time.Minute)
		for _, s := range m.manager.States() {
			if known := s.Left.Capacity != 0; known != (s.Least() != 0) {
				t.Errorf("%s: at least %d of %d", s.Threshold.Signal, s.Least(), s.Left.Capacity)
			}
		}
		if got := left(); got[AllocatableMemoryAvailable] != 0 || got[MemoryAvailable] != 1000*mi {
			t.Errorf("when the pods have no limit any more: capacities %v", got)
		}
		stop()
	})
}

// The end of the agent ends everything at once, also in the middle of an eviction.
func TestRunEnds(t *testing.T) {
	for _, after := range []time.Duration{0, time.Second, 5 * time.Second} {
		short(t, map[Signal]string{MemoryAvailable: "100Mi", NodeFsAvailable: "100Mi"}, func(t *testing.T, m *machine) {
			m.hangs["deaf"], m.leaves = true, time.Hour
			m.add("deaf", MemoryAvailable, 950*mi)
			m.add("writer", NodeFsAvailable, 950*mi)
			stop := m.run()
			time.Sleep(after)
			began := time.Now()
			stop()
			if took := time.Since(began); took != 0 {
				t.Errorf("after %s it took %s", after, took)
			}
			if m.logged("no pod is evicted")+m.logged("cannot be seen") != 0 {
				t.Errorf("logged:\n%s", m.log.String())
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { // before it is known what runs
		m := newMachine(t, map[Signal]string{MemoryAvailable: "100Mi"}, func(_ *machine, cfg *Config) { cfg.Ready = make(chan struct{}) })
		m.add("hog", MemoryAvailable, 950*mi)
		stop := m.run()
		time.Sleep(time.Hour)
		m.want()
		stop()
	})
}

// Five thousand pods are ranked in one round.
func TestManyPods(t *testing.T) {
	short(t, map[Signal]string{PIDAvailable: "10"}, func(t *testing.T, m *machine) {
		for i := range 5000 {
			m.add("pod-"+strings.Repeat("x", i%50)+string(rune('a'+i%26))+time.Duration(i).String(), PIDAvailable, 1)
		}
		m.add("most", PIDAvailable, 2)
		m.has[PIDAvailable] = 5011
		m.run()
		synctest.Wait()
		told := m.told()
		if len(told) != 4 || told[1] != "0 most: Warning Evicted pids" {
			t.Fatalf("got %q", told)
		}
		entries := m.journal.Read("default", "most")
		if why := entries[0].Why; len(why) > 2048 || !strings.Contains(why, "default/most (tasks 2, priority 0, evicted)") {
			t.Errorf("journal: %d bytes: %s", len(why), why)
		}
	})
}
