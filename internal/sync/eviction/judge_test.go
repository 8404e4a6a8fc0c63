package eviction

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// trial is a row of readings, one after another, with what each is to lead to.
type trial struct {
	at         time.Duration // since the beginning
	left       observed
	met, due   string // signals
	conditions string
	next       time.Duration // since the beginning; 0: time alone changes nothing
}

func memoryLeft(n uint64) observed { return observed{MemoryAvailable: {Available: n, Capacity: 1000}} }

func quantityOf(t *testing.T, s string) Amount {
	t.Helper()
	a, err := parseAmount(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestJudge(t *testing.T) {
	const transition = time.Minute
	amount := func(s string) Amount { return quantityOf(t, s) }
	hard := Threshold{Signal: MemoryAvailable, Value: amount("100")}
	soft := Threshold{Signal: MemoryAvailable, Value: amount("20%"), Grace: 30 * time.Second}
	more := hard
	more.MinReclaim = amount("5%")
	softMore := more
	softMore.Grace = 30 * time.Second
	pid := Threshold{Signal: PIDAvailable, Value: amount("10")}
	const memoryShort = "MemoryPressure"
	for _, tt := range []struct {
		name       string
		thresholds []Threshold
		trials     []trial
	}{
		{"strictly less", []Threshold{hard}, []trial{
			{at: 0, left: memoryLeft(101)},
			{at: 1, left: memoryLeft(100)},
			{at: 2, left: memoryLeft(99), met: "memory.available", due: "memory.available", conditions: memoryShort},
			{at: 3, left: memoryLeft(100), conditions: memoryShort, next: 2 + transition},
		}},
		{"a soft threshold raises the condition at once, and is due after its grace", []Threshold{soft}, []trial{
			{at: 0, left: memoryLeft(199), met: "memory.available", conditions: memoryShort, next: 30 * time.Second},
			{at: 29 * time.Second, left: memoryLeft(1), met: "memory.available", conditions: memoryShort, next: 30 * time.Second},
			{at: 30 * time.Second, left: memoryLeft(199), met: "memory.available", due: "memory.available", conditions: memoryShort},
		}},
		{"the grace begins anew", []Threshold{soft}, []trial{
			{at: 0, left: memoryLeft(199), met: "memory.available", conditions: memoryShort, next: 30 * time.Second},
			{at: 20 * time.Second, left: memoryLeft(200), conditions: memoryShort, next: transition},
			{at: 21 * time.Second, left: memoryLeft(199), met: "memory.available", conditions: memoryShort, next: 51 * time.Second},
			{at: 50 * time.Second, left: memoryLeft(199), met: "memory.available", conditions: memoryShort, next: 51 * time.Second},
			{at: 51 * time.Second, left: memoryLeft(199), met: "memory.available", due: "memory.available", conditions: memoryShort},
		}},
		{"the minimum reclaim counts once a pod was to be evicted", []Threshold{more}, []trial{
			{at: 0, left: memoryLeft(120)},
			{at: 1, left: memoryLeft(99), met: "memory.available", due: "memory.available", conditions: memoryShort},
			{at: 2, left: memoryLeft(149), met: "memory.available", due: "memory.available", conditions: memoryShort},
			{at: 3, left: memoryLeft(150), conditions: memoryShort, next: 2 + transition},
			{at: 4, left: memoryLeft(120), conditions: memoryShort, next: 2 + transition},
		}},
		{"before that it does not count", []Threshold{softMore}, []trial{
			{at: 0, left: memoryLeft(99), met: "memory.available", conditions: memoryShort, next: 30 * time.Second},
			{at: 1, left: memoryLeft(120), conditions: memoryShort, next: transition},
		}},
		{"what cannot be told is neither met nor met no longer", []Threshold{soft, pid}, []trial{
			{at: 0, left: observed{}},
			{at: 10 * time.Second, left: memoryLeft(199), met: "memory.available", conditions: memoryShort, next: 40 * time.Second},
			{at: 20 * time.Second, left: observed{}, conditions: memoryShort, next: 10*time.Second + transition},
			{at: 40 * time.Second, left: memoryLeft(199), met: "memory.available", due: "memory.available", conditions: memoryShort},
			{at: 50 * time.Second, left: observed{}, conditions: memoryShort, next: 40*time.Second + transition},
		}},
		{"a condition lasts for the transition period", []Threshold{hard}, []trial{
			{at: 0, left: memoryLeft(1), met: "memory.available", due: "memory.available", conditions: memoryShort},
			{at: 59 * time.Second, left: memoryLeft(500), conditions: memoryShort, next: transition},
			{at: 60 * time.Second, left: memoryLeft(500)},
			{at: 61 * time.Second, left: memoryLeft(500)},
		}},
		{"the most urgent first, and who is due alone", []Threshold{hard, soft, pid}, []trial{
			{
				at: 0, left: observed{MemoryAvailable: {Available: 150, Capacity: 1000}, PIDAvailable: {Available: 9, Capacity: 100}},
				met: "memory.available pid.available", due: "pid.available", conditions: memoryShort + " PIDPressure", next: 30 * time.Second,
			},
			{
				at: 31 * time.Second, left: observed{MemoryAvailable: {Available: 50, Capacity: 1000}, PIDAvailable: {Available: 10, Capacity: 100}},
				met: "memory.available memory.available", due: "memory.available memory.available", conditions: memoryShort + " PIDPressure", next: transition,
			},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			var before past
			for _, tr := range tt.trials {
				var v verdict
				before, v = judge(before, tt.thresholds, tr.left, transition, began.Add(tr.at))
				names := func(of []met) string {
					var out []string
					for i := range of {
						out = append(out, string(of[i].threshold.Signal))
					}
					return strings.Join(out, " ")
				}
				var conditions []string
				for _, c := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
					if v.conditions[c] {
						conditions = append(conditions, string(c))
					}
				}
				got := trial{at: tr.at, left: tr.left, met: names(v.met), due: names(v.due), conditions: strings.Join(conditions, " ")}
				if !v.next.IsZero() {
					got.next = v.next.Sub(began)
				}
				if diff := cmp.Diff(tr, got, cmp.AllowUnexported(trial{})); diff != "" {
					t.Errorf("at %s (-want +got):\n%s", tr.at, diff)
				}
			}
		})
	}
}

// What was known survives a clock that is set back: nothing lasts for longer than if it had been
// seen now.
func TestJudgeAfterTheClockWasSetBack(t *testing.T) {
	soft := Threshold{Signal: MemoryAvailable, Value: quantityOf(t, "100"), Grace: 30 * time.Second}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	future := now.Add(24 * time.Hour)
	before := past{Since: map[string]time.Time{soft.key(): future}, Seen: map[v1.NodeConditionType]time.Time{v1.NodeMemoryPressure: future}}
	after, v := judge(before, []Threshold{soft}, memoryLeft(1), time.Minute, now)
	if !after.Since[soft.key()].Equal(now) || !v.next.Equal(now.Add(30*time.Second)) {
		t.Errorf("met: %+v, next %s", after, v.next)
	}
	after, v = judge(before, []Threshold{soft}, memoryLeft(500), time.Minute, now)
	if !v.conditions[v1.NodeMemoryPressure] || !v.next.Equal(now.Add(time.Minute)) {
		t.Errorf("met no longer: %+v, next %s, want a minute", after, v.next)
	}
	if _, v = judge(after, []Threshold{soft}, memoryLeft(500), time.Minute, now.Add(time.Minute)); v.conditions[v1.NodeMemoryPressure] {
		t.Error("the condition outlasts the transition period")
	}
}

func TestIsRelieved(t *testing.T) {
	hard := Threshold{Signal: MemoryAvailable, Value: quantityOf(t, "100"), MinReclaim: quantityOf(t, "10")}
	soft := Threshold{Signal: PIDAvailable, Value: quantityOf(t, "50"), Grace: time.Hour}
	for _, tt := range []struct {
		name string
		left observed
		want bool
	}{
		{"nothing is known", observed{}, true},
		{"enough", observed{MemoryAvailable: {Available: 110, Capacity: 1000}, PIDAvailable: {Available: 50, Capacity: 100}}, true},
		{"less than the minimum reclaim", observed{MemoryAvailable: {Available: 109, Capacity: 1000}}, false},
		{"another one, whatever its grace", observed{MemoryAvailable: {Available: 110, Capacity: 1000}, PIDAvailable: {Available: 49, Capacity: 100}}, false},
	} {
		if got := isRelieved([]Threshold{hard, soft}, tt.left); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
