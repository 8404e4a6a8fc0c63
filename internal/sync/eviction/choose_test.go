package eviction

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/ptr"
)

// hardAndSoft returns a hard threshold of tasks or of memory and a soft one of memory.
func hardAndSoft(t *testing.T, hard Signal, value string, grace time.Duration) []Threshold {
	t.Helper()
	soft := thresholdsOf(t, map[Signal]string{MemoryAvailable: "400Mi"})
	soft[0].Grace = grace
	out := append(thresholdsOf(t, map[Signal]string{hard: value}), soft...)
	sortThresholds(out)
	return out
}

func TestNextDue(t *testing.T) {
	soft, hard := met{threshold: Threshold{Signal: MemoryAvailable, Grace: time.Second}}, met{threshold: Threshold{Signal: PIDAvailable}}
	for _, tc := range []struct {
		name    string
		due     []met
		granted *kill
		want    Signal
	}{
		{"none is due", nil, nil, ""},
		{"the first", []met{soft, hard}, nil, MemoryAvailable},
		{"a pod has a grace", []met{soft}, &kill{}, ""},
		{"a pod has a grace, and a hard one is due", []met{soft, hard}, &kill{}, PIDAvailable},
	} {
		var got Signal
		if m := nextDue(tc.due, tc.granted); m != nil {
			got = m.threshold.Signal
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestChoose(t *testing.T) {
	of := func(name string, used uint64, change ...func(c *candidate)) candidate {
		c := candidate{pod: named(name), used: used, measured: true}
		for _, f := range change {
			f(&c)
		}
		return c
	}
	critical := func(c *candidate) { c.critical = true }
	ending := func(c *candidate) { c.leaving, c.ending = true, true }
	leaving := func(c *candidate) { c.leaving = true }
	m := &met{threshold: thresholdsOf(t, map[Signal]string{MemoryAvailable: "100Mi"})[0]}
	for _, tc := range []struct {
		name string
		pods []candidate
		want int
		err  string
	}{
		{"the first", []candidate{of("a", 5), of("b", 4)}, 0, ""},
		{"none is there", nil, -1, "of 0 pods that run all are critical"},
		{"the first that is not critical", []candidate{of("a", 5, critical), of("b", 4)}, 1, ""},
		{"all are critical", []candidate{of("a", 5, critical), of("b", 4, critical)}, -1, "of 2 pods that run all are critical"},
		{"who ends already", []candidate{of("a", 5<<20, ending), of("b", 4<<20)}, -1, "pod a_default(uid-a), which uses 5Mi, is ending: it is waited for"},
		{"who ends already, alone", []candidate{of("a", 5, ending)}, -1, "is ending"},
		{"who uses as much", []candidate{of("a", 5, ending), of("b", 5)}, 1, ""},
		{"not who uses less, but who uses more", []candidate{of("a", 4, ending), of("b", 3), of("c", 7)}, 2, ""},
		{"the one that ends and uses most counts", []candidate{of("a", 4, ending), of("b", 6, ending), of("c", 5)}, -1, "pod b_default"},
		{"who was not measured", []candidate{of("new", 0), of("a", 4, ending), of("c", 5)}, 2, ""},
		{"who ends and used nothing", []candidate{of("a", 0, ending), of("c", 0)}, 1, ""},
		{"who may end faster", []candidate{of("a", 4, leaving), of("c", 9)}, 0, ""},
	} {
		got, err := choose(m, tc.pods)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %d, %v; want %d, %q", tc.name, got, err, tc.want, tc.err)
		}
	}
}

// A hard threshold that is met while a pod has the grace of a soft one does not wait for it: that
// pod has no more than the grace of a hard threshold from then on.
func TestHardThresholdDuringAGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, nil, nil)
		m.start(hardAndSoft(t, MemoryAvailable, "100Mi", 10*time.Second), func(m *machine, cfg *Config) {
			withKernel(m, cfg)
			cfg.MaxGrace = 60
		})
		m.slow["hog"], m.heeds["hog"] = 50*time.Second, time.Second
		m.add("hog", MemoryAvailable, 700*mi).Spec.TerminationGracePeriodSeconds = ptr.To[int64](60)
		m.add("small", MemoryAvailable, 10*mi)
		m.run()
		time.Sleep(20 * time.Second)
		m.want(
			"0 armed at 199229440, 9223372036854775807",
			"10 armed at 199229440, 9223372036854775807",
			"10 node: Warning EvictionThresholdMet Attempting to reclaim memory",
			"10 hog: Warning Evicted memory",
			"10 hog: evicted within 60 s: Failed Evicted TerminationByKubelet",
			"10 armed at 199229440, 9223372036854775807",
			"20 armed at 199229440, 9223372036854775807",
		)
		m.change(func() { m.takes[MemoryAvailable]["hog"] = 950 * mi })
		m.kernel.wake <- struct{}{}
		time.Sleep(20 * time.Second)
		m.want(
			"20 armed at 0, 9223372036854775807",
			"20 node: Warning EvictionThresholdMet Attempting to reclaim memory",
			"20 hog: to end within 1 s",
			"20 uid-hog: held",
			"21 hog: gone",
			"21 armed at 618659840, 9223372036854775807",
		)
		entries := m.journal.Read("default", "hog")
		if len(entries) != 2 || entries[1].Decision != "shorten the grace period of the eviction" || !strings.HasPrefix(entries[1].Why, "memory.available<100Mi: The node was low") {
			t.Errorf("journal %+v", entries)
		}
	})
}

