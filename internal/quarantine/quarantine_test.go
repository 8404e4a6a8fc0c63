package agent

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/pod"
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
	q := newQuarantine(dir, slog.New(slog.DiscardHandler), &witnessed{})
	if err := q.open(); err != nil {
		t.Fatal(err)
	}
	q.InHand("finished", 1)()
	if !q.Quarantined("bad", 7) {
		q.InHand("bad", 7)
	}
	for i := range 100 { // slots are used again, whatever the order
		a, b := q.InHand(pod.UID(fmt.Sprint("a", i)), 0), q.InHand(pod.UID(fmt.Sprint("b", i)), 0)
		a()
		b()
	}
	q.InHand("ending", Ending)
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

// die lets a process die and returns what the next agent finds, and what it was told.
func die(t *testing.T, dir, how string) (*quarantine, []suspect) {
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
	var told witnessed
	q := newQuarantine(dir, slog.New(slog.DiscardHandler), &told)
	if err := q.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ended(t, q) })
	return q, told.crashes
}

func ended(t testing.TB, q *quarantine) {
	t.Helper()
	if err := q.close(); err != nil {
		t.Error(err)
	}
}

// witnessed keeps what it is told of.
type witnessed struct{ crashes, aside []suspect }

func (w *witnessed) crashed(s suspect)  { w.crashes = append(w.crashes, s) }
func (w *witnessed) setAside(s suspect) { w.aside = append(w.aside, s) }

// short is what matters of the pods that were told of.
func short(told []suspect) []string {
	var out []string
	for _, s := range told {
		out = append(out, fmt.Sprintf("%s %d crashes %d quarantined %v", s.UID, s.Generation, len(s.Crashes), s.Quarantined))
	}
	return out
}

func TestAPodThatMakesTheAgentCrashIsSetAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	for n, how := range []string{"panic", "fatal", "panic"} {
		q, told := die(t, dir, how)
		aside := n == crashesUntilQuarantine-1
		want := []string{
			fmt.Sprintf("bad 7 crashes %d quarantined %v", n+1, aside),
			fmt.Sprintf("ending -1 crashes %d quarantined %v", n+1, aside),
		}
		if diff := cmp.Diff(want, short(told)); diff != "" {
			t.Fatalf("after crash %d (-want +got):\n%s", n+1, diff)
		}
		report := "panic: runtime error: index out of range"
		if how == "fatal" {
			report = "fatal error\n"
		}
		if !strings.HasPrefix(told[0].Report, report) || !strings.Contains(told[0].Report, "\nin berth/agent.TestDyingProcess.func") {
			t.Errorf("report %q", told[0].Report)
		}
		if got := q.Quarantined("bad", 7); got != aside {
			t.Errorf("after crash %d: quarantined %v", n+1, got)
		}
		for _, f := range []string{quarantineFile, crashFile, lastCrashFile, handsFile} {
			if st, err := os.Stat(filepath.Join(dir, f)); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", f, st, err)
			}
		}
	}

	// The next agent leaves it alone, also when that crashes for another reason, and tells of it once.
	q, told := die(t, dir, "panic")
	if diff := cmp.Diff([]string{"ending -1 crashes 4 quarantined true"}, short(told)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var aside witnessed
	q.tell = &aside
	for range 3 {
		if !q.Quarantined("bad", 7) || q.Quarantined("bad", Ending) || q.Quarantined("other", 7) {
			t.Error("the wrong pods are set aside")
		}
	}
	if diff := cmp.Diff([]string{"bad 7 crashes 3 quarantined true"}, short(aside.aside)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if why, ok := q.Why("bad"); !ok || !strings.HasPrefix(why, "panic: ") {
		t.Errorf("why: %q, %v", why, ok)
	}

	// A changed spec is another pod, and so is a released one; that outlives the agent.
	if q.Quarantined("bad", 8) {
		t.Error("a changed pod is set aside")
	}
	if !q.Release("ending") || q.Release("ending") {
		t.Error("it was not released once")
	}
	next := newQuarantine(dir, slog.New(slog.DiscardHandler), &witnessed{})
	if err := next.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ended(t, next) })
	if next.Quarantined("bad", 7) || next.Quarantined("ending", Ending) {
		t.Error("set aside again after a restart")
	}
}

