package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/checkpoint"
	"berth/internal/checkpoint/checkpointtest"
)

var discard = slog.New(slog.DiscardHandler)

// open returns a loaded journal of the folder and the function that runs and ends it.
func open(t testing.TB, dir string, log *slog.Logger) (*Journal, func()) {
	t.Helper()
	j := NewInFolder(dir, log)
	if err := j.Load(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	return j, func() {
		t.Helper()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}
}

var web = Subject{UID: "u", Namespace: "default", Name: "web"}

// fill records one of everything.
func fill(j *Journal) {
	at := time.Unix(1700000000, 5)
	j.Record(Entry{Time: at, Subject: web, Component: "config", Decision: "accepted", Why: "new in manifest /m/web.yaml"})
	for i := range 3 {
		j.Record(Entry{Time: at.Add(time.Duration(i) * time.Second), Subject: web, Component: "image", Container: "main", Decision: "pull", Took: time.Second, Error: "no such host"})
	}
	j.Record(Entry{Time: at, Subject: Subject{Name: "broken.yaml"}, Component: "config", Decision: "manifest refused"})
	j.ReachAt(web, Sandbox, "", at.Add(2*time.Second))
	j.ReachAt(web, Started, "main", at.Add(3*time.Second))
	j.Ended(web, End{
		Container: "main", ID: "c1", Restart: 2, ExitCode: 137, Reason: "OOMKilled", Message: "killed",
		Started: at.Add(3 * time.Second), Finished: at.Add(5 * time.Second), Log: "one\ntwo\n",
	})
	j.Ended(web, End{Container: "other", ID: "c2", ExitCode: 128})
}

func TestAJournalSurvivesItsProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	j, end := open(t, dir, discard)
	fill(j)
	j.Expect(web, Next{Time: time.Unix(1800000000, 0), What: "start"})
	wantWeb, wantBroken, wantOrder := j.Stories("default", "web"), j.Stories("", "broken.yaml"), j.Subjects()
	if len(wantWeb) != 1 || len(wantWeb[0].Entries) != 2 || wantWeb[0].Entries[1].Count != 3 || len(wantWeb[0].Milestones) != 2 || len(wantWeb[0].Ends) != 2 || len(wantWeb[0].Next) != 1 {
		t.Fatalf("got %+v", wantWeb)
	}
	end()
	for _, path := range []string{dir, filepath.Join(dir, "journal")} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v: others may read it", path, st.Mode(), err)
		}
	}

	wantWeb[0].Next = nil // planned anew
	for range 2 {
		j, end = open(t, dir, discard)
		if diff := cmp.Diff(wantWeb, j.Stories("default", "web")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(wantBroken, j.Stories("", "broken.yaml")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(wantOrder, j.Subjects()); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
		end()
	}

	// What is recorded later goes on where the first process ended.
	j, end = open(t, dir, discard)
	j.Record(Entry{Time: time.Unix(1700000009, 0), Subject: web, Component: "image", Container: "main", Decision: "pull", Error: "no such host"})
	j.ReachAt(web, Sandbox, "", time.Unix(1700000009, 0))
	j.Ended(web, End{Container: "main", ID: "c1"})
	end()
	j, end = open(t, dir, discard)
	defer end()
	got := j.Stories("default", "web")[0]
	if n := got.Entries[1].Count; n != 4 || len(got.Milestones) != 2 || len(got.Ends) != 2 || got.Ends[0].ExitCode != 137 {
		t.Errorf("got %+v", got)
	}
}

// A process may be killed at any byte of a write: what is complete is kept, and nothing is said to
// be damaged.
func TestHalfAWriteIsCutOff(t *testing.T) {
	dir := t.TempDir()
	j, end := open(t, dir, discard)
	fill(j)
	end()
	whole, err := os.ReadFile(filepath.Join(dir, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	last := -1
	for cut := len("berth journal 1\n"); cut <= len(whole); cut++ {
		dir := t.TempDir()
		path := filepath.Join(dir, "journal")
		if err := os.WriteFile(path, whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		j := NewInFolder(dir, discard)
		if err := j.Load(); err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		n := 0
		for _, s := range append(j.Stories("default", "web"), j.Stories("", "broken.yaml")...) {
			n += 1 + len(s.Entries) + len(s.Milestones) + len(s.Ends)
		}
		if n < last {
			t.Fatalf("cut at %d: %d things, fewer than of a shorter file", cut, n)
		}
		last = n
		if _, err := os.Stat(path + checkpoint.AsideSuffix); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("cut at %d: the file was set aside", cut)
		}
	}
	if last != 2+3+2+2 {
		t.Errorf("%d things in the whole file", last)
	}
}

func TestADamagedFileIsSetAside(t *testing.T) {
	write := func(t *testing.T) []byte {
		dir := t.TempDir()
		j, end := open(t, dir, discard)
		fill(j)
		end()
		b, err := os.ReadFile(filepath.Join(dir, "journal"))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, c := range map[string]struct {
		damage func([]byte) []byte
		kept   int // entries of the pod
	}{
		"another version":     {func(b []byte) []byte { return bytes.Replace(b, []byte("journal 1"), []byte("journal 2"), 1) }, 0},
		"not a journal":       {func([]byte) []byte { return []byte("{}") }, 0},
		"zeroes":              {func(b []byte) []byte { return make([]byte, len(b)) }, 0},
		"zeroes at its end":   {func(b []byte) []byte { return append(b, make([]byte, 100)...) }, 2},
		"a byte near its end": {func(b []byte) []byte { b[len(b)-3] ^= 1; return b }, 2},
		"a byte at its front": {func(b []byte) []byte { b[len("berth journal 1\n")+10] ^= 1; return b }, 0},
		"a huge record":       {func(b []byte) []byte { return append(b, 1, 2, 3, 4, 0xff, 0xff, 0xff, 0xff) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "journal")
			bad := c.damage(write(t))
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			var logged bytes.Buffer
			j, end := open(t, dir, slog.New(slog.NewTextHandler(&logged, nil)))
			if n := len(j.Read("default", "web")); n != c.kept {
				t.Errorf("%d entries, want %d", n, c.kept)
			}
			j.Record(Entry{Subject: web, Decision: "later"})
			end()
			if !strings.Contains(logged.String(), "set aside") {
				t.Errorf("log: %s", logged.String())
			}
			if aside, err := os.ReadFile(path + checkpoint.AsideSuffix); err != nil || !bytes.Equal(aside, bad) {
				t.Errorf("set aside: %d bytes, %v", len(aside), err)
			}
			j, end = open(t, dir, discard)
			defer end()
			if n := len(j.Read("default", "web")); n != c.kept+1 {
				t.Errorf("%d entries after another start, want %d", n, c.kept+1)
			}
		})
	}
}

func TestFolderThatCannotBeUsed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := NewInFolder(filepath.Join(path, "journal"), discard).Load(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

func size(t testing.TB, path string) int64 {
	t.Helper()
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

func TestWritesAreAtLeastASecondApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "journal")
		j, end := open(t, dir, discard)
		writes, last := 0, int64(0)
		for range 100 { // ten seconds
			j.Record(Entry{Subject: web, Decision: fmt.Sprint(writes, last, time.Now())})
			synctest.Wait()
			if n := size(t, path); n != last {
				writes, last = writes+1, n
			}
			time.Sleep(100 * time.Millisecond)
		}
		if writes != 10 {
			t.Errorf("%d writes in ten seconds", writes)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		rest := size(t, path)
		before := time.Now()
		time.Sleep(time.Hour)
		if n := size(t, path); n != rest {
			t.Errorf("%d bytes were written in an hour in which nothing happened, since %s", n-rest, before)
		}
		j.Record(Entry{Subject: web, Decision: "first in an hour"})
		synctest.Wait()
		if size(t, path) == rest {
			t.Error("what is recorded after a quiet time is not written at once")
		}
		end()
	})
}

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// A disk that takes nothing keeps no pod waiting, and what was recorded meanwhile is written when
// it takes something again.
func TestADiskThatTakesNothing(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			var logged lockedBuffer
			j, end := open(t, dir, slog.New(slog.NewTextHandler(&logged, nil)))
			j.Record(Entry{Subject: web, Decision: "before"})
			time.Sleep(time.Minute)
			mend := fail(dir)
			for i := range 1000 {
				j.Record(Entry{Subject: web, Decision: fmt.Sprint(i)})
				time.Sleep(time.Second)
			}
			synctest.Wait()
			if err := j.Health(); err == nil || strings.Count(logged.String(), "not saved") != 1 {
				t.Errorf("health %v; log: %s", err, logged.String())
			}
			killed := NewInFolder(dir, discard)
			if err := killed.Load(); err != nil || len(killed.Read("default", "web")) == 0 {
				t.Errorf("what was there before is lost: %v", err)
			}
			mend()
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if err := j.Health(); err != nil || strings.Count(logged.String(), "saved again") != 1 {
				t.Errorf("health %v; log: %s", err, logged.String())
			}
			end()
			j, end = open(t, dir, discard)
			defer end()
			if got := j.Read("default", "web"); len(got) != entriesPerPod || got[entriesPerPod-1].Decision != "999" {
				t.Errorf("%d entries", len(got))
			}
		})
	})
}

