package containerlogs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

const rotated = "rotate the log: it has reached containerLogMaxSize, 1000 bytes; the last 3 files are kept"

func TestRotation(t *testing.T) {
	bubble(t, limits, func(n *node) {
		n.add("a")
		n.run()
		n.settle(time.Hour)
		n.want("a", "log empty")
		n.write("a", 99)
		n.settle(time.Minute)
		n.want("a", "log 1-99")
		n.write("a", 1) // what is as large as the limit is rotated
		n.settle(time.Second)
		n.want("a", "part 1-100", "log empty")
		n.write("a", 150)
		n.settle(time.Second)
		n.want("a", "part 1-100", "part 101-250", "log empty")
		n.settle(limits.Interval)
		n.want("a", "gz 1-100", "part 101-250", "log empty")
		n.write("a", 100)
		n.settle(limits.Interval * 2)
		n.want("a", "gz 101-250", "part 251-350", "log empty")
		if diff := cmp.Diff([]string{"a: " + rotated}, n.story()); diff != "" {
			t.Errorf("the journal (-want +got):\n%s", diff)
		}
		if n.calls != 3 {
			t.Errorf("the runtime was called %d times", n.calls)
		}
	})
}

// A log that nobody writes to, or no longer, has no clock.
func TestRest(t *testing.T) {
	bubble(t, limits, func(n *node) {
		n.add("a", "b")
		n.run()
		for range 30 {
			n.write("a", 50)
			n.settle(time.Second)
		}
		n.settle(time.Minute)
		for id, l := range n.manager.logs {
			if !l.inspectAt.IsZero() || !l.cleanUpAt.IsZero() || !l.watched {
				t.Errorf("the log of %s is not at rest: %+v", id, l)
			}
		}
		n.mu.Lock()
		n.pod.Containers = nil
		n.mu.Unlock()
		n.changed.Put("u")
		synctest.Wait()
		if len(n.manager.logs)+len(n.manager.watches)+len(n.watched) != 0 {
			t.Errorf("of containers that are gone there is %v, watched %v", n.manager.logs, n.watched)
		}
	})
}

// In a flood nothing is compressed, and no more is kept than the limits and what is written between
// two looks.
func TestFlood(t *testing.T) {
	bubble(t, limits, func(n *node) {
		n.add("a")
		n.run()
		for i := range 1000 {
			n.write("a", 40) // 40 kB a second
			n.settle(10 * time.Millisecond)
			var sum, files int64
			entries, err := os.ReadDir(filepath.Dir(n.path("a")))
			n.must(err)
			for _, e := range entries {
				st, err := e.Info()
				n.must(err)
				sum, files = sum+st.Size(), files+1
				if strings.HasSuffix(e.Name(), ".gz") {
					t.Fatalf("after %d writes %s is compressed", i, e.Name())
				}
			}
			// Between two looks it grows by 4 to 6 kB; there is one such file, and the one that is
			// written.
			if files > 3 || sum > 2*7000+limits.total() {
				t.Fatalf("after %d writes there are %d files with %d bytes", i, files, sum)
			}
		}
		n.settle(2 * limits.Interval)
		all := n.kept("a")
		last := all[len(all)-2]
		if want := "-40000"; !strings.HasSuffix(last, want) && !strings.HasSuffix(all[len(all)-1], want) {
			t.Errorf("the last line is lost: %q", all)
		}
		var sum int64
		for _, name := range all {
			var from, to int64
			if _, err := fmt.Sscanf(name[strings.IndexByte(name, ' ')+1:], "%d-%d", &from, &to); err == nil {
				sum += 10 * (to - from + 1)
			}
		}
		if sum > limits.total()+limits.MaxSize {
			t.Errorf("at rest there are %d bytes: %q", sum, all)
		}
		if got := n.story(); len(got) != 1 {
			t.Errorf("the journal has %q", got)
		}
	})
}

