package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
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
)

type content map[string]int

// saved is a WarmFile whose content tests set, and whose log they read.
type saved struct {
	*checkpoint.WarmFile[content]
	log bytes.Buffer // read when nothing runs

	mu     sync.Mutex
	now    content // guarded by mu
	writes int     // guarded by mu
}

// set makes c the content.
func (k *saved) set(c content) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now = c
}

func (k *saved) written() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writes
}

func newSaved(path string) *saved {
	k := &saved{}
	k.WarmFile = checkpoint.NewFile(checkpoint.FileConfig[content]{
		Path: path, Version: 2, What: "counts", Log: slog.New(slog.NewTextHandler(&k.log, nil)),
		Content: func() content {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.writes++
			return k.now
		},
	})
	return k
}

// run runs the file in a bubble until the returned function is called.
func (k *saved) run(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Writer.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}
}

func load(t *testing.T, path string) content {
	t.Helper()
	got, err := newSaved(path).Load()
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestWritesBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counts.json")
	if got := load(t, path); got != nil {
		t.Errorf("without a file: %v", got)
	}
	synctest.Test(t, func(t *testing.T) {
		k := newSaved(path)
		stop := k.run(t)
		time.Sleep(time.Hour)
		if n := k.written(); n != 0 {
			t.Errorf("%d writes of what did not change", n)
		}
		for i := range 50 {
			k.set(content{"a": i})
			k.Changed()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		if n := k.written(); n != 2 {
			t.Errorf("50 changes at once are %d writes, want the first and one for the rest", n)
		}
		if got := load(t, path); !cmp.Equal(got, content{"a": 49}) {
			t.Errorf("kept %v", got)
		}
		k.set(content{"b": 1})
		k.Changed()
		stop()
		if got := load(t, path); !cmp.Equal(got, content{"b": 1}) {
			t.Errorf("at the end kept %v", got)
		}
	})
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, error %v", fi.Mode(), err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); err != nil || len(left) > 0 {
		t.Errorf("left beside the file: %v %v", left, err)
	}
}

// Who is about to tell others waits for the file, not for the pause, and everybody who waits is one
// write.
func TestWrittenBeforeItIsTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counts.json")
	synctest.Test(t, func(t *testing.T) {
		k := newSaved(path)
		stop := k.run(t)
		k.set(content{"a": 1})
		k.Changed()
		synctest.Wait()
		k.set(content{"a": 2})
		k.Changed()
		began := time.Now()
		k.Writer.Flush(t.Context())
		if got := load(t, path); !cmp.Equal(got, content{"a": 2}) || time.Since(began) != 0 {
			t.Errorf("kept %v after %v", got, time.Since(began))
		}
		time.Sleep(time.Minute)
		if n := k.written(); n != 2 {
			t.Errorf("%d writes, want 2: what was written on demand is written again", n)
		}
		stop()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		k.Writer.Flush(ctx) // nobody runs the file any more
		if n := k.written(); n != 2 {
			t.Errorf("%d writes after the end", n)
		}
	})
}

// The owner of a file that cannot be written goes on, says so once, and knows since when. What was
// there stays until there is something better.
func TestTriesAgain(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		dir := t.TempDir()
		path := filepath.Join(dir, "counts.json")
		synctest.Test(t, func(t *testing.T) {
			k := newSaved(path)
			k.set(content{"a": 1})
			stop := k.run(t)
			k.Changed()
			time.Sleep(5 * time.Second)
			mend := fail(dir)
			k.set(content{"a": 2})
			k.Changed()
			synctest.Wait()
			began := time.Now()
			time.Sleep(35 * time.Second)
			if n := k.written(); n != 1+4 {
				t.Errorf("%d writes in 35 s, want 4", n-1)
			}
			var failing interface {
				error
				Since() time.Time
			}
			if err := k.Writer.Health(); !errors.As(err, &failing) || !failing.Since().Equal(began) ||
				!strings.Contains(err.Error(), "counts not saved: write "+path+": ") {
				t.Errorf("health %v", err)
			}
			if got := load(t, path); !cmp.Equal(got, content{"a": 1}) {
				t.Errorf("meanwhile kept %v", got)
			}
			mend()
			time.Sleep(11 * time.Second)
			if err := k.Writer.Health(); err != nil {
				t.Errorf("health after it was mended: %v", err)
			}
			stop()
			if strings.Count(k.log.String(), "not saved") != 1 || strings.Count(k.log.String(), "saved again") != 1 {
				t.Errorf("the log:\n%s", &k.log)
			}
		})
		if got := load(t, path); !cmp.Equal(got, content{"a": 2}) {
			t.Errorf("kept %v", got)
		}
		if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
			t.Errorf("left beside the file: %v %v", left, err)
		}
	})
}

func TestSetsAside(t *testing.T) {
	for name, text := range map[string]string{"no JSON": "{", "another version": `{"version":1,"content":{}}`, "another form": `{"version":2,"content":[]}`} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "counts.json")
			for _, name := range []string{path, path + ".bad"} { // the second by an earlier version
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err := newSaved(path).Load()
			if err == nil || !strings.Contains(err.Error(), "counts from before are lost") || !strings.Contains(err.Error(), path+checkpoint.AsideSuffix) {
				t.Errorf("error %v", err)
			}
			if b, err := os.ReadFile(path + checkpoint.AsideSuffix); err != nil || string(b) != text {
				t.Errorf("set aside %q, error %v", b, err)
			}
			if got := load(t, path); got != nil {
				t.Errorf("then %v", got)
			}
			if all, err := os.ReadDir(filepath.Dir(path)); err != nil || len(all) != 1 {
				t.Errorf("in the folder: %v, %v", all, err)
			}
			if err := checkpoint.RemoveAll(path); err != nil {
				t.Error(err)
			}
			if all, err := os.ReadDir(filepath.Dir(path)); err != nil || len(all) != 0 {
				t.Errorf("left in the folder: %v, %v", all, err)
			}
		})
	}
}

func TestWithoutPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newSaved("")
		stop := k.run(t)
		k.Changed()
		time.Sleep(time.Minute)
		stop()
		if got, err := k.Load(); got != nil || err != nil || k.log.Len() > 0 {
			t.Errorf("kept %v, error %v, log %s", got, err, &k.log)
		}
	})
}
