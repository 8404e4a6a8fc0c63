package keep_test

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

	"berth/internal/keep"
)

type content map[string]int

// kept is a File whose content tests set, and whose log they read.
type kept struct {
	*keep.File[content]
	log bytes.Buffer // read when nothing runs

	mu     sync.Mutex
	now    content // guarded by mu
	writes int     // guarded by mu
	fails  error   // guarded by mu
}

// set makes c the content, and err what comes of asking for it.
func (k *kept) set(c content, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now, k.fails = c, err
}

func (k *kept) written() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writes
}

func newKept(path string) *kept {
	k := &kept{}
	k.File = keep.New(keep.Config[content]{
		Path: path, Version: 2, What: "counts", Log: slog.New(slog.NewTextHandler(&k.log, nil)),
		Content: func() (content, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.writes++
			return k.now, k.fails
		},
	})
	return k
}

// run runs the file in a bubble until the returned function is called.
func (k *kept) run(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}
}

func load(t *testing.T, path string) content {
	t.Helper()
	got, err := newKept(path).Load()
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
		k := newKept(path)
		stop := k.run(t)
		time.Sleep(time.Hour)
		if n := k.written(); n != 0 {
			t.Errorf("%d writes of what did not change", n)
		}
		for i := range 50 {
			k.set(content{"a": i}, nil)
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
		k.set(content{"b": 1}, nil)
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

// Who is about to tell others waits for the file, not for the pause, and everybody who waits is one write.
func TestWrittenBeforeItIsTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counts.json")
	synctest.Test(t, func(t *testing.T) {
		k := newKept(path)
		stop := k.run(t)
		k.set(content{"a": 1}, nil)
		k.Changed()
		synctest.Wait()
		k.set(content{"a": 2}, nil)
		k.Changed()
		began := time.Now()
		k.Write(t.Context())
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
		k.Write(ctx) // nobody runs the file any more
		if n := k.written(); n != 2 {
			t.Errorf("%d writes after the end", n)
		}
	})
}

func TestTriesAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counts.json")
	synctest.Test(t, func(t *testing.T) {
		k := newKept(path)
		k.set(content{"a": 1}, errors.New("no"))
		stop := k.run(t)
		k.Changed()
		time.Sleep(35 * time.Second)
		if n := k.written(); n != 4 {
			t.Errorf("%d writes in 35 s, want 4", n)
		}
		k.set(content{"a": 1}, nil)
		time.Sleep(10 * time.Second)
		stop()
		if strings.Count(k.log.String(), "are not kept") != 1 {
			t.Errorf("the log:\n%s", &k.log)
		}
	})
	if got := load(t, path); !cmp.Equal(got, content{"a": 1}) {
		t.Errorf("kept %v", got)
	}
}

func TestSetsAside(t *testing.T) {
	for name, text := range map[string]string{"no JSON": "{", "another version": `{"version":1,"content":{}}`, "another form": `{"version":2,"content":[]}`} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "counts.json")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := newKept(path).Load()
			if err == nil || !strings.Contains(err.Error(), "counts from before are lost") || !strings.Contains(err.Error(), path+keep.CorruptSuffix) {
				t.Errorf("error %v", err)
			}
			if b, err := os.ReadFile(path + keep.CorruptSuffix); err != nil || string(b) != text {
				t.Errorf("set aside %q, error %v", b, err)
			}
			if got := load(t, path); got != nil {
				t.Errorf("then %v", got)
			}
		})
	}
}

func TestWithoutPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKept("")
		stop := k.run(t)
		k.Changed()
		time.Sleep(time.Minute)
		stop()
		if got, err := k.Load(); got != nil || err != nil || k.log.Len() > 0 {
			t.Errorf("kept %v, error %v, log %s", got, err, &k.log)
		}
	})
}