func TestAKilledAgentHasNotCrashed(t *testing.T) {
	dir := t.TempDir()
	for range crashesUntilQuarantine + 1 {
		if q, told := die(t, dir, "killed"); len(told) != 0 || q.Quarantined("bad", 7) {
			t.Fatalf("counted: %+v", told)
		}
	}
	// And what it had in hand is forgotten: a later crash counts for what is in hand then.
	var told witnessed
	q := newQuarantine(dir, slog.New(slog.DiscardHandler), &told)
	if err := os.WriteFile(filepath.Join(dir, crashFile), []byte("panic: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := q.open(); err != nil {
		t.Fatal(err)
	}
	ended(t, q)
	if len(told.crashes) > 0 {
		t.Errorf("counted: %+v", told.crashes)
	}
}

func TestCrashesOfLongAgoDoNotCount(t *testing.T) {
	q := newQuarantine(t.TempDir(), slog.New(slog.DiscardHandler), &witnessed{})
	at := time.Now()
	q.now = func() time.Time { return at }
	for range 10 {
		q.count([]wish{{"u", 0}}, "panic")
		at = at.Add(crashWindow/2 + time.Second)
	}
	if q.Quarantined("u", 0) {
		t.Error("crashes over days add up")
	}
	at = at.Add(crashWindow)
	q.count([]wish{{"v", 0}}, "panic")
	if len(q.pods) != 1 {
		t.Errorf("%d pods are remembered", len(q.pods))
	}
	for i := range 2 * quarantineKept {
		at = at.Add(time.Second)
		q.count([]wish{{pod.UID(fmt.Sprint(i)), 0}}, "panic")
	}
	if len(q.pods) != quarantineKept || q.pods[wish{"0", 0}] != nil {
		t.Errorf("%d pods are remembered", len(q.pods))
	}
}

// A crash in the future, from before the clock was set back, counts as now, and is forgotten after a day.
func TestCrashesInTheFuture(t *testing.T) {
	dir := t.TempDir()
	at := time.Now().AddDate(10, 0, 0)
	next := func() *quarantine {
		q := newQuarantine(dir, slog.New(slog.DiscardHandler), &witnessed{})
		q.now = func() time.Time { return at }
		q.load()
		return q
	}
	next().count([]wish{{"u", 0}, {"v", 0}}, "panic")
	next().count([]wish{{"u", 0}, {"v", 0}}, "panic")
	at = at.AddDate(-10, 0, 0)
	q := next()
	q.count([]wish{{"u", 0}}, "panic")
	if !q.Quarantined("u", 0) || q.Quarantined("v", 0) {
		t.Errorf("set aside: u %v, v %v", q.Quarantined("u", 0), q.Quarantined("v", 0))
	}
	at = at.Add(crashWindow + time.Second)
	q = next()
	q.count([]wish{{"v", 0}}, "panic")
	if q.Quarantined("v", 0) {
		t.Error("crashes of more than a day ago count")
	}
}

func TestQuarantineFilesThatCannotBeRead(t *testing.T) {
	for name, content := range map[string]string{"no JSON": "{", "another version": `{"version": 2}`} {
		dir := t.TempDir()
		path := filepath.Join(dir, quarantineFile)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, handsFile), bytes.Repeat([]byte{200}, slotSize+7), 0o600); err != nil {
			t.Fatal(err)
		}
		q := newQuarantine(dir, slog.New(slog.DiscardHandler), &witnessed{})
		if err := q.open(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		ended(t, q)
		if b, err := os.ReadFile(path + ".bad"); err != nil || string(b) != content {
			t.Errorf("%s: set aside: %q, %v", name, b, err)
		}
	}
}

func TestSummarizeCrash(t *testing.T) {
	for name, c := range map[string]struct{ report, want string }{
		"panic": {
			"panic: assignment to entry in nil map\n\ngoroutine 7 [running]:\nruntime.mapassign(...)\n\t/go/map.go:1\nberth/internal/podsync.(*Syncer).SyncPod(0xc000, {0x1})\n\t/x.go:2\n",
			"panic: assignment to entry in nil map\nin berth/internal/podsync.(*Syncer).SyncPod",
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
	q := newQuarantine(b.TempDir(), slog.New(slog.DiscardHandler), &witnessed{})
	if err := q.open(); err != nil {
		b.Fatal(err)
	}
	defer ended(b, q)
	b.ReportAllocs()
	for b.Loop() {
		q.InHand("3f1c7a52-0000-4000-8000-000000000000", 1)()
	}
}
