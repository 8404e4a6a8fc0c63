package kuberuntime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
)

var errBusy = status.Error(codes.Unknown, "busy")

// settle makes passes until one changes nothing; runAll also awaits what containers do by
// themselves.
func (b *bench) settle(p *v1.Pod) {
	b.t.Helper()
	for range 20 {
		synctest.Wait()
		if !b.sync(p).Touched {
			return
		}
	}
	b.t.Fatal("the pod does not come to rest")
}

// runAll settles the pod, after which every container must run or be done, and forgets what has
// happened so far.
func (b *bench) runAll(p *v1.Pod) {
	b.t.Helper()
	b.settle(p)
	if res := b.sync(p); len(res.StartErrors) > 0 {
		b.t.Fatalf("not everything runs: %+v", res.StartErrors)
	}
	b.fake.Calls.Reset()
	b.events.take()
	b.began = time.Now()
}

// names returns the names of the containers that the runtime has, one for each incarnation.
func (b *bench) names() []string {
	var out []string
	for _, cs := range b.observe().Containers {
		out = append(out, cs.Name)
	}
	slices.Sort(out)
	return out
}

func ids(list []*pod.ContainerStatus) []pod.ContainerID {
	var out []pod.ContainerID
	for _, cs := range list {
		out = append(out, cs.ID)
	}
	return out
}

func TestComputeGarbage(t *testing.T) {
	type list = []pod.ContainerID
	minute := func(n int) time.Time { return t0.Add(time.Duration(n) * time.Minute) }
	for _, tc := range []struct {
		name, observed string
		limits         GarbageLimits
		want           list
		sandboxes      []pod.SandboxID
		next           time.Time
	}{
		{name: "nothing", observed: ""},
		{name: "the last state stays", observed: "sb a=running a=1"},
		{name: "older ones go", observed: "sb a=running a=1 a=2 a=3", want: list{"c2", "c3"}},
		{name: "a dead one stays, older ones go", observed: "sb a=1 a=2 b=running", want: list{"c1"}},
		{name: "each container by itself", observed: "sb a=1 b=1 a=2 b=2", want: list{"c2", "c3"}},
		{name: "two are kept", observed: "sb a=running a=1 a=2 a=3", limits: GarbageLimits{MaxPerContainer: 2}, want: list{"c3"}},
		{name: "at least one is kept", observed: "sb a=running a=1 a=2", limits: GarbageLimits{MaxPerContainer: -1}, want: list{"c2"}},
		{name: "created ones are no last state", observed: "sb a=created a=1 a=2", want: list{"c2"}},
		{name: "created ones that were given up", observed: "sb a=running a=created a=1", want: list{"c1"}},
		{name: "unknown ones that were given up", observed: "sb a=running a=unknown a=1", want: list{"c1"}},
		{name: "the newest unknown one", observed: "sb a=unknown a=1"},
		{name: "too young", observed: "sb a=running a=1 a=2", limits: GarbageLimits{MinAge: 3 * time.Minute}, next: minute(3)},
		{name: "old enough", observed: "sb a=running a=1 a=2", limits: GarbageLimits{MinAge: 2 * time.Minute}, want: list{"c2"}},
		{name: "old sandbox without containers", observed: "sb sb-dead a=running", sandboxes: []pod.SandboxID{"s1"}},
		{name: "old sandbox with a last state", observed: "sb sb-dead a=running a=1+old"},
		{name: "old sandbox with garbage only", observed: "sb sb-dead a=running a=1 a=2+old", want: list{"c2"}, sandboxes: []pod.SandboxID{"s1"}},
		{name: "the newest sandbox stays", observed: "sb-dead a=0"},
		{name: "a ready sandbox stays", observed: "sb sb"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := inputOf(t, specOf(t, "Always a b"), tc.observed)
			g := computeGarbage(in.Observed, tc.limits, minute(2))
			if d := cmp.Diff(tc.want, list(ids(g.Containers))); d != "" {
				t.Errorf("containers (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.sandboxes, g.Sandboxes); d != "" {
				t.Errorf("sandboxes (-want +got):\n%s", d)
			}
			if !g.Next.Equal(tc.next) {
				t.Errorf("next at %v, want %v", g.Next, tc.next)
			}
		})
	}
}

