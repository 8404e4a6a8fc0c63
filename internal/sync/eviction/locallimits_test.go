package eviction

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/observe/metrics/metricstest"
	"berth/internal/observe/stats"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/record/journal"
)

// node is a machine with pods. What is done to them is in story, with the seconds since the
// beginning.
type node struct {
	*story
	states  *pod.States
	journal *journal.Journal
	limits  *LocalLimits
	log     strings.Builder
	metrics *prometheus.Registry
	slow    map[pod.UID]time.Duration // walks take so long
	broken  map[pod.UID]error
	hangs   map[pod.UID]bool // evicted pods do not end

	mu    sync.Mutex
	pods  map[pod.UID]*v1.Pod
	ended map[pod.UID]bool
	used  map[pod.UID]uint64 // of the volume
	free  uint64
	asked int // for free space
	// evicted are the pods as they were handed over.
	evicted []*v1.Pod
}

func newNode(t *testing.T) *node {
	n := &node{
		story: newStory(t), states: pod.NewStates(), journal: journal.New(slog.New(slog.DiscardHandler)), slow: map[pod.UID]time.Duration{}, broken: map[pod.UID]error{},
		hangs: map[pod.UID]bool{}, ended: map[pod.UID]bool{}, pods: map[pod.UID]*v1.Pod{}, used: map[pod.UID]uint64{}, free: 1 << 30,
		metrics: prometheus.NewRegistry(),
	}
	n.limits = NewLocalLimits(LimitsConfig{
		Evictor: NewEvictor(EvictorConfig{
			Killer: n, Events: n, IsCritical: pod.HasCriticalPriority, Metrics: n.metrics, Journal: n.journal, Log: slog.New(slog.NewTextHandler(&n.log, nil)),
		}),
		Lifecycles: n.states, Pod: n.pod, Allocated: func(p *v1.Pod) *v1.Pod { return p },
		Observed: func(pod.UID) (*pod.Status, bool) { return nil, false },
		Ended: func(uid pod.UID) bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.ended[uid]
		},
		Storage: n,
		Space: func(path string) (stats.Space, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.asked++
			return stats.Space{Path: path, Device: 1, Free: n.free}, nil
		},
	})
	return n
}

// wantEvictions checks how many pods were counted that exceeded the limit of a volume.
func (n *node) wantEvictions(count float64) {
	n.t.Helper()
	metricstest.Expect(n.t, n.metrics, map[string]float64{`kubelet_evictions{eviction_signal="emptydirfs.limit"}`: count})
}

// run runs the Manager for the rest of the test.
func (n *node) run() {
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() { done <- n.limits.Run(ctx) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			n.t.Errorf("Run: %v", err)
		}
	})
}

// add adds a pod that runs, with a volume of a limit.
func (n *node) add(uid pod.UID, limit string, medium v1.StorageMedium) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: "default", Name: string(uid)}}
	p.Spec.Volumes = []v1.Volume{emptyDir("v", limit, medium)}
	n.mu.Lock()
	n.pods[uid] = p
	n.mu.Unlock()
	n.states.Set(uid, pod.Lifecycle{State: pod.Waiting})
	n.states.Set(uid, pod.Lifecycle{State: pod.Syncing})
	return p
}

func (n *node) pod(uid pod.UID) (*v1.Pod, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := n.pods[uid]
	return p, ok
}

// write writes to the pod's volume.
func (n *node) write(uid pod.UID, bytes uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.used[uid] += bytes
	n.free -= bytes
}

func (n *node) setEnded(uid pod.UID, ended bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended[uid] = ended
}

// questions is how often it was asked what is free on a disk.
func (n *node) questions() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked
}

func (n *node) Local(_ context.Context, p *v1.Pod, _ *pod.Status, of stats.Extent) (stats.Local, error) {
	n.mu.Lock()
	out := stats.Local{Volumes: map[string]stats.Size{}, Spaces: []stats.Space{{Path: "/", Device: 1, Free: n.free}}}
	for _, v := range of.Volumes {
		out.Volumes[v] = stats.Size{Bytes: n.used[p.UID]}
	}
	n.mu.Unlock()
	if p.Spec.Volumes[0].EmptyDir.Medium == "" {
		n.tell("%s: walked", p.UID)
	}
	time.Sleep(n.slow[p.UID])
	return out, n.broken[p.UID]
}

