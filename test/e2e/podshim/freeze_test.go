//go:build e2e && podshim

package podshim

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// freezer is a disk that can be frozen, as a snapshot of it does.
type freezer struct {
	*rig
	dir   string
	guard *exec.Cmd // thaws it when its input ends, also when the test is killed
	end   io.Closer
}

// newFrozen starts containerd with these of its folders on a disk of its own.
func newFrozen(t *testing.T, folders ...string) *freezer {
	t.Helper()
	all := drivers()
	f := &freezer{}
	newRigIn(t, all[len(all)-1], func(r *rig) {
		f.rig, f.dir = r, r.path("disk")
		t.Cleanup(f.thaw) // runs before that of the rig, which unmounts it
		image := r.path("disk.image")
		r.must(os.Mkdir(f.dir, 0o755))
		r.must(os.WriteFile(image, nil, 0o600))
		r.must(os.Truncate(image, 256<<20))
		for _, c := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, f.dir}} {
			if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%q: %v: %s", c, err, out)
			}
		}
		r.own = []string{f.dir}
		for _, d := range folders {
			from, to := r.path("disk", d), r.path(d)
			r.must(os.Mkdir(from, 0o755))
			r.must(os.Mkdir(to, 0o755))
			r.must(unix.Mount(from, to, "", unix.MS_BIND, ""))
			r.own = append(r.own, to)
		}
	})
	return f
}

func (f *freezer) freeze() {
	f.Helper()
	f.guard = exec.Command("/bin/sh", "-c", `cat; exec fsfreeze -u "$0"`, f.dir)
	f.guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it outlives what ends the test
	end, err := f.guard.StdinPipe()
	f.must(err)
	f.end = end
	f.must(f.guard.Start())
	if out, err := exec.Command("fsfreeze", "-f", f.dir).CombinedOutput(); err != nil {
		f.Fatalf("freeze: %v: %s", err, out)
	}
}

// thaw ends the freeze, if there is one.
func (f *freezer) thaw() {
	if f.guard == nil {
		return
	}
	f.end.Close()
	if err := f.guard.Wait(); err != nil {
		f.Errorf("thaw: %v", err)
	}
	f.guard = nil
}

// processState is the state of a process as the kernel tells it: D if nothing interrupts its wait,
// Z if it has ended, and nothing if it is gone.
func processState(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(b), ") ")
	state, _, _ := strings.Cut(after, " ")
	return state
}

func (f *freezer) awaitState(what string, pid int, states ...string) {
	f.Helper()
	eventually(f.rig, what, func() error {
		if s := processState(pid); !slices.Contains(states, s) {
			return fmt.Errorf("process %d is in state %q", pid, s)
		}
		return nil
	})
}

// arrangements are what may be on a disk that is frozen: with the first, as Berth has it,
// containerd's state is in memory.
var arrangements = map[string][]string{"state in memory": {"root", "logs"}, "state on it": {"root", "logs", "state"}}

// frozenPods are the containers of four pods, from before the disk is frozen.
type frozenPods struct {
	writes, stopped string // these write without end; the second is to be stopped
	quiet           string // writes nothing, and is killed while the disk is frozen
	ends            string // ends with 7 while the disk is frozen

	pids     map[string]int // of the first processes
	podshims map[string]int
	frozen   time.Time
}

func (f *freezer) podsAndFreeze() *frozenPods {
	f.Helper()
	p := &frozenPods{pids: map[string]int{}, podshims: map[string]int{}}
	for _, c := range []struct {
		name string
		id   *string
		args []string
	}{{"writes", &p.writes, []string{"write"}}, {"stopped", &p.stopped, []string{"write"}}, {"quiet", &p.quiet, []string{"sleep"}}, {"ends", &p.ends, []string{"exit", fmt.Sprint(int(2000 * slower())), "7"}}} {
		var pod string
		pod, *c.id = f.runs(c.name, c.args...)
		p.pids[c.name], p.podshims[c.name] = int(f.pid(*c.id)), f.podshimOf(pod)
	}
	f.must(os.Mkdir(f.path("logs", "later"), 0o755)) // the test itself does not wait
	f.must(os.Mkdir(f.path("logs", "cut"), 0o755))
	p.frozen = time.Now()
	f.freeze()
	if s := processState(p.pids["ends"]); s == "" || s == "Z" {
		f.Fatal("the container has ended before the disk was frozen")
	}
	f.awaitState("the pod shim waits for its log", p.podshims["writes"], "D")
	f.awaitState("the pod shim waits for its log", p.podshims["stopped"], "D")
	return p
}

// endMeanwhile has those end that can while the disk is frozen. containerd is not asked, as it
// answers to nothing any more when it writes to its database.
func (f *freezer) endMeanwhile(p *frozenPods) {
	f.Helper()
	service, end := f.podshimsTasks()
	defer end()
	ctx, cancel := f.within()
	defer cancel()
	_, err := service.Kill(ctx, &taskapi.KillRequest{ID: p.quiet, Signal: uint32(unix.SIGKILL)})
	f.must(err)
	f.awaitState("who writes nothing is killed, and its pod shim has seen it", p.pids["quiet"], "")
	f.awaitState("who ends has ended", p.pids["ends"], "", "Z")
}

func (f *freezer) stop(id string) error {
	ctx, cancel := f.within()
	defer cancel()
	_, err := f.rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id})
	return err
}

