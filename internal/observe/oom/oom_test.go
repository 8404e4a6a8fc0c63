package oom

import (
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
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/host/cgroupstat"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/runtime/cri"
)

// fakeKernel kills when tests say so.
type fakeKernel struct {
	records chan Record
	noLog   error
	noWatch error

	mu    sync.Mutex
	kills map[string]uint64
	after uint64
	wake  func(string)
	paths map[string]bool // watched
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{records: make(chan Record), kills: map[string]uint64{}, paths: map[string]bool{}}
}

func (*fakeKernel) Boot() string { return "boot" }

func (k *fakeKernel) Log(ctx context.Context, after uint64, _ <-chan struct{}, put func(Record)) error {
	k.mu.Lock()
	k.after = after
	k.mu.Unlock()
	if k.noLog != nil {
		return k.noLog
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r := <-k.records:
			put(r)
		}
	}
}

func (k *fakeKernel) Watch(wake func(string)) (Watch, error) {
	k.wake = wake
	return k, k.noWatch
}

func (k *fakeKernel) Add(path string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.paths[path] = true
	return nil
}

func (k *fakeKernel) Remove(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.paths, path)
}

func (k *fakeKernel) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (k *fakeKernel) Containers(p string) (map[string]string, error) {
	return map[string]string{id1: p + "/" + id1, id2: p + "/" + id2}, nil
}

func (k *fakeKernel) Kills(path string) (uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kills[path], nil
}

func (*fakeKernel) Memory(string) (peak, limit uint64, err error) { return 5 << 20, 6 << 20, nil }

// kill counts a kill, and wakes before it does as version 1.
func (k *fakeKernel) kill(path string, n uint64) {
	k.wake(path)
	k.mu.Lock()
	k.kills[path] += n
	k.mu.Unlock()
}

// write writes the log's lines of a kill in the container.
func (k *fakeKernel) write(seq uint64, path, process string) {
	k.records <- Record{seq, process + " invoked oom-killer: gfp_mask=0"}
	k.records <- Record{seq + 1, "memory: usage 4096kB, limit 8192kB, failcnt 1"}
	k.records <- Record{seq + 2, "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=" + path + ",task_memcg=" + path + ",task=" + process + ",pid=42,uid=0"}
}

// world is a Watcher over a fake kernel and one pod.
type world struct {
	kernel   *fakeKernel
	dir      string
	mu       sync.Mutex
	status   *pod.Status
	killed   []Kill
	system   []string
	observed *pod.Inbox[pod.UID]
	kills    *Kills
	w        *Watcher
	stop     func()
}

func (x *world) Killed(k Kill) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.killed = append(x.killed, k)
}

func (x *world) SystemOOM(process string, _ int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.system = append(x.system, process)
}

func (x *world) start(t *testing.T) {
	x.observed = pod.NewInbox[pod.UID]()
	relisted := make(chan struct{})
	close(relisted)
	log := slog.New(slog.DiscardHandler)
	x.kills = NewKills(filepath.Join(x.dir, "kills.json"), log)
	x.w = New(Config{
		Kernel: x.kernel, Observed: x.observed, Relisted: relisted,
		Newest: func(pod.UID) (*pod.Status, bool) { x.mu.Lock(); defer x.mu.Unlock(); return x.status, x.status != nil },
		Known: func() []*pod.Status {
			x.mu.Lock()
			defer x.mu.Unlock()
			if x.status == nil {
				return nil
			}
			return []*pod.Status{x.status}
		},
		Cgroup: func(pod.UID) string { return "/kubepods/podu" },
		Kills:  x.kills, Reporter: x, Log: log,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- x.w.Run(ctx) }()
	x.stop = func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}
	synctest.Wait()
}

func (x *world) show(states map[string]pod.ContainerState) {
	s := &pod.Status{UID: "u", Namespace: "default", Name: "web"}
	for id, state := range states {
		s.Containers = append(s.Containers, pod.ContainerStatus{ID: pod.ContainerID(id), Name: "c" + id[:1], State: state})
	}
	x.mu.Lock()
	x.status = s
	x.mu.Unlock()
	if x.observed != nil {
		x.observed.Put("u")
	}
	synctest.Wait()
}

func (x *world) want(t *testing.T, want ...Kill) {
	t.Helper()
	time.Sleep(2 * settle)
	x.mu.Lock()
	defer x.mu.Unlock()
	if diff := cmp.Diff(want, x.killed); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	x.killed = nil
}

const path1 = "/kubepods/podu/" + id1

func of1(k Kill) Kill {
	k.UID, k.Namespace, k.Name, k.Container = "u", "default", "web", "c4"
	return k
}

// reading is a runtime that answers with one status.
type reading struct {
	Runtime
	status *pod.Status
}

func (r reading) ReadPod(context.Context, pod.UID, *pod.Status, *cri.RuntimePod) (*pod.Status, error) {
	return r.status, nil
}

func TestKillsAreReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &world{kernel: newFakeKernel(), dir: t.TempDir()}
		x.kernel.kills[path1] = 7 // of a container that is older than the agent: nobody's news
		x.show(map[string]pod.ContainerState{id1: pod.StateRunning})
		x.start(t)
		x.want(t)

		x.kernel.kill(path1, 1)
		x.kernel.write(10, path1, "hog")
		named := of1(Kill{Process: "hog", PID: 42, Count: 1, Used: 4 << 20, Limit: 8 << 20})
		x.want(t, named)

		x.kernel.kill(path1, 3) // the log was silent
		x.want(t, of1(Kill{Count: 3, Used: 5 << 20, Limit: 6 << 20}))

		x.stop()
		x.kernel.mu.Lock()
		x.kernel.kills[path1] += 2 // while there is no agent
		x.kernel.mu.Unlock()
		x.start(t)
		x.kernel.write(20, path1, "hog")
		x.want(t, named, of1(Kill{Count: 1, Used: 5 << 20, Limit: 6 << 20}))
		if x.kernel.after != 12 {
			t.Errorf("the log is read after record %d, want 12", x.kernel.after)
		}

		s := &pod.Status{Containers: []pod.ContainerStatus{
			{ID: id1, State: pod.StateExited, ExitCode: 137, Reason: "Error"}, {ID: id2, State: pod.StateExited, ExitCode: 137, Reason: "Error"},
		}}
		if _, err := x.kills.Amend(reading{status: s}).ReadPod(t.Context(), "u", nil, nil); err != nil {
			t.Error(err)
		}
		if a, b := s.Containers[0].Reason, s.Containers[1].Reason; a != "OOMKilled" || b != "Error" {
			t.Errorf("reasons %s and %s, want OOMKilled and Error", a, b)
		}

		x.show(map[string]pod.ContainerState{id1: pod.StateExited})
		if len(x.kernel.paths) != 0 || x.kills.Count(id1) == 0 {
			t.Errorf("watched: %v, told: %d; want an ended container not watched and its kills known", x.kernel.paths, x.kills.Count(id1))
		}
		x.show(nil)
		if x.kills.Count(id1) != 0 || len(x.w.pods) != 0 {
			t.Errorf("still known: %d kills, pods %v", x.kills.Count(id1), x.w.pods)
		}
		x.stop()
	})
}

// A kill may be in the log before the container is observed.
func TestKillBeforeObservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &world{kernel: newFakeKernel(), dir: t.TempDir()}
		x.start(t)
		x.kernel.write(10, path1, "hog")
		x.want(t)
		x.show(map[string]pod.ContainerState{id1: pod.StateExited})
		x.want(t, of1(Kill{Process: "hog", PID: 42, Count: 1, Used: 4 << 20, Limit: 8 << 20}))
		x.stop()
	})
}

func TestWithoutLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &world{kernel: newFakeKernel(), dir: t.TempDir()}
		x.kernel.noLog = errors.New("operation not permitted")
		x.start(t)
		x.show(map[string]pod.ContainerState{id1: pod.StateRunning})
		x.kernel.kill(path1, 1)
		x.want(t, of1(Kill{Count: 1, Used: 5 << 20, Limit: 6 << 20}))
		x.stop()
	})
}

func TestNodeAndPodLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &world{kernel: newFakeKernel(), dir: t.TempDir()}
		x.start(t)
		x.show(map[string]pod.ContainerState{id1: pod.StateRunning})
		for i, limit := range []string{"oom_memcg=/kubepods/podu", "oom_memcg=/kubepods", "global_oom"} {
			x.kernel.records <- Record{uint64(2 * i), "x invoked oom-killer: y"}
			x.kernel.records <- Record{uint64(2*i + 1), "oom-kill:constraint=C," + limit + ",task_memcg=" + path1 + ",task=hog,pid=42,uid=0"}
		}
		k := of1(Kill{Process: "hog", PID: 42, Count: 1})
		pods, above, node := k, k, k
		pods.Of, above.Of, node.Of = Pod, Above, Node
		x.want(t, pods, above, node)
		if diff := cmp.Diff([]string{"hog"}, x.system); diff != "" {
			t.Error(diff)
		}
		x.stop()
	})
}

func TestMessage(t *testing.T) {
	tests := []struct {
		kill Kill
		want string
	}{
		{Kill{Container: "main", Process: "tail", PID: 7, Count: 1, Used: 15 << 20, Limit: 16 << 20}, "the kernel killed process tail (pid 7) of container main: the memory limit of the container was reached (15Mi used of 16Mi)"},
		{Kill{Container: "main", Count: 2, Used: 15 << 20, Limit: 16 << 20}, "the kernel killed 2 processes of container main: the memory limit of the container was reached (at most 15Mi used of 16Mi)"},
		{Kill{Process: "pause", PID: 7, Count: 1, Of: Pod}, "the kernel killed process pause (pid 7) of the pod's sandbox: the memory limit of the pod was reached"},
		{Kill{Container: "main", Process: "tail", PID: 7, Count: 1, Of: Node}, "the kernel killed process tail (pid 7) of container main: the node had no memory left"},
	}
	for _, tt := range tests {
		if got := tt.kill.Message(); got != tt.want {
			t.Errorf("%+v:\n got %s\nwant %s", tt.kill, got, tt.want)
		}
	}
}

