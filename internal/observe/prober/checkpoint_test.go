package prober

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"berth/internal/checkpoint"
	"berth/internal/pod"
)

// restart ends the agent, lets time pass and starts the next one with the same file. The clock of
// calls goes on.
func (n *node) restart(t *testing.T, pause time.Duration) *node {
	t.Helper()
	n.stop()
	time.Sleep(pause)
	next := newNode(t, n.Path)
	next.answers.began = n.answers.began
	return next
}

func TestAnotherAgent(t *testing.T) {
	bubble(t, "a ready container stays ready until its probe fails as often as it must", func(t *testing.T, n *node) {
		p, o := webPod(probeOf("l"), probeOf("r"), probeOf("s")), runs("a")
		n.Sync(p, o)
		synctest.Wait()
		n.wantVerdicts("a", "success true success")
		n = n.restart(t, time.Hour)
		n.fails("r")
		n.fails("s")
		n.jitter = func(most time.Duration) time.Duration { return most / 2 }
		n.Sync(p, o)
		n.wantVerdicts("a", "success true success")
		after(24 * time.Second)
		n.wantVerdicts("a", "success true success")
		n.wantChanged(false)
		after(2 * time.Second)
		n.wantVerdicts("a", "success false success")
		n.wantChanged(true)
		got := n.take()
		slices.Sort(got)
		want := []string{"a l@1h0m15s", "a l@1h0m25s", "a l@1h0m5s", "a r@1h0m15s", "a r@1h0m25s", "a r@1h0m5s"}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("attempts (-want +got):\n%s", d)
		}
		wantSaid := []string{
			"c: readiness probe: success, as before the agent's start",
			"c: startup probe: success, as before the agent's start",
			"c: readiness probe: failure; failures in a row: 3, failureThreshold: 3; no",
		}
		if d := cmp.Diff(wantSaid, n.said()); d != "" {
			t.Errorf("journal (-want +got):\n%s", d)
		}
	})
	bubble(t, "a startup probe that failed for good has", func(t *testing.T, n *node) {
		n.fails("s")
		p, o := webPod(nil, nil, probeOf("s", onFailures(1))), runs("a")
		n.Sync(p, o)
		synctest.Wait()
		n = n.restart(t, time.Second)
		n.Sync(p, o)
		after(time.Minute)
		n.wantVerdicts("a", "unknown false failure")
		n.wantCalls()
	})
	bubble(t, "a new incarnation is new", func(t *testing.T, n *node) {
		p := webPod(nil, probeOf("r"), nil)
		n.Sync(p, runs("a"))
		synctest.Wait()
		n = n.restart(t, time.Second)
		n.fails("r")
		n.Sync(p, runs("b"))
		synctest.Wait()
		n.wantVerdicts("b", "unknown false unknown")
		n.stop()
		if got := fileOf(t, n.Path)["u"]; len(got) != 1 || got["b"].Readiness != savedVerdict(pod.ProbeFailure) {
			t.Errorf("the file has %v", got)
		}
	})
	bubble(t, "what is not seen yet is kept for the agent after", func(t *testing.T, n *node) {
		p, o := webPod(nil, probeOf("r"), nil), runs("a")
		n.Sync(p, o)
		synctest.Wait()
		n = n.restart(t, time.Second)
		other := webPod(nil, probeOf("r"), nil)
		other.UID = "v"
		n.Sync(other, shows(incarnation("b", "c", pod.StateRunning, time.Now())))
		synctest.Wait()
		n = n.restart(t, time.Second)
		n.Sync(p, o)
		n.wantVerdicts("a", "unknown true unknown")
		n.Remove("u")
		n.Remove("v")
		n.stop()
		if got := fileOf(t, n.Path); len(got) > 0 {
			t.Errorf("the file still has %v", got)
		}
	})
	bubble(t, "new pods do not wait for the moment to pass in which an agent starts", func(t *testing.T, n *node) {
		n.jitter = func(time.Duration) time.Duration { panic("asked for a random time") }
		after(time.Millisecond)
		n.Sync(webPod(nil, probeOf("r"), nil), runs("a"))
		n.wantCalls("a r@1ms")
	})
	bubble(t, "an agent that has run for a period does not spread attempts", func(t *testing.T, n *node) {
		n.jitter = func(time.Duration) time.Duration { panic("asked for a random time") }
		after(10 * time.Second)
		n.Sync(webPod(nil, probeOf("r"), nil), shows(incarnation("a", "c", pod.StateRunning, time.Now().Add(-time.Hour))))
		n.wantCalls("a r@10s")
	})
}

