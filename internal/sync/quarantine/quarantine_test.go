package quarantine

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/checkpoint"
	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/pod"
	"berth/internal/record/journal"
)

// The environment of a process that dies: where its quarantine is, and how it dies.
const (
	dyingDir = "BERTH_TEST_DYING_DIR"
	dyingHow = "BERTH_TEST_DYING_HOW"
)

// TestDyingProcess is no test: it is the process that die starts.
func TestDyingProcess(t *testing.T) {
	dir := os.Getenv(dyingDir)
	if dir == "" {
		return // this is the test binary that runs the others
	}
	q := newQuarantine(dir)
	if err := q.Open(); err != nil {
		t.Fatal(err)
	}
	q.inProgress.begin(work{"finished", 1})()
	if !q.isQuarantined(work{"bad", 7}) {
		q.inProgress.begin(work{"bad", 7})
	}
	for i := range 100 { // slots are used again, whatever the order
		a, b := q.inProgress.begin(work{pod.UID(fmt.Sprint("a", i)), 0}), q.inProgress.begin(work{pod.UID(fmt.Sprint("b", i)), 0})
		a()
		b()
	}
	q.inProgress.begin(work{"ending", ending})
	switch os.Getenv(dyingHow) {
	case "panic":
		go func() {
			var none []int
			_ = none[len(dir)]
		}()
		select {}
	case "fatal": // no recover stops it
		m := map[int]int{}
		for range 4 {
			go func() {
				for i := 0; ; i++ {
					m[i%7] = i
				}
			}()
		}
		select {}
	default:
		fmt.Println("ready")
		select {}
	}
}

// newQuarantine returns the quarantine of an agent that knows the pod bad alone.
func newQuarantine(dir string) *Quarantine {
	log := slog.New(slog.DiscardHandler)
	return New(Config{
		Dir: dir, Journal: journal.New(log), Events: &events{}, Log: log,
		Pod: func(uid pod.UID) (*v1.Pod, bool) {
			return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}, uid == "bad"
		},
	})
}

// events are the events that were recorded.
type events []string

func (e *events) Eventf(p *v1.Pod, _, eventtype, reason, format string, args ...any) {
	*e = append(*e, fmt.Sprintf("%s %s %s: %s", p.UID, eventtype, reason, fmt.Sprintf(format, args...)))
}

// die lets a process die and returns what the next agent finds.
func die(t *testing.T, dir, how string) *Quarantine {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestDyingProcess$")
	cmd.Env = append(os.Environ(), dyingDir+"="+dir, dyingHow+"="+how)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if how == "killed" {
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Fatalf("the process did not die: %s", stderr.String())
	}
	q := newQuarantine(dir)
	if err := q.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ended(t, q) })
	return q
}