// A pod's cgroup is limited to the sum of its containers' limits unless the pod has a limit of its
// own, and holds the sandbox as well: the event names the limit that the user set.
func TestLimitOfSum(t *testing.T) {
	limited := func(name string) v1.Container {
		return v1.Container{Name: name, Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}}}
	}
	always := v1.ContainerRestartPolicyAlways
	sidecar := limited("proxy")
	sidecar.RestartPolicy = &always
	tests := []struct {
		name string
		spec v1.PodSpec
		want string
	}{
		{"one container", v1.PodSpec{Containers: []v1.Container{limited("main")}}, "the memory limit of the container was reached (64Mi used of 64Mi)"},
		{"two containers", v1.PodSpec{Containers: []v1.Container{limited("main"), limited("side")}}, "the memory limits of the pod's containers together were reached (64Mi used of 64Mi)"},
		{"a sidecar", v1.PodSpec{Containers: []v1.Container{limited("main")}, InitContainers: []v1.Container{sidecar}}, "the memory limits of the pod's containers together were reached (64Mi used of 64Mi)"},
		{
			"a limit of the pod",
			v1.PodSpec{Containers: []v1.Container{limited("main")}, Resources: &v1.ResourceRequirements{Limits: limited("").Resources.Limits}},
			"the memory limit of the pod was reached (64Mi used of 64Mi)",
		},
		{"no limit is known", v1.PodSpec{Containers: []v1.Container{{Name: "main"}}}, "the memory limit of the pod was reached (64Mi used of 64Mi)"},
	}
	for _, tt := range tests {
		var r recorder
		Events{
			Recorder: &r, Refresh: func(pod.UID) {},
			Pod: func(pod.UID) (*v1.Pod, bool) { return &v1.Pod{Spec: tt.spec}, true },
		}.Killed(Kill{Container: "main", Process: "hog", PID: 7, Count: 1, Of: Pod, Used: 64 << 20, Limit: 64 << 20})
		if len(r) != 1 || !strings.HasSuffix(r[0], "of container main: "+tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, r, tt.want)
		}
	}
}

// recorder writes events down.
type recorder []string

func (r *recorder) Event(p *v1.Pod, container, eventtype, reason, message string) {
	*r = append(*r, strings.Join([]string{p.Name, container, eventtype, reason, message}, "|"))
}

func (r *recorder) NodeEvent(eventtype, reason, message string) {
	messagestest.SawEvent(reason, message)
	*r = append(*r, strings.Join([]string{eventtype, reason, message}, "|"))
}

// A kill is an event of its pod, also when the agent does not know the pod yet, and has the pod
// read again.
func TestEvents(t *testing.T) {
	var recorded recorder
	var refreshed []pod.UID
	e := Events{
		Recorder: &recorded, Refresh: func(uid pod.UID) { refreshed = append(refreshed, uid) },
		Pod: func(uid pod.UID) (*v1.Pod, bool) {
			return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "wanted"}}, uid == "u"
		},
	}
	e.Killed(Kill{UID: "u", Name: "web", Container: "main", Count: 2})
	e.Killed(Kill{UID: "v", Name: "web", Container: "main", Count: 2})
	e.SystemOOM("", 0)
	e.SystemOOM("hog", 42)
	want := recorder{
		"wanted|main|Warning|OOMKilled|the kernel killed 2 processes of container main: a memory limit was reached",
		"web|main|Warning|OOMKilled|the kernel killed 2 processes of container main: a memory limit was reached",
		"Warning|SystemOOM|System OOM encountered",
		"Warning|SystemOOM|System OOM encountered, victim process: hog, pid: 42",
	}
	if diff := cmp.Diff(want, recorded); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]pod.UID{"u", "v"}, refreshed); diff != "" {
		t.Errorf("read again (-want +got):\n%s", diff)
	}
}

// A host that offers no watch has the log.
func TestWithoutWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &world{kernel: newFakeKernel(), dir: t.TempDir()}
		x.kernel.noWatch = errors.New("too many open files")
		x.start(t)
		x.show(map[string]pod.ContainerState{id1: pod.StateRunning})
		x.kernel.write(10, path1, "hog")
		x.want(t, of1(Kill{Process: "hog", PID: 42, Count: 1, Used: 4 << 20, Limit: 8 << 20}))
		x.stop()
	})
}

// memory.events of version 2 wakes for its cgroup, by its path from the root.
func TestInotify(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "kubepods", "podu", id1, "memory.events")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("oom_kill 0\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	woken := make(chan string, 10)
	w, err := newEventFiles(cgroupstat.At(2, dir), func(path string) { woken <- path })
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(path1); err != nil {
		t.Fatal(err)
	}
	if err := w.Add("/gone"); !cgroupstat.IsGone(err) {
		t.Errorf("a cgroup that is gone: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	if err := os.WriteFile(file, []byte("oom_kill 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := <-woken; got != path1 {
		t.Errorf("woken for %s, want %s", got, path1)
	}
	w.Remove(path1)
	cancel()
	<-done
}
