package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/checkpoint"
	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/pod"
)

// table is a WarmTable whose content tests set, and whose log they read.
type table struct {
	*checkpoint.WarmTable[string, int]
	changes *pod.Inbox[string]
	log     bytes.Buffer // read when nothing runs

	mu    sync.Mutex
	now   map[string]int // guarded by mu
	whole int            // guarded by mu; how often all was asked for
}

func newTable(path, epoch string) *table {
	t := &table{changes: pod.NewInbox[string](), now: map[string]int{}}
	t.WarmTable = checkpoint.NewTable(checkpoint.TableConfig[string, int]{
		Path: path, Version: 2, What: "counts", Log: slog.New(slog.NewTextHandler(&t.log, nil)), Changes: t.changes,
		Epoch: func() string { return epoch },
		All: func() map[string]int {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.whole++
			return maps.Clone(t.now)
		},
		Get: func(k string) (int, bool) {
			t.mu.Lock()
			defer t.mu.Unlock()
			v, ok := t.now[k]
			return v, ok
		},
	})
	return t
}

// set sets a count; 0 is none.
func (t *table) set(k string, v int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now[k] = v; v == 0 {
		delete(t.now, k)
	}
	t.changes.Put(k)
}

func (t *table) wholes() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.whole
}

func (t *table) run(tt *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(tt.Context())
	done := make(chan error, 1)
	go func() { done <- t.Writer.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			tt.Errorf("Run: %v", err)
		}
	}
}

func wantKept(t *testing.T, path string, want map[string]int) {
	t.Helper()
	got, err := newTable(path, "").Load()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("kept (-want +got):\n%s", d)
	}
}

func lines(t *testing.T, path string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("\n"))
}

// A change costs what it says, not what the table holds; a file that has more changes than entries
// is written anew.
func TestChangesAreAppended(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counts.json")
	synctest.Test(t, func(t *testing.T) {
		k := newTable(path, "")
		want := map[string]int{}
		for i := range 1000 {
			name := fmt.Sprint(i)
			want[name] = i + 1
			k.set(name, i+1)
		}
		defer k.run(t)()
		k.Writer.Flush(t.Context())
		for i := range 1000 {
			name := fmt.Sprint(i % 100)
			want[name] = i + 1000
			k.set(name, want[name])
			k.Writer.Flush(t.Context())
		}
		if n := k.wholes(); n != 1 || lines(t, path) != 1001 {
			t.Errorf("%d whole writes, %d lines, want 1 and one for each change", n, lines(t, path))
		}
		k.set("never there", 0)
		k.set("5", 0)
		delete(want, "5")
		k.Writer.Flush(t.Context())
		if n := k.wholes(); n != 2 || lines(t, path) != 1 {
			t.Errorf("%d whole writes, %d lines, want 2 and 1", n, lines(t, path))
		}
		k.set("never there", 0)
		k.Writer.Flush(t.Context())
		k.set("6", 0)
		delete(want, "6")
		k.set("new", 7)
		want["new"] = 7
		k.Writer.Flush(t.Context())
		if lines(t, path) != 2 {
			t.Errorf("%d lines, want one for what changed", lines(t, path))
		}
		wantKept(t, path, want)
	})
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, error %v", fi.Mode(), err)
	}
}

func TestTableIsWrittenBehindAndAtTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counts.json")
	synctest.Test(t, func(t *testing.T) {
		k := newTable(path, "")
		stop := k.run(t)
		time.Sleep(time.Hour)
		for i := range 50 {
			k.set("a", i+1)
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		if n := lines(t, path); n != 2 {
			t.Errorf("50 changes at once are %d lines, want the first and one for the rest", n)
		}
		wantKept(t, path, map[string]int{"a": 50})
		k.set("b", 1)
		synctest.Wait()
		k.set("b", 2)
		stop()
		wantKept(t, path, map[string]int{"a": 50, "b": 2})
	})
}