func ended(t testing.TB, q *Quarantine) {
	t.Helper()
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// list returns the suspects, by UID.
func list(q *Quarantine) []string {
	var out []string
	for _, s := range q.suspects {
		out = append(out, fmt.Sprintf("%s %d crashes %d quarantined %v", s.UID, s.Generation, len(s.Crashes), s.Quarantined))
	}
	slices.Sort(out)
	return out
}

// decisions returns what the journal has of the pod.
func decisions(q *Quarantine, uid pod.UID) []string {
	var out []string
	story, _ := q.Journal.TimelineOf(uid)
	for _, e := range story.Entries {
		out = append(out, fmt.Sprintf("%s: %s", e.Component, e.Decision))
	}
	return out
}

func TestAPodThatMakesTheAgentCrashIsSetAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	for n, how := range []string{"panic", "fatal", "panic"} {
		q := die(t, dir, how)
		aside := n == crashesUntilQuarantine-1
		want := []string{
			fmt.Sprintf("bad 7 crashes %d quarantined %v", n+1, aside),
			fmt.Sprintf("ending -1 crashes %d quarantined %v", n+1, aside),
		}
		if diff := cmp.Diff(want, list(q)); diff != "" {
			t.Fatalf("after crash %d (-want +got):\n%s", n+1, diff)
		}
		recorded := []string{fmt.Sprintf("quarantine: the agent crashed with the pod in hand, for the %s time in a day", ordinal(n+1))}
		if diff := cmp.Diff(recorded, decisions(q, "bad")); diff != "" {
			t.Errorf("entries after crash %d (-want +got):\n%s", n+1, diff)
		}
		report := "panic: runtime error: index out of range"
		if how == "fatal" {
			report = "fatal error\n"
		}
		got := q.suspects[work{"bad", 7}].Report
		if !strings.HasPrefix(got, report) || !strings.Contains(got, "\nin berth/internal/sync/quarantine.TestDyingProcess.func") {
			t.Errorf("report %q", got)
		}
		if got := q.isQuarantined(work{"bad", 7}); got != aside {
			t.Errorf("after crash %d: quarantined %v", n+1, got)
		}
		for _, f := range []string{suspectsFile, crashFile, lastCrashFile, slotsFile} {
			if st, err := os.Stat(filepath.Join(dir, f)); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", f, st, err)
			}
		}
	}

	// The next agent leaves it alone, also when that crashes for another reason, and says so once.
	q := die(t, dir, "panic")
	if diff := cmp.Diff([]string{"bad 7 crashes 3 quarantined true", "ending -1 crashes 4 quarantined true"}, list(q)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for range 3 {
		if !q.isQuarantined(work{"bad", 7}) || q.isQuarantined(work{"bad", ending}) || q.isQuarantined(work{"other", 7}) {
			t.Error("the wrong pods are set aside")
		}
	}
	if diff := cmp.Diff([]string{"quarantine: the pod is set aside"}, decisions(q, "bad")); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&events{
		"bad Warning Quarantined: The node agent crashed 3 times with this pod in hand and leaves it alone. " +
			"Its containers go on. It is touched again when its spec changes, or after \"berth release\".",
	}, q.Events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if why, ok := q.Why("bad"); !ok || !strings.HasPrefix(why, "panic: ") {
		t.Errorf("why: %q, %v", why, ok)
	}

	// A changed spec is another pod, and so is a released one; that outlives the agent.
	if q.isQuarantined(work{"bad", 8}) {
		t.Error("a changed pod is set aside")
	}
	if !q.release("ending") || q.release("ending") {
		t.Error("it was not released once")
	}
	next := newQuarantine(dir)
	if err := next.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ended(t, next) })
	if next.isQuarantined(work{"bad", 7}) || next.isQuarantined(work{"ending", ending}) {
		t.Error("set aside again after a restart")
	}
}

func TestAKilledAgentHasNotCrashed(t *testing.T) {
	dir := t.TempDir()
	for range crashesUntilQuarantine + 1 {
		if q := die(t, dir, "killed"); len(q.suspects) != 0 || q.isQuarantined(work{"bad", 7}) {
			t.Fatalf("counted: %v", list(q))
		}
	}
	// And what it had in hand is forgotten: a later crash counts for what is in hand then.
	q := newQuarantine(dir)
	if err := os.WriteFile(filepath.Join(dir, crashFile), []byte("panic: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := q.Open(); err != nil {
		t.Fatal(err)
	}
	ended(t, q)
	if len(q.suspects) > 0 {
		t.Errorf("counted: %v", list(q))
	}
}

func TestCrashesOfLongAgoDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuarantine(t.TempDir())
		for range 10 {
			q.count([]work{{"u", 0}}, "panic")
			time.Sleep(crashWindow/2 + time.Second)
		}
		if q.isQuarantined(work{"u", 0}) {
			t.Error("crashes over days add up")
		}
		time.Sleep(crashWindow)
		q.count([]work{{"v", 0}}, "panic")
		if len(q.suspects) != 1 {
			t.Errorf("%d pods are remembered", len(q.suspects))
		}
		for i := range 2 * maxSuspects {
			time.Sleep(time.Second)
			q.count([]work{{pod.UID(fmt.Sprint(i)), 0}}, "panic")
		}
		if len(q.suspects) != maxSuspects || q.suspects[work{"0", 0}] != nil {
			t.Errorf("%d pods are remembered", len(q.suspects))
		}
	})
}