// A log that was at rest and becomes a flood is found out with the second look.
func TestFloodFromRest(t *testing.T) {
	l := Limits{MaxSize: 10 << 20, MaxFiles: 3, Workers: 1, Interval: 10 * time.Second}
	bubble(t, l, func(n *node) {
		n.add("a")
		n.run()
		n.write("a", 1)
		n.settle(time.Hour)
		const rate = 100 << 20 // bytes a second
		for range 50 {
			n.grow("a", rate/100)
			n.settle(10 * time.Millisecond)
		}
		entries, err := os.ReadDir(filepath.Dir(n.path("a")))
		n.must(err)
		if len(entries) < 2 {
			t.Error("after half a second the log is not rotated")
		}
		for _, e := range entries {
			st, err := e.Info()
			n.must(err)
			if most := l.MaxSize + rate*int64(2*minInspectInterval)/int64(time.Second); st.Size() > most {
				t.Errorf("%s has %d bytes, more than %d", e.Name(), st.Size(), most)
			}
		}
	})
}

// A burst that was over before it could be seen is cut.
func TestBurst(t *testing.T) {
	bubble(t, limits, func(n *node) {
		n.add("a")
		n.run()
		n.write("a", 100)
		n.settle(2 * limits.Interval)
		n.write("a", 5000)
		n.settle(2 * limits.Interval)
		n.want("a", "part 4802-5100", "log empty")
	})
}

func TestReopenFails(t *testing.T) {
	bubble(t, limits, func(n *node) {
		n.add("a")
		broken := errors.New("runtime is broken")
		n.reopen = func(pod.ContainerID, func() error) error { return broken }
		n.run()
		n.write("a", 100)
		n.settle(time.Second)
		n.want("a", "log 1-100")
		n.write("a", 100)
		n.settle(time.Second)
		n.want("a", "log 1-200")
		const told = "a: the log is not rotated, and grows:  runtime is broken"
		if diff := cmp.Diff([]string{told}, n.story()); diff != "" {
			t.Errorf("the journal (-want +got):\n%s", diff)
		}
		n.settle(time.Minute)
		n.write("a", 100) // as much as all files may have together
		n.settle(time.Minute)
		n.want("a", "log empty")
		n.write("a", 120)
		n.settle(time.Minute)
		n.want("a", "log 301-420")
		n.mu.Lock()
		n.reopen = func(_ pod.ContainerID, next func() error) error { return next() }
		n.mu.Unlock()
		n.settle(limits.Interval)
		n.want("a", "part 301-420", "log empty")
		if diff := cmp.Diff([]string{told, "a: empty the log: it cannot be rotated, and has reached 3000 bytes runtime is broken", "a: " + rotated}, n.story()); diff != "" {
			t.Errorf("the journal (-want +got):\n%s", diff)
		}
	})
}

// The runtime has made the next file, and its answer is lost: what was renamed keeps its name, and
// the runtime is asked again.
func TestAnswerIsLost(t *testing.T) {
	for name, late := range map[string]bool{"it goes on with the old file": false, "it writes to the new one": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, limits, func(n *node) {
				n.add("a")
				first := true
				n.reopen = func(id pod.ContainerID, next func() error) error {
					if !first {
						return next()
					}
					first = false
					if late {
						n.must(next())
					} else {
						n.must(os.WriteFile(n.path(id), nil, 0o640))
					}
					return errors.New("cut off")
				}
				n.run()
				n.write("a", 100)
				n.settle(time.Second / 2)
				n.write("a", 10)
				if late {
					n.want("a", "part 1-100", "log 101-110")
				} else {
					n.want("a", "part 1-110", "log empty")
				}
				n.settle(time.Minute)
				n.write("a", 1)
				if n.calls < 1 || late && n.calls != 2 {
					t.Errorf("the runtime was called %d times", n.calls)
				}
				if all := n.kept("a"); len(all) != 2 || !strings.HasSuffix(all[1], "-111") && !strings.HasSuffix(all[1], " 111-111") {
					t.Errorf("at last there is %q", all)
				}
			})
		})
	}
}

// One container that the runtime is stuck with holds up others for a while.
func TestReopenHangs(t *testing.T) {
	bubble(t, limits, func(n *node) {
		n.add("a", "b")
		hang := make(chan struct{})
		n.reopen = func(id pod.ContainerID, next func() error) error {
			if id == "a" {
				<-hang
			}
			return next()
		}
		n.run()
		n.write("a", 100)
		n.settle(time.Second)
		n.write("b", 100)
		n.settle(time.Second)
		n.want("b", "log 1-100")
		n.settle(reopenLimit - 3*time.Second/2)
		n.want("b", "part 1-100", "log empty")
		n.want("a", "log 1-100")
		close(hang)
		synctest.Wait()
	})
}