func (n *node) AnnotatedEvent(p *v1.Pod, _ map[string]string, kind, reason, message string) {
	messagestest.SawEvent(reason, message)
	n.tell("%s: %s %s %s", p.UID, kind, reason, message)
}

func (n *node) NodeEvent(kind, reason, message string) {
	messagestest.SawEvent(reason, message)
	n.tell("node: %s %s %s", kind, reason, message)
}

func (n *node) EvictPod(p *v1.Pod, grace int64, status func(*v1.PodStatus), done chan<- struct{}) {
	var s v1.PodStatus
	status(&s)
	messagestest.SawStatus(&s)
	n.evicted = append(n.evicted, p)
	n.tell("%s: evicted within %d s: %s %s %s", p.UID, grace, s.Phase, s.Reason, s.Message)
	n.states.Set(p.UID, pod.Lifecycle{State: pod.Terminating, Evicted: true})
	if !n.hangs[p.UID] {
		close(done)
	}
}

func bubble(t *testing.T, f func(t *testing.T, n *node)) {
	synctest.Test(t, func(t *testing.T) { f(t, newNode(t)) })
}

func TestPodThatExceedsItsLimit(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		n.add("big", "1Mi", "")
		n.add("near", "4Mi", "")
		n.run()
		time.Sleep(15 * time.Second)
		first := n.told()
		if len(first) != 2 || !strings.HasPrefix(first[0], "10 ") || !strings.HasPrefix(first[1], "10 ") {
			t.Fatalf("at first %q, want each pod to be walked after 10 s", first)
		}
		n.write("big", 1<<20)
		time.Sleep(10 * time.Second) // at 25 s: as much was written as there was room for
		n.want()
		n.write("big", 1)
		time.Sleep(10 * time.Second)
		n.want(
			"30 big: walked",
			`30 big: Warning Evicted Usage of EmptyDir volume "v" exceeds the limit "1Mi".`,
			`30 big: evicted within 1 s: Failed Evicted Usage of EmptyDir volume "v" exceeds the limit "1Mi".`,
		)
		n.wantEvictions(1)
		time.Sleep(time.Minute)
		n.want("70 near: walked")
		var entries []string
		for _, e := range n.journal.Read("default", "big") {
			entries = append(entries, e.Component+": "+e.Decision+": "+e.Why)
		}
		if diff := cmp.Diff([]string{`eviction: evict the pod: emptydirfs.limit: Usage of EmptyDir volume "v" exceeds the limit "1Mi". 1048577 bytes are used`}, entries); diff != "" {
			t.Errorf("the journal (-want +got):\n%s", diff)
		}
	})
}

// Others may free as much as a pod writes.
func TestWhatIsFreeDoesNotTell(t *testing.T) {
	bubble(t, func(_ *testing.T, n *node) {
		n.add("big", "1Mi", "")
		n.run()
		time.Sleep(11 * time.Second)
		n.want("10 big: walked")
		n.write("big", 2<<20)
		n.mu.Lock()
		n.free += 4 << 20
		n.mu.Unlock()
		time.Sleep(58 * time.Second)
		n.want()
		time.Sleep(time.Second)
		if told := n.told(); len(told) != 3 {
			n.t.Errorf("after a minute: %q", told)
		}
		n.wantEvictions(1)
	})
}

// A pod of many files is not walked all the time, however much is written.
func TestLongWalk(t *testing.T) {
	bubble(t, func(_ *testing.T, n *node) {
		n.add("many", "1Gi", "")
		n.slow["many"] = 5 * time.Second
		n.run()
		for range 25 {
			time.Sleep(10 * time.Second)
			n.write("many", 10)
		}
		n.want("10 many: walked", "115 many: walked", "220 many: walked")
	})
}

func TestVolumeInMemory(t *testing.T) {
	bubble(t, func(_ *testing.T, n *node) {
		n.add("memory", "1000", v1.StorageMediumMemory)
		n.run()
		time.Sleep(15 * time.Second)
		n.write("memory", 4096)
		time.Sleep(10 * time.Second)
		n.want(
			`20 memory: Warning Evicted Usage of EmptyDir volume "v" exceeds the limit "1k".`,
			`20 memory: evicted within 1 s: Failed Evicted Usage of EmptyDir volume "v" exceeds the limit "1k".`,
		)
		n.wantEvictions(1)
		if asked := n.questions(); asked != 0 {
			n.t.Errorf("it was asked %d times what is free on disks", asked)
		}
	})
}