// crowd records what a crowded node does: many pods, each with long texts, until every bound is
// reached.
func crowd(j *Journal, pods, entries int) {
	for i := range entries {
		for p := range pods {
			s := Subject{UID: types.UID(fmt.Sprintf("3f1c7a52-0000-4000-8000-%012d", p)), Namespace: "default", Name: fmt.Sprintf("pod-%d", p)}
			j.Record(Entry{Subject: s, Component: "runtime", Container: "main", Decision: "container started", Why: fmt.Sprintf("incarnation %d", i), Took: time.Millisecond})
			if i%10 == 0 {
				j.Ended(s, End{Container: "main", ID: fmt.Sprint(i), Log: strings.Repeat(fmt.Sprintf("line %d\n", i), 100)})
			}
		}
	}
}

func TestEverythingIsBounded(t *testing.T) {
	dir := t.TempDir()
	j, end := open(t, dir, discard)
	biggest, snapshots := int64(0), 0
	for range 10 {
		crowd(j, 3000, 5)
		if j.file.Writer.Flush(t.Context()); j.Health() != nil {
			t.Fatal(j.Health())
		}
		now := size(t, filepath.Join(dir, "journal"))
		if now < biggest {
			snapshots++
		}
		biggest = max(biggest, now)
		sum := 0
		for el := j.order.Front(); el != nil; el = el.Next() {
			r := el.Value.(*ring)
			sum += r.size
			if len(r.ends) > endsPerSpec || len(r.entries) > entriesPerPod {
				t.Fatalf("%d ends, %d entries", len(r.ends), len(r.entries))
			}
		}
		if sum != j.size || sum > memoryLimit || j.order.Len() > subjects || j.order.Len() != len(j.rings) {
			t.Fatalf("%d bytes, counted as %d, in %d rings of %d", sum, j.size, j.order.Len(), len(j.rings))
		}
	}
	if biggest > fileLimit || snapshots == 0 {
		t.Errorf("the file grew to %d bytes, limit %d, and was replaced %d times", biggest, fileLimit, snapshots)
	}
	snapshot := int64(0)
	j.snapshotLocked(func(record []byte) { snapshot += int64(len(record)) + 8 })
	if snapshot > memoryLimit {
		t.Errorf("a snapshot has %d bytes, more than the rings are counted as, %d", snapshot, j.size)
	}
	want := j.Subjects()
	end()
	j, end = open(t, dir, discard)
	defer end()
	if diff := cmp.Diff(want, j.Subjects()); diff != "" {
		t.Errorf("subjects after a start (-want +got):\n%s", diff)
	}
}

