package logs

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collector is a writer whose text can be waited for.
type collector struct {
	mu   sync.Mutex
	cond *sync.Cond
	text string
	over bool
}

func newCollector() *collector {
	c := &collector{}
	c.cond = sync.NewCond(&c.mu)
	return c
}

func (c *collector) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text += string(p)
	c.cond.Broadcast()
	return len(p), nil
}

// await blocks until the text is want, or is not going to be.
func (c *collector) await(t *testing.T, want string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.text != want && strings.HasPrefix(want, c.text) && !c.over {
		c.cond.Wait()
	}
	if c.text != want {
		t.Fatalf("got %q, want %q", c.text, want)
	}
}

// follower is a Read with Follow that runs.
type follower struct {
	*collector
	path   string
	exited chan struct{}
	result chan error
}

func startFollow(t *testing.T, path string, o Options) *follower {
	t.Helper()
	f := &follower{collector: newCollector(), path: path, exited: make(chan struct{}), result: make(chan error, 1)}
	o.Follow, o.Exited = true, f.exited
	if o.Watches == nil {
		o.Watches = &Watches{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	asked := func(context.Context) (bool, error) { return false, errors.New("asked although there is a channel") }
	go func() {
		err := Read(ctx, path, o, asked, Streams{f, f})
		cancel()
		f.mu.Lock()
		f.over = true
		f.cond.Broadcast()
		f.mu.Unlock()
		f.result <- err
	}()
	return f
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestFollowFromTheTail(t *testing.T) {
	path := logFile(t, line(1, Stdout, "F", "old")+line(2, Stdout, "F", "one"))
	tail := int64(1)
	f := startFollow(t, path, Options{TailLines: &tail})
	f.await(t, "one\n")
	appendTo(t, path, line(3, Stdout, "F", "two"))
	f.await(t, "one\ntwo\n")
	close(f.exited)
	if err := <-f.result; err != nil {
		t.Fatal(err)
	}
}

func TestFollowGrowthAndExit(t *testing.T) {
	path := logFile(t, line(1, Stdout, "F", "one"))
	f := startFollow(t, path, Options{})
	f.await(t, "one\n")
	whole := line(2, Stderr, "F", "two")
	appendTo(t, path, whole[:10])
	appendTo(t, path, whole[10:])
	f.await(t, "one\ntwo\n")
	appendTo(t, path, line(3, Stdout, "P", "thr"))
	f.await(t, "one\ntwo\nthr")
	appendTo(t, path, line(3, Stdout, "F", "ee")+line(4, Stdout, "F", "last")+strings.TrimSuffix(line(5, Stdout, "F", "torn"), "\n"))
	close(f.exited)
	if err := <-f.result; err != nil {
		t.Fatal(err)
	}
	f.await(t, "one\ntwo\nthree\nlast\ntorn\n")
}

func TestFollowOverRotations(t *testing.T) {
	path := logFile(t, line(1, Stdout, "F", "one"))
	f := startFollow(t, path, Options{})
	want := "one\n"
	f.await(t, want)
	old, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close() // a second time is no harm
	if err := os.Rename(path, path+".20240101-000000"); err != nil {
		t.Fatal(err)
	}
	// The runtime writes to the renamed file until it has the new one.
	write := func(text string) {
		t.Helper()
		if _, err := old.WriteString(line(2, Stdout, "F", text)); err != nil {
			t.Fatal(err)
		}
		want += text + "\n"
		f.await(t, want)
	}
	write("renamed")
	appendTo(t, path, "")
	write("new file made")
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	appendTo(t, path, line(3, Stdout, "F", "two"))
	want += "two\n"
	f.await(t, want)

	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	appendTo(t, path, line(4, Stdout, "F", "3"))
	want += "3\n"
	f.await(t, want)
	close(f.exited)
	if err := <-f.result; err != nil {
		t.Fatal(err)
	}
}

func TestFollowThroughDockersLink(t *testing.T) {
	link := logFile(t, "")
	target := dockerLogOf(t, link, "a", "a")
	f := startFollow(t, link, Options{})
	appendTo(t, target, line(1, Stdout, "F", "one"))
	f.await(t, "one\n")
	appendTo(t, target, line(1, Stdout, "F", "two"))
	f.await(t, "one\ntwo\n")
	close(f.exited)
	if err := <-f.result; err != nil {
		t.Fatal(err)
	}
}

func TestFollowEnds(t *testing.T) {
	path := logFile(t, line(1, Stdout, "F", "one")+line(2, Stdout, "F", "two"))
	t.Run("at the byte limit", func(t *testing.T) {
		limit := int64(5)
		f := startFollow(t, path, Options{LimitBytes: &limit})
		if err := <-f.result; err != nil {
			t.Fatal(err)
		}
		f.await(t, "one\nt")
	})
	t.Run("with the context", func(t *testing.T) {
		gone := errors.New("client gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		out := newCollector()
		result := make(chan error, 1)
		go func() {
			result <- Read(ctx, path, Options{Follow: true, Exited: make(chan struct{}), Watches: &Watches{}}, nil, Streams{out, out})
		}()
		out.await(t, "one\ntwo\n")
		cancel(gone)
		if err := <-result; !errors.Is(err, gone) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("at once without a container", func(t *testing.T) {
		out := newCollector()
		if err := Read(t.Context(), path, Options{Follow: true}, nil, Streams{out, out}); err != nil {
			t.Fatal(err)
		}
		out.await(t, "one\ntwo\n")
	})
	t.Run("when asking fails", func(t *testing.T) {
		broken := errors.New("no answer")
		running := func(context.Context) (bool, error) { return false, broken }
		if err := Read(t.Context(), path, Options{Follow: true}, running, Streams{nil, nil}); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	})
}

// Without inotify and without a channel the clock does: once a second, and what was written before
// the end is printed.
func TestFollowByClock(t *testing.T) {
	path := logFile(t, line(1, Stdout, "F", "one"))
	synctest.Test(t, func(t *testing.T) {
		out := newCollector()
		began, asked := time.Now(), 0
		running := func(context.Context) (bool, error) {
			asked++
			switch asked {
			case 2:
				appendTo(t, path, line(2, Stdout, "F", "two"))
			case 3:
				if out.text != "one\ntwo\n" {
					t.Errorf("after two seconds: %q", out.text)
				}
				appendTo(t, path, line(3, Stdout, "F", "last"))
				return false, nil
			}
			return true, nil
		}
		o := Options{Follow: true}
		r := &reader{path: path, options: o, out: newOutput(o, out, out)}
		if err := r.read(t.Context(), running, make([]byte, bufferSize)); err != nil {
			t.Fatal(err)
		}
		if out.text != "one\ntwo\nlast\n" {
			t.Errorf("got %q", out.text)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("took %v of virtual time, want 2s", took)
		}
	})
}