// Where the pod with the grace of a soft threshold is not what a hard one is about, another one
// goes, and the grace goes on.
func TestOtherHardThresholdDuringAGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, nil, nil)
		m.start(hardAndSoft(t, PIDAvailable, "100", 10*time.Second), func(_ *machine, cfg *Config) { cfg.MaxGrace = 60 })
		m.slow["hog"] = 50 * time.Second
		m.add("hog", MemoryAvailable, 700*mi).Spec.TerminationGracePeriodSeconds = ptr.To[int64](60)
		m.add("forks", PIDAvailable, 10)
		m.run()
		time.Sleep(15 * time.Second)
		m.change(func() { m.takes[PIDAvailable]["forks"] = 950 })
		time.Sleep(15 * time.Second)
		told := m.told()
		if len(told) != 7 || !strings.HasSuffix(told[4], "forks: Warning Evicted pids") || !strings.HasSuffix(told[5], "forks: evicted within 1 s: Failed Evicted TerminationByKubelet") {
			t.Fatalf("got %q", told)
		}
		time.Sleep(time.Minute)
		m.want("60 hog: gone")
	})
}

// A pod that takes longer than the grace of a soft threshold is told once, and hard thresholds find
// it afterwards as one that ends.
func TestGraceThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, nil, nil)
		m.start(hardAndSoft(t, MemoryAvailable, "100Mi", 10*time.Second), func(_ *machine, cfg *Config) { cfg.MaxGrace = 20 })
		m.hangs["deaf"] = true
		deaf := m.add("deaf", MemoryAvailable, 700*mi)
		m.add("small", MemoryAvailable, 10*mi)
		m.run()
		time.Sleep(42 * time.Second)
		told := m.told()
		if len(told) != 4 || told[3] != "40 deaf: Warning ExceededGracePeriod" {
			t.Fatalf("got %q", told)
		}
		m.change(func() { m.takes[MemoryAvailable]["deaf"] = 950 * mi })
		time.Sleep(time.Minute)
		var hastened int
		for _, line := range m.told() {
			switch {
			case strings.HasSuffix(line, "deaf: to end within 1 s"):
				hastened++
			case strings.Contains(line, "small"):
				t.Errorf("a pod that uses little: %s", line)
			}
		}
		if hastened != 1 {
			t.Errorf("it was hastened %d times", hastened)
		}
		m.end(deaf)
		m.change(func() { m.has[MemoryAvailable] = 50 * mi })
		time.Sleep(time.Second)
		told = m.told()
		if !slices.Contains(told, "102 small: gone") {
			t.Errorf("when it has ended at last, and that was not enough: %q", told)
		}
	})
}