// While the disk with images, containers and logs is frozen, pod shims that do not need it go on.
// One that writes to a log waits in that, and has no time for its pod. Afterwards all that was
// asked is done, and nothing is lost.
func TestFrozenDisk(t *testing.T) {
	for name, folders := range arrangements {
		t.Run(name, func(t *testing.T) {
			f := newFrozen(t, folders...)
			p := f.podsAndFreeze()
			var wg sync.WaitGroup
			ask := func(what string, call func() error) {
				wg.Go(func() {
					if err := call(); err != nil {
						t.Errorf("%s: %v", what, err)
					}
				})
			}
			ask("exec beside who writes", func() error {
				if o := f.execSync(p.writes, 0, "/payload", "say", "a", "b", "7"); o != (outcome{"a", "b", 7, ""}) {
					return fmt.Errorf("%+v", o)
				}
				return nil
			})
			ask("stop of who writes", func() error { return f.stop(p.stopped) })
			later := ""
			ask("a new pod", func() (err error) {
				_, later, err = f.tryRuns("later", "lines", "10", "3")
				return err
			})
			f.endMeanwhile(p)
			thawed := time.Now()
			f.thaw()
			wg.Wait()
			if t.Failed() {
				return
			}
			f.wantEnded(p, thawed)
			if s, n := f.exits(later), f.lines(f.logFile("later", "c")); s.ExitCode != 3 || n != 10 {
				t.Errorf("a pod that was begun meanwhile: code %d and %d lines, want 3 and 10", s.ExitCode, n)
			}
			if s := f.exits(p.stopped); s.ExitCode != 137 {
				t.Errorf("who wrote and was stopped: code %d, want 137", s.ExitCode)
			}
			f.wantWrites("stopped", "writes")
			f.wantLives(p.writes)
			f.removeAll()
		})
	}
}

// The same when containerd is killed meanwhile: it is only gone when the disk is there again.
func TestKilledWhileTheDiskIsFrozen(t *testing.T) {
	for name, folders := range arrangements {
		t.Run(name, func(t *testing.T) {
			f := newFrozen(t, folders...)
			p := f.podsAndFreeze()
			var wg sync.WaitGroup // of requests that containerd does not answer any more
			wg.Go(func() { f.tryRuns("cut", "sleep") })
			wg.Go(func() { f.execSync(p.writes, 0, "/payload", "sleep") })
			f.endMeanwhile(p)
			f.must(f.cmd.Process.Kill())
			thawed := time.Now()
			f.thaw()
			<-f.ended
			wg.Wait()
			f.start()
			f.wantEnded(p, thawed)
			f.wantLives(p.writes)
			f.wantLives(p.stopped)
			f.wantWrites("stopped", "writes")
			f.removeAll()
		})
	}
}

// A containerd that is started while the disk with the logs is frozen waits for pod shims that wait
// for it. One that does nothing at all is killed.
func TestStartWhileTheDiskIsFrozen(t *testing.T) {
	f := newFrozen(t, "root", "logs")
	pod, writes := f.runs("writes", "write")
	stuckPod, stuck := f.runs("stuck", "sleep")
	podshim, stopped := f.podshimOf(pod), f.podshimOf(stuckPod)
	f.kill()
	f.freeze()
	f.awaitState("the pod shim waits for its log", podshim, "D")
	f.must(unix.Kill(stopped, unix.SIGSTOP))
	f.env = []string{"PODSHIM_REPLY_TIMEOUT=500ms"}
	f.launch("points/podshim-containerd")
	eventually(f.rig, "the log tells of the one that waits", func() error {
		b, err := os.ReadFile(f.path("log"))
		f.must(err)
		slow := strings.Count(string(b), fmt.Sprintf("process %d, waits for the disk", podshim))
		if slow < 3 {
			return fmt.Errorf("%d times", slow)
		}
		return nil
	})
	f.thaw()
	f.awaitAnswer()
	if s := f.exits(stuck); s.ExitCode != 137 {
		t.Errorf("the container whose pod shim was stuck: code %d, want 137", s.ExitCode)
	}
	f.wantLives(writes)
	f.wantAlive(map[string]int{pod: podshim})
	f.wantWrites("writes")
	f.removeAll()
}

// wantEnded: those that ended while the disk was frozen did with their codes, one of them at its
// time, as its pod shim did not wait for the log.
func (f *freezer) wantEnded(p *frozenPods, thawed time.Time) {
	f.Helper()
	if s := f.exits(p.quiet); s.ExitCode != 137 || s.FinishedAt < p.frozen.UnixNano() || s.FinishedAt > thawed.UnixNano() {
		f.Errorf("who wrote nothing: code %d at %s, want 137 between %s and %s", s.ExitCode, time.Unix(0, s.FinishedAt), p.frozen, thawed)
	}
	if s := f.exits(p.ends); s.ExitCode != 7 || s.FinishedAt < p.frozen.UnixNano() || s.FinishedAt > time.Now().UnixNano() {
		f.Errorf("who ended: code %d at %s, want 7 after %s", s.ExitCode, time.Unix(0, s.FinishedAt), p.frozen)
	}
	if lines := f.logged(f.logFile("ends", "c")); !slices.Equal(lines, []string{"stdout F bye"}) {
		f.Errorf("the log of who ended: %q", lines)
	}
}

// wantWrites: those that wrote have each line in their logs, more than before the disk was frozen.
func (f *freezer) wantWrites(pods ...string) {
	f.Helper()
	for _, pod := range pods {
		if n := f.lines(f.logFile(pod, "c")); n < 100 {
			f.Errorf("the log of %s has %d lines", pod, n)
		}
	}
}