func TestReportedStatusWithoutAFile(t *testing.T) {
	for _, tc := range []struct {
		name      string
		started   time.Duration // before the agent
		id        string
		container v1.ContainerStatus
		want      string
	}{
		{"ready and started", time.Minute, "a", v1.ContainerStatus{ContainerID: "containerd://a", Ready: true, Started: ptr.To(true)}, "unknown true success"},
		{"started", time.Minute, "a", v1.ContainerStatus{ContainerID: "containerd://a", Started: ptr.To(true)}, "unknown false success"},
		{"neither", time.Minute, "a", v1.ContainerStatus{ContainerID: "containerd://a", Started: ptr.To(false)}, "unknown false unknown"},
		{"started just before the agent", time.Second, "a", v1.ContainerStatus{ContainerID: "containerd://a", Ready: true, Started: ptr.To(true)}, "unknown true success"},
		{"started by the agent", 0, "a", v1.ContainerStatus{ContainerID: "containerd://a", Ready: true, Started: ptr.To(true)}, "unknown false unknown"},
		{"another incarnation", time.Minute, "b", v1.ContainerStatus{ContainerID: "containerd://a", Ready: true, Started: ptr.To(true)}, "unknown false unknown"},
		{"never reported", time.Minute, "a", v1.ContainerStatus{}, "unknown false unknown"},
	} {
		bubble(t, tc.name, func(t *testing.T, n *node) {
			p := webPod(nil, probeOf("r", delay(3600)), probeOf("s", delay(3600)))
			tc.container.Name = "c"
			p.Status.ContainerStatuses = []v1.ContainerStatus{tc.container}
			n.Sync(p, shows(incarnation(tc.id, "c", pod.StateRunning, n.Manager.began.Add(-tc.started))))
			n.wantVerdicts(pod.ContainerID(tc.id), tc.want)
		})
	}
}

func fileOf(t *testing.T, path string) map[pod.UID]savedPod {
	t.Helper()
	k, err := New(Config{Path: path, Log: slog.New(slog.DiscardHandler)}).file.Load()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestFilesThatAreNotTaken(t *testing.T) {
	good := func(boot string) string {
		content := map[pod.UID]savedPod{"u": {"a": {Readiness: savedVerdict(pod.ProbeSuccess)}}}
		b, err := json.Marshal(map[string]any{"version": checkpointVersion, "epoch": boot, "content": content})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, tc := range []struct {
		name, content string
		ready, aside  bool
	}{
		{"a good one is taken", good(bootID()), true, false},
		{"of another boot", good("another"), false, false},
		{"half written", `{"version": 2, "con`, false, true},
		{"with another word", strings.Replace(good(bootID()), "success", "perhaps", 1), false, true},
		{"without pods", `{"version": 2}`, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "probes.json")
			if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, path)
				n.fails("r")
				n.Sync(webPod(nil, probeOf("r"), nil), runs("a"))
				synctest.Wait()
				if got := n.Verdicts("u").Readiness["a"] == pod.ProbeSuccess; got != tc.ready {
					t.Errorf("ready: %t, want %t", got, tc.ready)
				}
			})
			b, err := os.ReadFile(path + checkpoint.AsideSuffix)
			if tc.aside != (err == nil) || tc.aside && string(b) != tc.content {
				t.Errorf("set aside: %q, %v; want %t", b, err, tc.aside)
			}
		})
	}
}