// After the clock was set back by years nobody waits until it is as late again: an end in the
// future tells no age.
func TestGarbageAfterTheClockWasSetBack(t *testing.T) {
	now := t0.AddDate(-10, 0, 0)
	observed := inputOf(t, specOf(t, "Always a b"), "sb a=running a=1 a=2").Observed
	g := computeGarbage(observed, GarbageLimits{MinAge: time.Minute}, now)
	if got := ids(g.Containers); !slices.Equal(got, []pod.ContainerID{"c2"}) || !g.Next.IsZero() {
		t.Errorf("of the pod %v are to go, and the next at %v", got, g.Next)
	}
	var node []pod.ContainerID
	for _, d := range computeNodeGarbage([]*pod.Status{observed}, GarbageLimits{MinAge: time.Minute, MaxTotal: 1}, now) {
		node = append(node, d.container.ID)
	}
	if !slices.Equal(node, []pod.ContainerID{"c2"}) {
		t.Errorf("of the node %v are to go", node)
	}
}

func TestComputeNodeGarbage(t *testing.T) {
	end := func(s *pod.Status, uid string, minutes ...int) *pod.Status {
		s.UID = pod.UID(uid)
		for i := range s.Containers {
			s.Containers[i].ID = pod.ContainerID(fmt.Sprintf("%s-%d", uid, i))
			s.Containers[i].FinishedAt = t0.Add(time.Duration(minutes[i]) * time.Minute)
		}
		return s
	}
	p := specOf(t, "Always a b")
	pods := []*pod.Status{
		end(inputOf(t, p, "sb a=1 a=1 a=1").Observed, "x", 9, 6, 3),
		end(inputOf(t, p, "sb a=running b=1 b=1").Observed, "y", 0, 8, 5),
		end(inputOf(t, p, "sb a=1").Observed, "z", 1),
	}
	for _, tc := range []struct {
		limits GarbageLimits
		want   []pod.ContainerID
	}{
		{GarbageLimits{}, nil},
		{GarbageLimits{MaxTotal: -1}, nil},
		{GarbageLimits{MaxTotal: 6}, nil},
		{GarbageLimits{MaxTotal: 5}, []pod.ContainerID{"x-2"}},
		{GarbageLimits{MaxTotal: 4}, []pod.ContainerID{"x-2", "y-2"}},
		{GarbageLimits{MaxTotal: 1}, []pod.ContainerID{"x-2", "y-2", "x-1"}}, // the others are last states
		{GarbageLimits{MaxTotal: 1, MinAge: 6 * time.Minute}, []pod.ContainerID{"x-2"}},
	} {
		var got []pod.ContainerID
		for _, d := range computeNodeGarbage(pods, tc.limits, t0.Add(10*time.Minute)) {
			got = append(got, d.container.ID)
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%+v (-want +got):\n%s", tc.limits, d)
		}
	}
}

func TestGarbageOfPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.garbage.limits.MaxPerContainer = 2
		p := specOf(t, "Always a")
		b.runAll(p)
		for _, want := range []int{2, 3, 3, 3} {
			b.exit("a", 1)
			b.runAll(p)
			if got := b.names(); len(got) != want {
				t.Errorf("incarnations: %v, want %d", got, want)
			}
			time.Sleep(11 * time.Minute)
		}
	})
}

func TestGarbageThatIsTooYoung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.garbage.limits.MinAge = 15 * time.Minute
		p := specOf(t, "Always a")
		b.runAll(p)
		b.exit("a", 1)
		ended := time.Now()
		b.runAll(p)
		time.Sleep(11 * time.Minute)
		b.exit("a", 1)
		b.runAll(p)
		if res := b.sync(p); !res.RetryAt.Equal(ended.Add(15 * time.Minute)) {
			t.Errorf("again at %v, want 15 minutes after the first end", res.RetryAt)
		}
		time.Sleep(4 * time.Minute)
		b.settle(p)
		if got := b.names(); len(got) != 2 {
			t.Errorf("incarnations: %v, want one dead", got)
		}
	})
}

func TestNodeGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.garbage.limits = GarbageLimits{MaxPerContainer: 3, MaxTotal: 3}
		all := map[pod.UID]bool{"u1": true, "u2": true}
		b.garbage.pods = func() []*pod.Status {
			var out []*pod.Status
			for uid := range all {
				s, err := b.client.Observer.ReadPod(context.Background(), uid, nil, nil)
				if err != nil {
					t.Error(err)
				}
				out = append(out, s)
			}
			return out
		}
		other := specOf(t, "Always a")
		other.Name, other.UID = "other", "u2"
		p := specOf(t, "Always a")
		for range 3 {
			for _, q := range []*v1.Pod{p, other} {
				if err := os.MkdirAll(b.starter.files.dir(q.UID), 0o750); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					s, err := b.client.Observer.ReadPod(t.Context(), q.UID, nil, nil)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := b.SyncPod(t.Context(), requestOf(q, s)); err != nil {
						t.Fatal(err)
					}
				}
				b.fake.Kill(q.Name+"/a", 1)
				synctest.Wait()
			}
			time.Sleep(11 * time.Minute)
		}
		for uid, want := range map[string]int{"u1": 2, "u2": 2} {
			if got := len(b.fake.ContainersOf(uid)); got != want {
				t.Errorf("pod %s has %d dead containers, want %d", uid, got, want)
			}
		}
	})
}

func TestLogsGoWithThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := specOf(t, "Always a")
		b.runAll(p)
		dir := filepath.Join(b.logs.dir, "default_web_u1")
		glob := func(pattern string) []string {
			found, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(err)
			}
			return found
		}
		for range 2 {
			b.exit("a", 1)
			time.Sleep(11 * time.Minute)
			b.runAll(p)
		}
		if got := glob(dir + "/a/*"); len(got) != 2 || filepath.Base(got[0]) != "1.log" {
			t.Errorf("logs %v, want those of incarnations 1 and 2", got)
		}
		if got := glob(b.logs.linkDir + "/*"); len(got) != 2 {
			t.Errorf("links %v, want two", got)
		}
		stranger := filepath.Join(b.logs.linkDir, "stranger.log")
		if err := os.Symlink("/nowhere", stranger); err != nil {
			t.Fatal(err)
		}
		// One of another name that the UID had, and one of a UID with an underscore.
		for _, name := range []string{"default_before_u1/a", "default_web_u_1/a"} {
			if err := os.MkdirAll(filepath.Join(b.logs.dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		uids, err := b.OnDisk()
		slices.Sort(uids)
		if d := cmp.Diff([]pod.UID{"u1", "u_1"}, uids); d != "" || err != nil {
			t.Errorf("on disk (-want +got):\n%s, %v", d, err)
		}
		if err := b.RemoveLogs("default", "web", "u2"); err != nil || len(glob(dir)) != 1 {
			t.Errorf("another pod's logs are gone, %v", err)
		}
		for range 2 {
			if err := b.RemoveLogs("default", "web", "u1"); err != nil || len(glob(b.logs.dir+"/*_u1")) != 0 {
				t.Errorf("the logs are not gone, %v", err)
			}
		}
		if err := b.RemoveLogs("", "", "u_1"); err != nil || len(glob(b.logs.dir+"/*")) != 0 {
			t.Errorf("the logs of a UID with an underscore are not gone, %v", err)
		}
		if d := cmp.Diff([]string{stranger}, glob(b.logs.linkDir+"/*")); d != "" {
			t.Errorf("links (-want +got):\n%s", d)
		}
	})
}

func TestPruneDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		p := specOf(t, "OnFailure a b")
		b.runAll(p)
		b.exit("a", 1)
		b.runAll(p)
		b.exit("a", 0)
		b.exit("b", 0)
		b.kill(p, 0)
		if err := b.PruneDead(t.Context(), b.observe()); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"a", "b"}, b.names()); d != "" {
			t.Errorf("left (-want +got):\n%s", d)
		}
		for _, cs := range b.observe().Containers {
			if cs.ExitCode != 0 {
				t.Errorf("the newest incarnation of %s went instead of the older", cs.Name)
			}
		}
	})
}

func TestKeepCount(t *testing.T) {
	for _, tc := range []struct {
		name    string
		attempt uint32
		state   pod.ContainerState
		logs    []string
		want    []string
	}{
		{"its log", 2, pod.StateExited, []string{"1.log", "1.log.20260102-030405.gz", "2.log", "2.log.20260102-030405"}, []string{"2.log", "2.log.20260102-030405"}},
		{"it could not be started", 2, pod.StateExited, []string{"1.log"}, []string{"2.log"}},
		{"it was never started", 2, pod.StateCreated, []string{"0.log", "1.log"}, []string{"1.log"}},
		{"nor could the one before", 2, pod.StateCreated, nil, []string{"1.log"}},
		{"the first was never started", 0, pod.StateCreated, nil, nil},
		{"files of others", 1, pod.StateExited, []string{"0.log", "notes", "x.log"}, []string{"1.log", "notes", "x.log"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "a")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, name := range tc.logs {
				if err := os.WriteFile(filepath.Join(dir, name), []byte("said"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cs := pod.ContainerStatus{Name: "a", Attempt: tc.attempt, State: tc.state, LogPath: filepath.Join(dir, fmt.Sprintf("%d.log", tc.attempt))}
			if err := saveRestartCount(&cs); err != nil {
				t.Fatal(err)
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range entries {
				got = append(got, e.Name())
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("logs (-want +got):\n%s", d)
			}
			if b, err := os.ReadFile(cs.LogPath); err == nil && len(b) == 0 && slices.Contains(tc.logs, filepath.Base(cs.LogPath)) {
				t.Error("the log was emptied")
			}
		})
	}
}