// A crash in the future, from before the clock was set back, counts as now, and is forgotten after
// a day.
func TestCrashesInTheFuture(t *testing.T) {
	dir := t.TempDir()
	next := func() *Quarantine {
		q := newQuarantine(dir)
		q.load()
		return q
	}
	synctest.Test(t, func(*testing.T) {
		time.Sleep(10 * 365 * 24 * time.Hour) // from when a bubble's clock begins
		next().count([]work{{"u", 0}, {"v", 0}}, "panic")
		next().count([]work{{"u", 0}, {"v", 0}}, "panic")
	})
	synctest.Test(t, func(t *testing.T) {
		q := next()
		q.count([]work{{"u", 0}}, "panic")
		if !q.isQuarantined(work{"u", 0}) || q.isQuarantined(work{"v", 0}) {
			t.Errorf("set aside: u %v, v %v", q.isQuarantined(work{"u", 0}), q.isQuarantined(work{"v", 0}))
		}
		time.Sleep(crashWindow + time.Second)
		q = next()
		q.count([]work{{"v", 0}}, "panic")
		if q.isQuarantined(work{"v", 0}) {
			t.Error("crashes of more than a day ago count")
		}
	})
}

func TestQuarantineFilesThatCannotBeRead(t *testing.T) {
	for name, content := range map[string]string{"no JSON": "{", "another version": `{"version": 2}`} {
		dir := t.TempDir()
		path := filepath.Join(dir, suspectsFile)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, slotsFile), bytes.Repeat([]byte{200}, slotSize+7), 0o600); err != nil {
			t.Fatal(err)
		}
		q := newQuarantine(dir)
		if err := q.Open(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		ended(t, q)
		if b, err := os.ReadFile(path + checkpoint.AsideSuffix); err != nil || string(b) != content {
			t.Errorf("%s: set aside: %q, %v", name, b, err)
		}
	}
}

// Crashes that cannot be written count for this agent; those of before are known to the next.
func TestDiskThatTakesNoCrashes(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		dir := t.TempDir()
		next := func() *Quarantine {
			q := newQuarantine(dir)
			q.load()
			return q
		}
		q := next()
		for range crashesUntilQuarantine {
			q.count([]work{{"before", 1}}, "panic")
		}
		mend := fail(dir)
		for range crashesUntilQuarantine {
			q.count([]work{{"meanwhile", 1}}, "panic")
		}
		if !q.isQuarantined(work{"before", 1}) || !q.isQuarantined(work{"meanwhile", 1}) {
			t.Error("a pod that made the agent crash is touched")
		}
		if q = next(); !q.isQuarantined(work{"before", 1}) || q.isQuarantined(work{"meanwhile", 1}) {
			t.Error("the next agent does not know what was written")
		}
		mend()
		q.count([]work{{"later", 1}}, "panic")
		if q = next(); !q.isQuarantined(work{"before", 1}) || len(q.suspects) != 2 {
			t.Errorf("then the next agent knows %d pods", len(q.suspects))
		}
	})
}

func TestSummarizeCrash(t *testing.T) {
	for name, c := range map[string]struct{ report, want string }{
		"panic": {
			"panic: assignment to entry in nil map\n\ngoroutine 7 [running]:\nruntime.mapassign(...)\n\t/go/map.go:1\nberth/internal/sync/podsync.(*Syncer).SyncPod(0xc000, {0x1})\n\t/x.go:2\n",
			"panic: assignment to entry in nil map\nin berth/internal/sync/podsync.(*Syncer).SyncPod",
		},
		"inlined":           {"panic: a\n\tpanic: b\nc\nd\n\ngoroutine 7 [running]:\nberth/agent.f(...)\n", "panic: a\n\tpanic: b\nc\nin berth/agent.f"},
		"elsewhere":         {"fatal error: all goroutines are asleep - deadlock!\n\ngoroutine 1 [select]:\nmain.main()\n", "fatal error: all goroutines are asleep - deadlock!"},
		"fatal error":       {"\ngoroutine 25 [running]:\ninternal/runtime/maps.fatal({0x1?, 0x0?})\n\t/p.go:1\nberth/agent.g(0x1)\n", "fatal error\nin berth/agent.g"},
		"cut short":         {"panic: x", "panic: x"},
		"asked for stacks":  {"SIGQUIT: quit\nPC=0x1\n\ngoroutine 1\n", ""},
		"ended by watchdog": {"SIGABRT: abort\n", ""},
	} {
		if got := summarizeCrash([]byte(c.report)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func BenchmarkInHand(b *testing.B) {
	q := newQuarantine(b.TempDir())
	if err := q.Open(); err != nil {
		b.Fatal(err)
	}
	defer ended(b, q)
	b.ReportAllocs()
	for b.Loop() {
		q.inProgress.begin(work{"3f1c7a52-0000-4000-8000-000000000000", 1})()
	}
}