// A critical pod is left alone, which is told once.
func TestCriticalPod(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		p := n.add("critical", "1Mi", "")
		p.Spec.Priority = ptr.To[int32](2_000_000_000)
		n.write("critical", 2<<20)
		n.run()
		time.Sleep(140 * time.Second)
		n.want("10 critical: walked", "70 critical: walked", "130 critical: walked")
		if logged := n.log.String(); strings.Count(logged, "cannot evict a critical pod") != 1 {
			t.Errorf("the log:\n%s", logged)
		}
	})
}

// A pod that does not end keeps the others waiting for a while only.
func TestPodThatDoesNotEnd(t *testing.T) {
	bubble(t, func(_ *testing.T, n *node) {
		n.add("deaf", "1Mi", "")
		n.hangs["deaf"] = true
		n.write("deaf", 2<<20)
		n.run()
		time.Sleep(30 * time.Second)
		told := n.told()
		want := "20 deaf: Warning ExceededGracePeriod Container runtime did not kill the pod within specified grace period."
		if got := told[len(told)-1]; got != want {
			n.t.Errorf("at last %q, want %q", got, want)
		}
		n.wantEvictions(1)
	})
}

// There is a clock while a pod with limits runs, and else none.
func TestRest(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		n.add("free", "", "")
		n.run()
		time.Sleep(10 * time.Minute)
		n.add("limited", "1Mi", "")
		time.Sleep(11 * time.Second)
		n.want("610 limited: walked")
		n.setEnded("limited", true)
		time.Sleep(10 * time.Minute)
		n.want()
		n.states.Set("limited", pod.Lifecycle{State: pod.Terminated})
		synctest.Wait()
		asked := n.questions()
		n.setEnded("limited", false)
		time.Sleep(10 * time.Minute)
		n.want()
		if n.questions() != asked {
			t.Error("it is asked what is free without a pod that has limits")
		}
		n.states.Forget("limited")
		n.add("limited", "1Mi", "") // the same manifest again
		time.Sleep(11 * time.Second)
		if told := n.told(); len(told) != 1 {
			t.Errorf("after it came back %q", told)
		}
	})
}

// What becomes of a pod while its files are walked counts.
func TestPodThatChangesDuringAWalk(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		for _, uid := range []pod.UID{"changed", "gone"} {
			n.add(uid, "1Mi", "")
			n.write(uid, 2<<20)
			n.slow[uid] = 2 * time.Second
		}
		n.run()
		time.Sleep(11 * time.Second)
		now := n.add("changed", "1Mi", "")
		n.mu.Lock()
		delete(n.pods, "gone")
		n.mu.Unlock()
		time.Sleep(30 * time.Second)
		n.told()
		if diff := cmp.Diff([]*v1.Pod{now}, n.evicted); diff != "" || n.evicted[0] != now {
			t.Errorf("evicted (-want +got):\n%s", diff)
		}
	})
}

// A pod that was evicted for something else meanwhile is left to that.
func TestPodThatIsEvictedDuringAWalk(t *testing.T) {
	bubble(t, func(_ *testing.T, n *node) {
		n.add("both", "1Mi", "")
		n.write("both", 2<<20)
		n.slow["both"] = 2 * time.Second
		n.run()
		time.Sleep(11 * time.Second)
		n.states.Set("both", pod.Lifecycle{State: pod.Terminating, Evicted: true})
		time.Sleep(30 * time.Second)
		n.want("10 both: walked")
	})
}

func TestStorageThatCannotBeMeasured(t *testing.T) {
	bubble(t, func(t *testing.T, n *node) {
		n.add("a", "1Mi", "")
		n.broken["a"] = errors.New("input/output error")
		n.run()
		time.Sleep(75 * time.Second)
		n.want("10 a: walked", "70 a: walked")
		if logged := n.log.String(); strings.Count(logged, "input/output error") != 1 {
			t.Errorf("the log:\n%s", logged)
		}
	})
}