// What is left of an agent that was killed while it wrote is read, and never continued.
func TestCutOffLine(t *testing.T) {
	for name, tail := range map[string]string{"nothing": "", "a beginning": `{"se`, "all but the end": `{"set":{"b":2}`} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "counts.json")
			content := `{"version":2,"content":{"a":1,"c":3}}` + "\n" + `{"set":{"a":2},"gone":["c"]}` + "\n" + tail
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			wantKept(t, path, map[string]int{"a": 2})
			synctest.Test(t, func(t *testing.T) {
				k := newTable(path, "")
				k.set("d", 4)
				stop := k.run(t)
				synctest.Wait()
				stop()
			})
			wantKept(t, path, map[string]int{"d": 4})
		})
	}
}

// After a write that failed, and when somebody removed the file, everything is written.
func TestTableIsWholeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	path := filepath.Join(dir, "counts.json")
	synctest.Test(t, func(t *testing.T) {
		k := newTable(path, "")
		stop := k.run(t)
		k.set("a", 1)
		time.Sleep(5 * time.Second)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		k.set("b", 2)
		time.Sleep(10 * time.Second)
		wantKept(t, path, map[string]int{"a": 1, "b": 2})
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		k.set("c", 3)
		time.Sleep(2 * time.Second)
		wantKept(t, path, map[string]int{"a": 1, "b": 2, "c": 3})
		stop()
		if strings.Count(k.log.String(), "not saved") != 1 {
			t.Errorf("the log:\n%s", &k.log)
		}
	})
}

// A disk that becomes full in the middle of a line loses nothing of what is in the file, also for
// an agent that is killed then.
func TestTableOnAFullDisk(t *testing.T) {
	for free := range int64(60) {
		dir := t.TempDir()
		path := filepath.Join(dir, "counts.json")
		synctest.Test(t, func(t *testing.T) {
			k := newTable(path, "")
			defer k.run(t)()
			k.set("a", 1)
			k.Writer.Flush(t.Context())
			mend := checkpointtest.Full(t, dir, free)
			k.set("b", 2)
			k.Writer.Flush(t.Context())
			if got, err := newTable(path, "").Load(); err != nil || got["a"] != 1 || k.Writer.Health() == nil && got["b"] != 2 {
				t.Errorf("%d bytes free: kept %v, error %v, health %v", free, got, err, k.Writer.Health())
			}
			k.set("c", 3)
			k.Writer.Flush(t.Context())
			if got, err := newTable(path, "").Load(); err != nil || got["a"] != 1 {
				t.Errorf("%d bytes free: kept %v, error %v", free, got, err)
			}
			mend()
			time.Sleep(11 * time.Second)
			wantKept(t, path, map[string]int{"a": 1, "b": 2, "c": 3})
		})
	}
}

func TestTablesThatAreNotTaken(t *testing.T) {
	for _, tc := range []struct {
		name, content string
		aside         bool
	}{
		{"of another epoch", `{"version":2,"epoch":"before","content":{"a":1}}`, false},
		{"empty", "", true},
		{"cut off", `{"version":2,"content":{"a":`, true},
		{"of another version", `{"version":1,"content":{}}`, true},
		{"of another form", `{"version":2,"content":[]}`, true},
		{"with a line of another form", `{"version":2,"content":{}}` + "\n" + `{"set":[]}` + "\n", true},
		{"with something else behind it", `{"version":2,"content":{}}` + "\nno\n", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "counts.json")
			if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := newTable(path, "").Load()
			if len(got) > 0 || (err != nil) != tc.aside {
				t.Errorf("kept %v, error %v", got, err)
			}
			if b, err := os.ReadFile(path + checkpoint.AsideSuffix); tc.aside != (err == nil) || tc.aside && string(b) != tc.content {
				t.Errorf("set aside %q, error %v", b, err)
			}
		})
	}
}