func TestTextsAreClipped(t *testing.T) {
	j := New(discard)
	j.Record(Entry{Subject: web, Decision: "a\x00b", Why: strings.Repeat("ä", 2000), Error: "e"})
	got := j.Read("default", "web")[0]
	if got.Decision != "a\uFFFDb" || len(got.Why) > textLimit || !strings.HasSuffix(got.Why, "ä…") || got.Error != "e" {
		t.Errorf("got %q, %d bytes of why, %q", got.Decision, len(got.Why), got.Error)
	}
	j.Ended(web, End{Container: "c", Log: strings.Repeat("ö", 3000) + "end"})
	if log := j.Stories("default", "web")[0].Ends[0].Log; len(log) > logLimit || !strings.HasPrefix(log, "ö") || !strings.HasSuffix(log, "end") {
		t.Errorf("%d bytes of log: %q", len(log), log)
	}
}

func TestEnds(t *testing.T) {
	j := New(discard)
	for i := range 25 {
		if id := fmt.Sprint(i); !j.HasEnd(web, "main", id) {
			j.Ended(web, End{Container: "main", ID: id, Restart: i, Log: "the same\n"})
		}
		j.Ended(web, End{Container: "side", ID: "only", Restart: i})
	}
	if !j.HasEnd(web, "main", "24") || j.HasEnd(web, "main", "14") || j.HasEnd(Subject{UID: "v"}, "main", "24") {
		t.Error("HasEnd is wrong")
	}
	var main, side []int
	for _, e := range j.Stories("default", "web")[0].Ends {
		if e.Container == "main" {
			main = append(main, e.Restart)
		} else {
			side = append(side, e.Restart)
		}
	}
	if diff := cmp.Diff([][]int{{15, 16, 17, 18, 19, 20, 21, 22, 23, 24}, {0}}, [][]int{main, side}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestExpect(t *testing.T) {
	j := New(discard)
	j.Expect(web)
	if len(j.Subjects()) != 0 {
		t.Error("to expect nothing of a pod made it known")
	}
	j.Expect(web, Next{What: "a"}, Next{What: "b"})
	j.Expect(web, Next{What: "c"})
	if got := j.Stories("default", "web")[0].Next; len(got) != 1 || got[0].What != "c" {
		t.Errorf("got %+v", got)
	}
}

func TestSubjectLearnsItsName(t *testing.T) {
	dir := t.TempDir()
	j, end := open(t, dir, discard)
	j.Record(Entry{Subject: Subject{UID: "u"}, Decision: "left over"})
	j.Record(Entry{Subject: web, Decision: "end the pod"})
	end()
	j, end = open(t, dir, discard)
	defer end()
	if n := len(j.Read("default", "web")); n != 2 {
		t.Errorf("%d entries", n)
	}
	if s, ok := j.SubjectOf("u"); !ok || s != web {
		t.Errorf("got %v, %v", s, ok)
	}
}

func BenchmarkLoad(b *testing.B) {
	dir := b.TempDir()
	j, end := open(b, dir, discard)
	for size(b, filepath.Join(dir, "journal")) < fileLimit*9/10 {
		crowd(j, 200, 1)
		j.file.Writer.Flush(b.Context())
	}
	end()
	b.SetBytes(size(b, filepath.Join(dir, "journal")))
	for b.Loop() {
		if err := NewInFolder(dir, discard).Load(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRecord(b *testing.B) {
	j, end := open(b, b.TempDir(), discard)
	defer end()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		j.Record(Entry{Subject: web, Component: "runtime", Container: "main", Decision: "container started", Why: "incarnation 1", Count: i & 1})
		if i%10000 == 0 {
			j.file.Writer.Flush(b.Context())
		}
	}
}