// What an agent leaves that is killed in a rotation, or while it compresses.
func TestKilled(t *testing.T) {
	bubble(t, limits, func(n *node) {
		n.add("a")
		dir := filepath.Dir(n.path("a"))
		n.write("a", 10)
		n.must(os.Rename(n.path("a"), dir+"/0.log.20260101-000005"))
		for name, content := range map[string]string{
			"0.log.20260101-000003": "000000001\n", "0.log.20260101-000004": "000000002\n", "0.log.20260101-000003.tmp": "half", "0.log.20250101-000000": "000000000\n",
			"1.log.20250101-000000": "000000000\n",
		} {
			n.must(os.WriteFile(filepath.Join(dir, name), []byte(content), 0o640))
		}
		n.run()
		n.settle(2 * limits.Interval)
		n.must(os.Remove(dir + "/1.log.20250101-000000")) // another incarnation's
		n.want("a", "gz 2-2", "part 1-10", "log empty")
		if got := n.story(); len(got) != 0 {
			t.Errorf("nothing was rotated, and the journal has %q", got)
		}
	})
}

// A writer that follows the path may be silent from the moment of the rotation on: the next file is
// there at once, the runtime is not called, and nothing is reported as failed.
func TestWriterFollowsPath(t *testing.T) {
	bubble(t, limits, func(n *node) {
		n.follows = true
		n.add("a")
		n.run()
		n.write("a", 100)
		n.settle(time.Hour)
		n.want("a", "part 1-100", "log empty")
		n.must(n.openLog("a"))
		n.write("a", 50)
		n.settle(time.Hour)
		n.want("a", "part 1-100", "log 101-150")
		if n.calls != 0 {
			t.Errorf("the runtime was called %d times", n.calls)
		}
		if diff := cmp.Diff([]string{"a: " + rotated}, n.story()); diff != "" {
			t.Errorf("the journal (-want +got):\n%s", diff)
		}
	})
}

// A log that an earlier agent renamed, and whose writer is silent, is there again at once.
func TestWriterFollowsPathAfterRestart(t *testing.T) {
	bubble(t, limits, func(n *node) {
		n.follows = true
		n.add("a")
		n.write("a", 100)
		n.must(os.Rename(n.path("a"), filepath.Dir(n.path("a"))+"/0.log.20260101-000005"))
		n.run()
		n.settle(time.Minute)
		n.want("a", "part 1-100", "log empty")
		if got := n.story(); n.calls != 0 || len(got) != 0 {
			t.Errorf("%d calls, the journal has %q", n.calls, got)
		}
	})
}

// What a container has put at the path of its log is not opened.
func TestCreateFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	for name, put := range map[string]func(path string) error{
		"a link to a file":  func(path string) error { return os.Symlink(outside, path) },
		"a link to nothing": func(path string) error { return os.Symlink(outside+".new", path) },
		"a FIFO":            func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a folder":          func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			if err := errors.Join(os.WriteFile(outside, []byte("as it was"), 0o600), put(path)); err != nil {
				t.Fatal(err)
			}
			f, err := openFolder(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := f.create(); err == nil {
				t.Error("it is opened")
			}
			if _, err := os.Stat(outside + ".new"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("what the link leads to: %v", err)
			}
		})
	}
}

// A runtime that says yes and makes no log is not asked without end.
func TestLogStaysMissing(t *testing.T) {
	bubble(t, limits, func(n *node) {
		n.add("a")
		n.must(os.Remove(n.path("a")))
		n.reopen = func(pod.ContainerID, func() error) error {
			n.calls++
			return nil
		}
		n.run()
		n.settle(time.Minute)
		if n.calls < 2 || n.calls > 10 {
			t.Errorf("the runtime was asked %d times in a minute", n.calls)
		}
		want := "a: the log is not rotated, and grows:  the container runtime has made no file at " + n.path("a")
		if diff := cmp.Diff([]string{want}, n.story()); diff != "" {
			t.Errorf("the journal (-want +got):\n%s", diff)
		}
	})
}

