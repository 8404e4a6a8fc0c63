package podworkers

import (
	"errors"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
	"berth/internal/sync/admission"
	"berth/internal/sync/podsync"
)

var (
	errNo  = errors.New("no")
	states = []pod.State{Waiting, Syncing, Terminating, Terminated, Finished}
	nobody = &pod.Status{}
	dead   = &pod.Status{Sandboxes: []pod.SandboxStatus{{ID: "s"}}}
	active = &pod.Status{Sandboxes: []pod.SandboxStatus{{ID: "s", Ready: true}}}
)

func wantDecision(t *testing.T, name string, got, want decision) {
	t.Helper()
	if d := cmp.Diff(want, got, cmp.AllowUnexported(decision{})); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

func TestComputeEntry(t *testing.T) {
	for _, tc := range []struct {
		name      string
		iteration iteration
		want      decision
	}{
		{"a pod that waits", iteration{isFirst: true}, decision{}},
		{
			"behind another of its name",
			iteration{},
			decision{then: wait, entry: journal.Entry{Decision: "wait for the pod of the same name to end"}},
		},
		{"a pod that runs is past its name's turn", iteration{life: pod.Lifecycle{State: Syncing}}, decision{}},
		{"finished, and its source has it", iteration{life: pod.Lifecycle{State: Finished}}, decision{then: wait, finished: true}},
		{"finished, and no source has it", iteration{life: pod.Lifecycle{State: Finished, Orphan: true}}, decision{}},
		{"finished, and only the runtime knew it", iteration{life: pod.Lifecycle{State: Finished, RuntimeOnly: true}}, decision{}},
	} {
		wantDecision(t, tc.name, computeEntry(&tc.iteration), tc.want)
	}
}

func TestComputeAdmitAction(t *testing.T) {
	for _, tc := range []struct {
		name      string
		iteration iteration
		ask       admitAction
		want      decision
	}{
		{"its turn", iteration{observed: nobody, isNext: true}, requestAdmission, decision{}},
		{"others are before it", iteration{observed: dead}, skipAdmission, decision{then: wait}},
		{"it runs, and waits for nobody", iteration{observed: active}, adopt, decision{to: Syncing, entry: journal.Entry{
			Decision: "go on with the pod as it runs", Why: "the agent was started again; nothing of the pod was",
		}}},
		{"it was admitted", iteration{observed: nobody, isNext: true, life: pod.Lifecycle{State: Syncing}}, skipAdmission, decision{}},
		{"it is to end", iteration{observed: active, isNext: true, life: pod.Lifecycle{State: Terminating}}, skipAdmission, decision{}},
	} {
		ask, got := computeAdmitAction(&tc.iteration)
		if ask != tc.ask {
			t.Errorf("%s: got %d, want %d", tc.name, ask, tc.ask)
		}
		wantDecision(t, tc.name, got, tc.want)
	}
}

func TestComputeAdmission(t *testing.T) {
	for _, tc := range []struct {
		name    string
		verdict admission.Verdict
		err     error
		want    decision
	}{
		{"admitted", admission.Verdict{Admitted: true}, nil, decision{to: Syncing}},
		{"refused", admission.Verdict{}, nil, decision{then: requeue, to: Terminated}},
		{
			"later",
			admission.Verdict{Later: make(chan struct{})},
			nil,
			decision{then: wait, entry: journal.Entry{Decision: "wait for room to be made"}},
		},
		{"killed meanwhile", admission.Verdict{}, errNo, decision{then: requeue}},
	} {
		wantDecision(t, tc.name, computeAdmission(tc.verdict, tc.err), tc.want)
	}
}

func TestComputeTermination(t *testing.T) {
	terminating := pod.Lifecycle{State: Terminating}
	begun := pod.Lifecycle{State: Terminating, TerminationBegun: true}
	wanted := work{pod: &v1.Pod{}, grace: 30}
	begins := decision{terminating: true, entry: journal.Entry{Decision: "end the pod", Why: "it is evicted; grace period 30 s"}}
	for _, tc := range []struct {
		name      string
		iteration iteration
		want      decision
	}{
		{"a pod that runs", iteration{life: pod.Lifecycle{State: Syncing}, work: wanted, observed: active}, decision{}},
		{"it never began", iteration{life: terminating, work: wanted, observed: nobody}, decision{then: requeue, to: Terminated}},
		{"an earlier agent began with it", iteration{life: terminating, work: wanted, observed: dead, why: "it is evicted"}, begins},
		{"a pass began with it", iteration{life: terminating, work: wanted, observed: nobody, started: true, why: "it is evicted"}, begins},
		{"of only the runtime", iteration{life: terminating, work: work{grace: 30}, observed: nobody, why: "it is evicted"}, begins},
		{"its end has begun", iteration{life: begun, work: wanted, observed: active, started: true}, decision{}},
		{"its end has begun, and all is gone", iteration{life: begun, work: wanted, observed: nobody}, decision{}},
	} {
		wantDecision(t, tc.name, computeTermination(&tc.iteration), tc.want)
	}
}

func TestComputeNext(t *testing.T) {
	at := time.Unix(1700000000, 0)
	again := decision{then: requeue}
	failure := func(state string) decision {
		return decision{then: wait, backOff: errorBackOff, entry: journal.Entry{
			Decision: "pass failed, to be tried again", Why: "state " + state, Took: 2 * time.Millisecond, Error: "no",
		}}
	}
	later := failure("Syncing")
	later.at = at
	took := 2*time.Millisecond + 3
	for _, tc := range []struct {
		name    string
		state   pod.State
		outcome outcome
		want    decision
	}{
		{"nothing to do", Syncing, outcome{}, decision{then: wait}},
		{"a back-off", Syncing, outcome{result: podsync.Result{RetryAt: at}}, decision{then: wait, at: at}},
		{"the runtime was changed", Syncing, outcome{result: podsync.Result{Touched: true, RetryAt: at}}, again},
		{"the pod changed meanwhile", Syncing, outcome{missed: true, result: podsync.Result{RetryAt: at}}, again},
		{"the pod is over", Syncing, outcome{result: podsync.Result{Terminal: true}}, decision{then: requeue, to: Terminating}},
		{"failed", Syncing, outcome{err: errNo, took: took, missed: true}, failure("Syncing")},
		{"failed, with a back-off", Syncing, outcome{err: errNo, took: took, result: podsync.Result{RetryAt: at}}, later},
		{"killed", Syncing, outcome{killed: true, err: errNo, result: podsync.Result{Terminal: true}}, again},
		{"all stopped", Terminating, outcome{}, decision{then: requeue, to: Terminated}},
		{"not stopped", Terminating, outcome{err: errNo, took: took}, failure("Terminating")},
		{"less grace", Terminating, outcome{killed: true}, again},
		{"cleaned up", Terminated, outcome{missed: true}, decision{then: requeue, to: Finished}},
		{"not cleaned up", Terminated, outcome{err: errNo, took: took}, failure("Terminated")},
		{"the agent stops", Terminated, outcome{killed: true}, again},
	} {
		wantDecision(t, tc.name, computeNext(tc.state, tc.outcome), tc.want)
	}
}

func TestComputeRemovalAndObserved(t *testing.T) {
	remains := func(backOff time.Duration) decision {
		return decision{then: wait, backOff: backOff, entry: journal.Entry{Decision: "remove failed, to be tried again", Error: "no"}}
	}
	wantDecision(t, "removed", computeRemoval(outcome{}, 1), decision{then: done})
	wantDecision(t, "the agent stops", computeRemoval(outcome{err: errNo, killed: true}, 1), decision{then: requeue})
	for tries, backOff := range map[int]time.Duration{1: 10 * time.Second, 2: 20 * time.Second, 5: 160 * time.Second, 6: 5 * time.Minute, 1000: 5 * time.Minute} {
		wantDecision(t, "not removed", computeRemoval(outcome{err: errNo}, tries), remains(backOff))
	}
	wantDecision(t, "observed", computeObserved(outcome{}), decision{})
	wantDecision(t, "observed, and killed", computeObserved(outcome{killed: true}), decision{})
	wantDecision(t, "killed", computeObserved(outcome{err: errNo, killed: true}), decision{then: requeue})
	wantDecision(t, "not observed", computeObserved(outcome{err: errNo}), decision{
		then: wait, backOff: errorBackOff, entry: journal.Entry{Decision: "observe failed, to be tried again", Error: "no"},
	})
}

func TestDelay(t *testing.T) {
	now := time.Unix(1700000000, 0)
	for _, tc := range []struct {
		name        string
		d           decision
		least, most time.Duration
		timed       bool
	}{
		{"until something wakes it", decision{}, time.Millisecond, time.Millisecond, false},
		{"at a time", decision{at: now.Add(20 * time.Second)}, 20 * time.Second, 20 * time.Second, true},
		{"at a time that is over", decision{at: now.Add(-time.Second)}, time.Millisecond, time.Millisecond, true},
		{"after a failure", decision{backOff: 10 * time.Second}, 10 * time.Second, 15 * time.Second, true},
		{"after a failure, a time sooner", decision{backOff: 10 * time.Second, at: now.Add(time.Second)}, time.Second, time.Second, true},
		{"after a failure, a time later", decision{backOff: 10 * time.Second, at: now.Add(time.Hour)}, 10 * time.Second, 15 * time.Second, true},
	} {
		tc.d.then = wait
		if got, timed := tc.d.delay(now); timed != tc.timed || got < tc.least || got > tc.most {
			t.Errorf("%s: got %s, %t; want %s to %s, %t", tc.name, got, timed, tc.least, tc.most, tc.timed)
		}
	}
}

// The transitions of the package's doc are those that the functions make by which a pod's state is
// decided: no more and no fewer.
func TestTransitionsAreThoseOfTheDoc(t *testing.T) {
	var made []string
	move := func(from, to pod.State) {
		if m := from.String() + " to " + to.String(); to > from && !slices.Contains(made, m) {
			made = append(made, m)
		}
	}
	for _, s := range states {
		for _, o := range everyUpdate() {
			move(s, nextLifecycle(pod.Lifecycle{State: s}, &o).State)
		}
		move(s, orphaned(pod.Lifecycle{State: s}).State)
		for _, tn := range everyIteration(s) {
			move(s, computeEntry(&tn).to)
			ask, d := computeAdmitAction(&tn)
			move(s, d.to)
			move(s, computeTermination(&tn).to)
			if ask == requestAdmission {
				for _, v := range []admission.Verdict{{}, {Admitted: true}, {Later: make(chan struct{})}} {
					move(s, computeAdmission(v, nil).to)
					move(s, computeAdmission(v, errNo).to)
				}
			}
		}
		for _, o := range everyOutcome() {
			switch s {
			case Syncing, Terminating, Terminated: // those that have a pass
				move(s, computeNext(s, o).to)
			case Finished:
				move(s, computeRemoval(o, 1).to)
			}
			move(s, computeObserved(o).to)
		}
	}
	slices.Sort(made)
	if d := cmp.Diff(drawn(t), made); d != "" {
		t.Errorf("transitions (-doc +code):\n%s", d)
	}
}

func everyUpdate() (out []UpdatePodOptions) {
	plain, deleted, failed := &v1.Pod{}, &v1.Pod{}, &v1.Pod{}
	deleted.DeletionTimestamp = &metav1.Time{}
	failed.Status.Phase = v1.PodFailed
	for _, kind := range []SyncPodType{SyncPodSync, SyncPodUpdate, SyncPodCreate, SyncPodKill} {
		for _, p := range []*v1.Pod{nil, plain, deleted, failed} {
			for _, k := range []*KillPodOptions{nil, {}, {Evict: Evicted}} {
				for _, wanted := range []Wanted{StillWanted, Unwanted} {
					out = append(out, UpdatePodOptions{UpdateType: kind, Pod: p, KillPodOptions: k, Wanted: wanted})
				}
			}
		}
	}
	return out
}

func everyIteration(s pod.State) (out []iteration) {
	for _, observed := range []*pod.Status{nobody, dead, active} {
		for _, w := range []work{{}, {pod: &v1.Pod{}}} {
			for i := range 16 {
				out = append(out, iteration{
					life: pod.Lifecycle{State: s, TerminationBegun: i&1 > 0}, work: w, observed: observed,
					started: i&2 > 0, isFirst: i&4 > 0, isNext: i&8 > 0,
				})
			}
		}
	}
	return out
}

func everyOutcome() (out []outcome) {
	for i := range 32 {
		o := outcome{killed: i&1 > 0, missed: i&2 > 0, result: podsync.Result{Terminal: i&4 > 0, Touched: i&8 > 0}}
		if i&16 > 0 {
			o.err = errNo
		}
		out = append(out, o)
	}
	return out
}

// drawn returns the transitions of the package's doc.
func drawn(t *testing.T) (out []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "podworkers.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	columns := regexp.MustCompile(` {2,}`)
	for line := range strings.Lines(f.Doc.Text()) {
		if row, ok := strings.CutPrefix(line, "\t"); ok {
			if c := columns.Split(strings.TrimSpace(row), -1); c[0] != "from" {
				out = append(out, c[0]+" to "+c[len(c)-1])
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