func TestExited(t *testing.T) {
	bubble(t, limits, func(n *node) {
		n.add("a", "b", "c")
		n.run()
		n.write("a", 290)
		n.write("b", 5000)
		n.write("c", 10)
		n.observe(pod.StateExited, "a", "b", "c")
		n.settle(time.Minute)
		n.want("a", "log 1-290") // less than what a container may have that runs
		n.want("b", "log 4702-5000")
		n.want("c", "log 1-10")
		n.changed.Put("u")
		n.settle(time.Minute)
		n.want("b", "log 4702-5000")
		if len(n.watched) != 0 || n.calls != 0 || len(n.story()) != 0 {
			t.Errorf("%d are watched, %d calls: %q", len(n.watched), n.calls, n.story())
		}
	})
	// A rotation is under way when the container exits.
	bubble(t, limits, func(n *node) {
		n.add("a")
		n.reopen = func(pod.ContainerID, func() error) error {
			time.Sleep(time.Second)
			return errors.New("container is not running")
		}
		n.run()
		n.write("a", 150)
		n.settle(time.Second / 2)
		n.observe(pod.StateExited, "a")
		n.settle(time.Minute)
		n.want("a", "log 1-150")
		if got := n.story(); len(got) != 0 {
			t.Errorf("the journal has %q", got)
		}
	})
}

func TestWithoutInotify(t *testing.T) {
	bubble(t, limits, func(n *node) {
		n.deaf = true
		n.add("a")
		n.run()
		n.settle(time.Minute)
		n.write("a", 100)
		n.settle(limits.Interval + time.Second)
		n.want("a", "part 1-100", "log empty")
		if !strings.Contains(n.log.String(), "no inotify") {
			t.Errorf("the log of the agent is %q", n.log.String())
		}
	})
}

// What is no log is not touched: a link that a container has put there may lead anywhere.
func TestLinks(t *testing.T) {
	bubble(t, limits, func(n *node) {
		n.add("a", "b")
		other := filepath.Join(t.TempDir(), "other")
		large := []byte(strings.Repeat("000000001\n", 1000))
		n.must(os.WriteFile(other, large, 0o600), os.Remove(n.path("a")), os.Symlink(other, n.path("a")))
		n.must(os.RemoveAll(filepath.Dir(n.path("b"))), os.Mkdir(other+".d", 0o755), os.WriteFile(other+".d/0.log", large, 0o600), os.Symlink(other+".d", filepath.Dir(n.path("b"))))
		n.run()
		n.settle(time.Hour)
		n.observe(pod.StateExited, "a", "b")
		n.settle(time.Hour)
		for _, path := range []string{other, other + ".d/0.log"} {
			if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, large) {
				t.Errorf("%s has %d bytes: %v", path, len(b), err)
			}
		}
		if got := strings.Count(n.log.String(), "is not bounded"); got != 2 {
			t.Errorf("it is told %d times: %s", got, n.log.String())
		}
	})
}

// The end of the agent waits until a log that was renamed is written to again, and does not wait
// for compression.
func TestEndOfTheAgent(t *testing.T) {
	bubble(t, limits, func(n *node) {
		n.add("a")
		n.reopen = func(_ pod.ContainerID, next func() error) error {
			time.Sleep(time.Second)
			return next()
		}
		stop := n.run()
		n.write("a", 100)
		n.settle(time.Second / 2)
		stop()
		n.write("a", 1)
		n.want("a", "part 1-100", "log 101-101")
	})
}

// A folder that goes with its pod while its rotated files are looked at is no news.
func TestFolderGoesWithItsPod(t *testing.T) {
	about := journal.Subject{UID: "u", Namespace: "default", Name: "web"}
	for _, tc := range []struct {
		err  error
		want int
	}{
		{&fs.PathError{Op: "readdirent", Path: "/var/log/pods/x", Err: syscall.ENOENT}, 0},
		{&fs.PathError{Op: "readdirent", Path: "/var/log/pods/x", Err: syscall.EIO}, 1},
	} {
		m := New(Config{Journal: journal.New(slog.New(slog.DiscardHandler))})
		m.finished(&result{log: &containerLog{subject: about, cancel: func() {}}, outcome: outcome{err: tc.err}})
		if entries := m.cfg.Journal.Read("default", "web"); len(entries) != tc.want {
			t.Errorf("%v: %+v", tc.err, entries)
		}
	}
}
